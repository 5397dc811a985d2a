"""Engines and background services are parts: one line in the list, and the gateway opens them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from support.gateway import without_http
from talaria.config.home import Home
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.gateway import Gateway, ServicePart
from talaria.parts import PARTS
from talaria.store.part import SQLITE, StoreScope, find_engine
from talaria.store.settings import StoreSettings
from talaria.store.store import Store


class BellSettings(msgspec.Struct, frozen=True):
    tone: str = "low"


async def test_a_service_brings_its_table_and_is_open_as_long_as_the_gateway(tmp_path: Path) -> None:
    heard = []

    @asynccontextmanager
    async def ring(gateway: Gateway, settings: BellSettings) -> AsyncIterator[None]:
        heard.append(f"open {settings.tone}, accepting {gateway.turns is not None}")
        yield
        heard.append("closed")

    bell = ServicePart(name="bell", table=("bell",), settings=BellSettings, open=ring)
    (tmp_path / "config.toml").write_text('[bell]\ntone = "high"\ntoen = "x"\n')
    parts = (*PARTS, bell)
    loaded = load(tmp_path, {}, parts)
    assert any("did you mean" in warning.lower() and "tone" in warning for warning in loaded.warnings)
    async with without_http(tmp_path, parts=parts):
        assert heard == ["open high, accepting True"]
    assert heard[1:] == ["closed"]


async def test_the_gateway_opens_the_first_engine_that_serves_the_url(tmp_path: Path) -> None:
    opened: list[Path] = []

    @asynccontextmanager
    async def open_noting(scope: StoreScope, settings: StoreSettings) -> AsyncIterator[Store]:
        opened.append(scope.default_path)
        async with SQLITE.open(scope, settings) as store:
            yield store

    deaf = replace(SQLITE, name="deaf", serves=lambda url: False)
    noting = replace(SQLITE, name="noting", open=open_noting)
    async with without_http(tmp_path, parts=(deaf, noting, *PARTS)) as gateway:
        assert (await gateway.store.stats()).schema > 0
    assert opened == [Home(tmp_path).database]


def test_a_url_that_no_engine_serves_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match="No engine of the store serves other: URLs"):
        find_engine(PARTS, "other://host/name")
