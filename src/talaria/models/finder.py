"""What this machine has already: model servers on loopback, and keys in the environment.

Finding is all that happens here: a server is asked for its list of models and for nothing else, a key is
never used. Whoever asks decides, and a person says yes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from talaria.models.presets import PRESETS
from talaria.models.probes import read_models
from talaria.models.wire import DECODE_ERRORS

if TYPE_CHECKING:
    import aiohttp

PROBE_SECONDS = 0.5
_MAX_LIST_BYTES = 1 << 20


class Found(msgspec.Struct, frozen=True):
    """`provider` is the name that it would have under [providers]: a preset's where there is one.

    A server lists its `models` at `base_url`; a key is in `env`, and made for that address.
    """

    name: str
    provider: str
    base_url: str
    env: str = ""
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.env or f"{self.name} on {urlsplit(self.base_url).port}"


# Where model servers listen by default.
SERVERS = (
    Found("Ollama", "ollama", "http://127.0.0.1:11434/v1"),
    Found("llama.cpp", "llamacpp", "http://127.0.0.1:8080/v1"),
    Found("vLLM", "vllm", "http://127.0.0.1:8000/v1"),
    Found("LM Studio", "lmstudio", "http://127.0.0.1:1234/v1"),
)


async def find(environ: Mapping[str, str], servers: Iterable[Found] = SERVERS) -> list[Found]:
    """Keys first, then servers. Takes half a second at most; what does not answer is not there."""
    return [*find_keys(environ), *await find_servers(servers)]


def find_keys(environ: Mapping[str, str]) -> list[Found]:
    """Keys of known providers by the names of their variables; their values stay where they are."""
    return [
        Found(name, name, preset.base_url, preset.api_key_env)
        for name, preset in PRESETS.items()
        if preset.api_key_env and environ.get(preset.api_key_env, "").strip()
    ]


async def find_servers(servers: Iterable[Found] = SERVERS, seconds: float = PROBE_SECONDS) -> list[Found]:
    """All are asked at once. One that listens but does not list models is some other program."""
    import aiohttp  # noqa: PLC0415 - slow to import, and not needed for keys

    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=seconds), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        found = await asyncio.gather(*(_ask(session, server) for server in servers))
    return [one for one in found if one is not None]


async def _ask(session: aiohttp.ClientSession, server: Found) -> Found | None:
    import aiohttp  # noqa: PLC0415

    try:
        async with session.get(f"{server.base_url}/models", allow_redirects=False) as response:
            if response.status != 200:
                return None
            body = bytearray()
            while len(body) <= _MAX_LIST_BYTES and (data := await response.content.readany()):
                body += data
            models = read_models(bytes(body))
    except (aiohttp.ClientError, TimeoutError, OSError, *DECODE_ERRORS):
        return None
    return msgspec.structs.replace(server, models=tuple(models))
