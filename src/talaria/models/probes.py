"""What endpoints say of their models, asked beside the turns and kept with its age.

Both answers are kept: what a server listed, and that it could not be asked. Nothing here is awaited by a
turn; what is found reaches sessions that begin later. The file is a cache that a next start begins with.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ModelError, NoModel
from talaria.models.abilities import Abilities
from talaria.models.presets import SCRIPTED
from talaria.models.wire import DECODE_ERRORS

_log = logging.getLogger("talaria.models")

FILE = "models.json"
MAX_MODELS = 2_000  # of one endpoint
MAX_FILE_BYTES = 16 << 20
_LONGEST_ID = 200
_FIRST_SECONDS = 5.0
_ROUND_SECONDS = 600.0
_FRESH_SECONDS = 6 * 3600.0
_FAILED_SECONDS = 3600.0  # until one that could not be asked is asked again


class Probe(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the server at `url` said at `asked_at`, or why it said nothing."""

    url: str
    asked_at: float
    models: dict[str, Abilities] = {}
    failure: str = ""


class Source(Protocol):
    """Where to ask. Raises `NoModel` for a provider that cannot be used, `ModelError` when it fails."""

    def base_url(self, provider: str) -> str: ...

    async def list_models(self, provider: str) -> bytes: ...


class Probes:
    """The answers by provider. `wanted` are those that are asked at all; the scripted one never is."""

    def __init__(self, source: Source, clock: Clock, wanted: Iterable[str], path: Path | None = None) -> None:
        self._source = source
        self._clock = clock
        self._wanted = tuple(name for name in dict.fromkeys(wanted) if name and name != SCRIPTED)
        self._path = path
        self._found: dict[str, Probe] = _load(path) if path is not None else {}

    def find(self, provider: str, model: str) -> Abilities | None:
        probe = self.get(provider)
        return probe.models.get(model) if probe is not None else None

    def get(self, provider: str) -> Probe | None:
        """None for one that was not asked, or only when it was elsewhere."""
        probe = self._found.get(provider)
        if probe is None:
            return None
        try:
            return probe if probe.url == self._source.base_url(provider) else None
        except NoModel:
            return None

    def names(self) -> Iterable[str]:
        """`provider/model` of everything that was listed, provider by provider."""
        for provider in self._wanted:
            probe = self.get(provider)
            for model in probe.models if probe is not None else ():
                yield f"{provider}/{model}"

    async def run(self) -> None:
        """A while after the start, and then for ever: whoever is due is asked."""
        await self._clock.sleep(_FIRST_SECONDS)
        while True:
            await self.refresh()
            await self._clock.sleep(_ROUND_SECONDS)

    async def refresh(self) -> None:
        due = [provider for provider in self._wanted if self._is_due(provider)]
        for provider in due:
            self._found[provider] = await self._ask(provider)
        if due and self._path is not None:
            _save(self._path, self._found)

    def _is_due(self, provider: str) -> bool:
        probe = self.get(provider)
        if probe is None:
            return True
        age = self._clock.now() - probe.asked_at
        return not 0 <= age < (_FAILED_SECONDS if probe.failure else _FRESH_SECONDS)

    async def _ask(self, provider: str) -> Probe:
        url, now = "", self._clock.now()
        try:
            url = self._source.base_url(provider)
            models = read_models(await self._source.list_models(provider))
        except (NoModel, ModelError) as error:
            return self._failed(provider, url, now, error.user_text)
        except DECODE_ERRORS as error:
            return self._failed(provider, url, now, f"its list of models cannot be read ({error})")
        _log.info("%s lists %d model%s", provider, len(models), "" if len(models) == 1 else "s")
        return Probe(url, now, models)

    def _failed(self, provider: str, url: str, now: float, why: str) -> Probe:
        """What was listed before stays known. Said once, until it works again."""
        earlier = self.get(provider)
        if earlier is None or not earlier.failure:
            _log.info("%s does not list its models: %s", provider, why)
        return Probe(url, now, earlier.models if earlier is not None else {}, why)


# -- the file ---------------------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, Probe]:
    """Empty when there is none, or one that is broken or too large."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Probe])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _save(path: Path, found: Mapping[str, Probe]) -> None:
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.touch(0o600)
        unfinished.write_bytes(msgspec.json.encode(found))
        unfinished.replace(path)
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            unfinished.unlink()


# -- reading lists ----------------------------------------------------------------------------------------


class _List(msgspec.Struct):
    """llama.cpp says in `models`, beside `data`, what the one that it runs can do."""

    data: list[Any]
    models: Any = None


def read_models(body: bytes) -> dict[str, Abilities]:
    """The models of a `GET /models`, with what each kind of server tells of them. What has another shape than
    expected is passed over; raises `msgspec.DecodeError` when it is no list of models at all."""
    listed = msgspec.json.decode(body, type=_List)
    beside = {
        str(item.get("model") or item.get("name")): item
        for item in (listed.models if isinstance(listed.models, list) else ())
        if isinstance(item, dict)
    }
    found: dict[str, Abilities] = {}
    for item in listed.data[:MAX_MODELS]:
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and 0 < len(name) <= _LONGEST_ID:
            found[name] = _read({**beside.get(name, {}), **item})
    return found


def _read(item: Mapping[str, Any]) -> Abilities:
    top, meta, built = (_table(item.get(key)) for key in ("top_provider", "meta", "architecture"))
    return Abilities(
        context=_first(item, *_CONTEXT)
        or _first(top, "context_length")
        or _first(meta, "n_ctx", "n_ctx_train"),
        output=_first(top, "max_completion_tokens")
        or _first(item, "max_completion_tokens", "max_output_length", "max_tokens"),
        tools=_can(item, _TOOLS, ("supported_parameters", "supported_features")),
        images=_sees(item, built),
        reasoning=_can(item, _REASONING, ("supported_parameters", "supported_features")),
    )


_CONTEXT = ("context_length", "max_model_len", "context_window", "max_context_length", "max_input_tokens")
_TOOLS = frozenset({"tools", "function_calling"})
_IMAGES = frozenset({"image", "images", "image_input", "vision", "multimodal", "supports_image_in"})
_REASONING = frozenset({"reasoning", "thinking", "supports_reasoning", "include_reasoning"})


def _sees(item: Mapping[str, Any], built: Mapping[str, Any]) -> bool | None:
    for modalities in (built.get("input_modalities"), item.get("input_modalities")):
        if isinstance(modalities, list):
            return "image" in modalities
    return _can(item, _IMAGES, ())


def _can(item: Mapping[str, Any], words: frozenset[str], lists: tuple[str, ...]) -> bool | None:
    """Lists that name what a model can do say no by silence; so does a list of capabilities, for all but
    reasoning and tools, which some servers leave out of it. Members say yes or no themselves."""
    for key in lists:
        if isinstance(listed := item.get(key), list):
            return any(isinstance(word, str) and word in words for word in listed)
    for word in words:
        if isinstance(told := item.get(word), bool):
            return told
    capabilities = item.get("capabilities")
    if isinstance(capabilities, dict):
        for word in words:
            told = capabilities.get(word)
            told = told.get("supported") if isinstance(told, dict) else told
            if isinstance(told, bool):
                return told
    if isinstance(capabilities, list):
        if any(isinstance(word, str) and word in words for word in capabilities):
            return True
        return False if words is _IMAGES else None
    return None


def _first(item: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = item.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40:
            return value
    return None


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
