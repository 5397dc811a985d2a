"""Requests of real clients, as they were recorded, replayed byte for byte.

Each of them has the same result on every run: the same answer, and the same request to the model. Digests of
these are in `clients/recorded/digests.json`; `--update-golden` writes them anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from clients.record import FOLDER, RECORDED, Recording, read, varying
from support.gateway import Api, in_process
from talaria.testing.model_server import ModelServer

DIGESTS = FOLDER / "digests.json"
APIS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
# Some requests name stored responses, which a new gateway does not have.
STORED = ('"previous_response_id":"', '"type":"item_reference"')
REPLAYED = [
    each
    for name in RECORDED
    for each in read(name)
    if not any(word in each.body.replace('": "', '":"') for word in STORED)
]
OF_API = {api: [each for each in REPLAYED if each.path.partition("?")[0] == api] for api in APIS}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[Api, ModelServer]]:
    async with ModelServer() as model, in_process(tmp_path, model) as api:
        yield api, model


async def replay(api: Api, model: ModelServer, recording: Recording) -> tuple[int, str, str]:
    """Return the status, the answer and the request to the model, without what differs from run to run."""
    body = recording.body.encode()
    async with api.client.post(api.url + recording.path, data=body, headers=recording.headers) as response:
        answer = varying(await response.text())
        return response.status, answer, varying(model.bodies[-1].decode())


def digest(result: tuple[int, str, str]) -> str:
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()[:16]


def stored(path: str) -> list[str]:
    return list(json.loads(DIGESTS.read_text())[path])


@pytest.mark.parametrize("path", APIS)
async def test_recorded_requests_have_the_stored_result(
    served: tuple[Api, ModelServer], path: str, request: pytest.FixtureRequest
) -> None:
    results = [await replay(*served, each) for each in OF_API[path]]
    assert results
    assert {status for status, _, _ in results} == {200}
    found = [digest(each) for each in results]
    if request.config.getoption("--update-golden", default=False):
        kept = json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}
        DIGESTS.write_text(json.dumps(kept | {path: found}, indent=1, sort_keys=True) + "\n")
    wanted = stored(path)
    assert len(found) == len(wanted)
    wrong = [result for result, one, other in zip(results, found, wanted, strict=True) if one != other]
    assert not wrong, "after a change on purpose: ./dev pytest tests/golden tests/clients --update-golden"


@pytest.mark.long
@pytest.mark.parametrize("path", APIS)
async def test_500_recorded_requests_of_each_api(served: tuple[Api, ModelServer], path: str) -> None:
    known = stored(path)
    for n in range(500):
        assert digest(await replay(*served, OF_API[path][n % len(known)])) == known[n % len(known)]


def test_no_recording_tells_of_a_machine_or_a_key() -> None:
    for name in RECORDED:
        for each in read(name):
            assert "talaria-coder" not in each.body
            assert not {"authorization", "x-api-key", "host"} & each.headers.keys()
