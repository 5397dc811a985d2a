"""Hostile answers are played byte for byte, for each wire format."""

from __future__ import annotations

import aiohttp
import pytest

from talaria.testing.hostile_answers import find_attack, hostile_answers
from talaria.testing.model_server import APIS, ModelServer

ATTACKS = [(api.wire, name) for api in APIS.values() for name in hostile_answers(api.wire)]


@pytest.mark.parametrize(("wire", "name"), ATTACKS)
def test_an_attack_has_about_the_wanted_size_in_pieces(wire: str, name: str) -> None:
    attack = find_attack(wire, name)
    pieces = list(attack.pieces(200_000))
    assert max(map(len, pieces)) < 200_000
    if attack.unit:
        assert 190_000 < sum(map(len, pieces)) < 300_000


def test_an_unknown_attack_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="details, "):
        find_attack("openai-chat", "kindness")


async def test_the_server_plays_an_attack() -> None:
    async with ModelServer(strict=False) as server, aiohttp.ClientSession() as session:
        body = {
            "model": "m",
            "stream": True,
            "messages": [{"role": "user", "content": "[[hostile details 300000]]"}],
        }
        async with session.post(f"{server.base_url}/chat/completions", json=body) as response:
            assert response.status == 200
            assert await response.read() == find_attack("openai-chat", "details").whole(300_000)
