from __future__ import annotations

from pathlib import Path

import pytest

from channels.http.conftest import api, model  # noqa: F401 - fixtures
from cli.conftest import environ, home, model_url, serve, talaria  # noqa: F401 - fixtures
from golden.golden_files import Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    is_update = request.config.getoption("--update-golden", default=False)
    return Golden(is_update=is_update, paths=(tmp_path, Path(__file__).parents[2]))
