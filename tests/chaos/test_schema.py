"""A short form of `./dev chaos --only schema`: no answer that /openapi.json does not describe, and no 5xx."""

from __future__ import annotations

import asyncio

import pytest

from chaos.schema import SchemaRun, why_not


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_schemathesis_finds_no_undocumented_answer_and_no_server_error() -> None:
    run = SchemaRun(1, "fuzzing")
    figures = asyncio.run(run.run())
    assert [figure.name for figure in figures if not figure.is_reached] == [], run.text
    assert figures[1].value > 30
