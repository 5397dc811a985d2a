"""Discovery: which models endpoints list, and which model servers and keys this machine has.

`ModelLists` asks the configured endpoints in the background and remembers both outcomes: the list, or why
there is none. No turn waits for it; sessions that begin later know more. `detect_providers` serves the setup:
it asks a server for its list of models and for nothing else, and never uses a key.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from talaria.core.clock import Clock
from talaria.core.errors import ModelError, NoModel
from talaria.core.whole_files import replace_file
from talaria.models.answer_budget import is_costly
from talaria.models.failures import DECODE_ERRORS
from talaria.models.known import Abilities
from talaria.models.settings import PRESETS, SCRIPTED

if TYPE_CHECKING:
    import aiohttp

    from talaria.models.providers import Providers


_log = logging.getLogger("talaria.models")

MODEL_LISTS_FILE = "models.json"
MAX_MODELS = 2_000  # of one endpoint
MAX_FILE_BYTES = 16 << 20
DETECT_SECONDS = 0.5
_LONGEST_ID = 200
_LONGEST_ITEM = 32 << 10  # bytes about one model
_MAX_OBJECTS = 50_000
_FIRST_SECONDS = 5.0
_ROUND_SECONDS = 600.0
_FRESH_SECONDS = 6 * 3600.0
_FAILED_SECONDS = 3600.0  # until an endpoint that failed is asked again
_MAX_DETECTED_BYTES = 1 << 20


class ModelList(msgspec.Struct, frozen=True, omit_defaults=True):
    """The models that the server at `url` listed at `asked_at`, or why it did not."""

    url: str
    asked_at: float
    models: dict[str, Abilities] = {}
    failure: str = ""
    is_local: bool = False  # its server loads and unloads models


class ModelLists:
    """The model lists of the providers in use. The file is a cache for the next start."""

    def __init__(
        self, source: Providers, clock: Clock, providers: Iterable[str], path: Path | None = None
    ) -> None:
        self._source = source
        self._clock = clock
        self._providers = tuple(name for name in dict.fromkeys(providers) if name and name != SCRIPTED)
        self._path = path
        self._lists: dict[str, ModelList] = _load(path) if path is not None else {}
        self.change()

    def change(self) -> None:
        """Forget the lists of addresses that are not configured any more."""
        self._lists = {name: found for name, found in self._lists.items() if self._is_current(name, found)}

    def _is_current(self, provider: str, found: ModelList) -> bool:
        try:
            return found.url == self._source.base_url(provider)
        except NoModel:
            return False

    def find(self, provider: str, model: str) -> Abilities | None:
        if (found := self._lists.get(provider)) is None:
            return None
        return found.models.get(model) or found.models.get(f"{model}:latest")  # as Ollama lists it

    def get(self, provider: str) -> ModelList | None:
        """Return the provider's list; None if it was not asked, or was asked at another address."""
        return self._lists.get(provider)

    def names(self) -> Iterable[str]:
        """Yield `provider/model` for every listed model, provider by provider."""
        for provider in self._providers:
            found = self.get(provider)
            for model in found.models if found is not None else ():
                yield f"{provider}/{model}"

    async def run(self) -> None:
        """Ask the endpoints whose list is old, a while after the start and then every ten minutes."""
        await self._clock.sleep(_FIRST_SECONDS)
        while True:
            await self.refresh()
            await self._clock.sleep(_ROUND_SECONDS)

    async def refresh(self) -> None:
        due = [provider for provider in self._providers if self._is_due(provider)]
        for provider in due:
            found = await self._ask(provider)
            if self._is_current(provider, found):
                self._lists[provider] = found
        if due and self._path is not None:
            # A copy: `change` may add providers meanwhile. Off the loop: the disk may hang.
            await asyncio.to_thread(_save, self._path, dict(self._lists))

    def _is_due(self, provider: str) -> bool:
        found = self.get(provider)
        if found is None:
            return True
        age = self._clock.now() - found.asked_at
        if found.is_local:
            return not 0 <= age < _ROUND_SECONDS
        return not 0 <= age < (_FAILED_SECONDS if found.failure else _FRESH_SECONDS)

    async def _ask(self, provider: str) -> ModelList:
        url, now = "", self._clock.now()
        try:
            url = self._source.base_url(provider)
            models: dict[str, Abilities] = {}
            for name, abilities in iterate_models(await self._source.list_models(provider)):
                models[name] = abilities
                await asyncio.sleep(0)
            loaded = await self._source.loaded(provider)
        except (NoModel, ModelError) as error:
            return self._failed(provider, url, now, error.user_text)
        except DECODE_ERRORS as error:
            return self._failed(provider, url, now, f"its list of models cannot be read ({error})")
        if (before := self.get(provider)) is None or before.models.keys() != models.keys():
            _log.info("%s lists %d model%s", provider, len(models), "" if len(models) == 1 else "s")
        for name, abilities in models.items():
            if loaded is not None and (size := loaded.find(name)) is not None:
                models[name] = msgspec.structs.replace(abilities, context=size)
        return ModelList(url, now, models, is_local=loaded is not None)

    def _failed(self, provider: str, url: str, now: float, why: str) -> ModelList:
        """Keep the models of the earlier list. Failures in a row are logged once."""
        earlier = self.get(provider)
        if earlier is None or not earlier.failure:
            _log.info("%s does not list its models: %s", provider, why)
        return ModelList(url, now, earlier.models if earlier is not None else {}, why)


# -- the file ---------------------------------------------------------------------------------------------


def _load(path: Path) -> dict[str, ModelList]:
    """Return the stored lists; empty if the file is missing, broken or too large."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=dict[str, ModelList])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _save(path: Path, lists: Mapping[str, ModelList]) -> None:
    try:
        replace_file(path, msgspec.json.encode(lists), is_durable=False)
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error.strerror)


# -- reading lists ----------------------------------------------------------------------------------------


class _List(msgspec.Struct):
    """llama.cpp has a second list, `models`, with the abilities of the model that it runs."""

    data: list[msgspec.Raw]
    models: msgspec.Raw = msgspec.Raw()


def read_models(body: bytes) -> dict[str, Abilities]:
    """Read the response of `GET /models` at once. See `iterate_models`."""
    return dict(iterate_models(body))


def iterate_models(body: bytes) -> Iterator[tuple[str, Abilities]]:
    """Read the response of `GET /models`, in the forms of all known servers. Odd members are skipped.

    Each step reads one model, so that the caller can let other tasks run between them. Raises
    `msgspec.DecodeError` if the body is no list of models at all.
    """
    if is_costly(body) or body.count(b"{") > _MAX_OBJECTS:
        raise msgspec.DecodeError("it has too many values")
    listed = msgspec.json.decode(body, type=_List)
    beside = {
        str(item.get("model") or item.get("name")): item
        for item in _decode_item(listed.models) or ()
        if isinstance(item, dict)
    }
    for raw in listed.data[:MAX_MODELS]:
        item = _decode_item(raw)
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and 0 < len(name) <= _LONGEST_ID:
            yield name, _read({**beside.get(name, {}), **item})


def _decode_item(raw: msgspec.Raw) -> Any:
    """Return a list or an object; None for all else, and for what is too long or too deep."""
    if not 0 < len(raw) <= _LONGEST_ITEM or bytes(raw)[:1] not in (b"[", b"{"):
        return None
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS:
        return None


def _read(item: Mapping[str, Any]) -> Abilities:
    inner = (item.get(key) for key in ("top_provider", "meta", "architecture"))
    top, meta, built = (value if isinstance(value, dict) else {} for value in inner)
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
    """Return whether a model has an ability, or None if the server does not say.

    A list of parameters or features means no for what it leaves out. So does a list of capabilities, but only
    for images: some servers leave tools and reasoning out of it.
    """
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


# -- detecting servers and keys -----------------------------------------------------------------------------


class DetectedProvider(msgspec.Struct, frozen=True):
    """A server that lists `models` at `base_url`, or a key in the variable `env` for that address.

    `provider` is the name that it would have under [providers]: a preset's if there is one.
    """

    name: str
    provider: str
    base_url: str
    env: str = ""
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.env or f"{self.name} on {urlsplit(self.base_url).port}"


# The default addresses of model servers.
SERVERS = (
    DetectedProvider("Ollama", "ollama", "http://127.0.0.1:11434/v1"),
    DetectedProvider("llama.cpp", "llamacpp", "http://127.0.0.1:8080/v1"),
    DetectedProvider("vLLM", "vllm", "http://127.0.0.1:8000/v1"),
    DetectedProvider("LM Studio", "lmstudio", "http://127.0.0.1:1234/v1"),
)


async def detect_providers(
    environ: Mapping[str, str], servers: Iterable[DetectedProvider] = SERVERS
) -> list[DetectedProvider]:
    """Return keys first, then servers. Takes half a second at most."""
    return [*detect_keys(environ), *await detect_servers(servers)]


def detect_keys(environ: Mapping[str, str]) -> list[DetectedProvider]:
    """Return the presets whose key is set in the environment. The key itself is not returned."""
    return [
        DetectedProvider(name, name, preset.base_url, preset.api_key_env)
        for name, preset in PRESETS.items()
        if preset.api_key_env and environ.get(preset.api_key_env, "").strip()
    ]


async def detect_servers(
    servers: Iterable[DetectedProvider] = SERVERS, seconds: float = DETECT_SECONDS
) -> list[DetectedProvider]:
    """Ask all servers at once. A server that does not list models is some other program, and left out."""
    import aiohttp  # noqa: PLC0415 - slow to import, and not needed for keys

    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=seconds), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
    ) as session:
        found = await asyncio.gather(*(_detect(session, server) for server in servers))
    return [server for server in found if server is not None]


async def _detect(session: aiohttp.ClientSession, server: DetectedProvider) -> DetectedProvider | None:
    import aiohttp  # noqa: PLC0415

    try:
        async with session.get(f"{server.base_url}/models", allow_redirects=False) as response:
            if response.status != 200:
                return None
            body = bytearray()
            while len(body) <= _MAX_DETECTED_BYTES and (data := await response.content.readany()):
                body += data
            models = read_models(bytes(body))
    except (aiohttp.ClientError, TimeoutError, OSError, *DECODE_ERRORS):
        return None
    return msgspec.structs.replace(server, models=tuple(models))


# -- the context size that a local model server has loaded, which is often less than the model can read ---
# Each kind of server tells it in its own place: Ollama at /api/ps, llama.cpp at /props, LM Studio at
# /api/v0/models, vLLM in its list of models. A longer request is refused, or its beginning is cut off
# silently.


NEEDED_TOKENS = 16_384  # prompt and built-in tools take about 4,000, results and the conversation the rest
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)\s*$", re.MULTILINE)
# Returns the answer of a path of the server; with a body, to a POST. Raises `ModelError`.
AskServer: TypeAlias = Callable[[str, bytes | None], Awaitable[bytes]]


class LoadedModels(msgspec.Struct, frozen=True):
    """The context sizes in tokens by the names of models, as `server` tells them. `command` raises the size
    of a model. `is_only` means that the server runs one model, whatever name it is called by. `trained` has
    the largest context that each model can read, where the server tells it."""

    server: str
    contexts: dict[str, int]
    command: str
    is_only: bool = False
    trained: dict[str, int] = {}

    def find(self, model: str) -> int | None:
        """Return the size; None if the model is not loaded, so that nobody knows it."""
        return self._find(self.contexts, model)

    def shortage(self, model: str) -> tuple[str, str] | None:
        """Return what to say of a size that is too small for an agent, and the command that raises it; an
        empty one if the model itself cannot read more."""
        tokens = self.find(model)
        if tokens is None or tokens >= NEEDED_TOKENS:
            return None
        text = (
            f"{self.server} has loaded {model} with a context of {tokens:,} tokens, and an agent with tools "
            f"needs {NEEDED_TOKENS:,}."
        )
        most = self._find(self.trained, model)
        if most is not None and most < NEEDED_TOKENS:
            return f"{text} This model can read at most {most:,}, so choose another model.", ""
        return f"{text} Raise it:", self.command.replace("MODEL", model)

    def _find(self, sizes: dict[str, int], model: str) -> int | None:
        if self.is_only:
            return next(iter(sizes.values()), None)
        return sizes.get(model, sizes.get(f"{model}:latest"))


def is_near(address: str) -> bool:
    """Return whether the address is of this machine or of a private network, by its name alone."""
    return is_near_host(urlsplit(address).hostname or "")


def is_near_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".lan"))


async def ask_loaded(ask: AskServer, model: str = "") -> LoadedModels | None:
    """Return what a server has loaded; None if it is of no known kind. `model` need not be loaded yet."""
    for kind in (_ask_ollama, _ask_llama_cpp, _ask_lm_studio, _ask_vllm):
        try:
            return await kind(ask, model)
        except (ModelError, *DECODE_ERRORS):
            continue
    return None


class _OllamaModel(msgspec.Struct):
    name: str
    context_length: int = 0  # of versions before 2025 it is missing


class _OllamaRunning(msgspec.Struct):
    models: list[_OllamaModel]


class _OllamaShown(msgspec.Struct):
    parameters: str = ""
    model_info: dict[str, object] = {}

    def find_trained(self) -> int | None:
        """Return the size whose key begins with the model's architecture, as in `qwen3.context_length`."""
        sizes = (size for key, size in self.model_info.items() if key.endswith(".context_length"))
        return next((size for size in sizes if isinstance(size, int)), None)


async def _ask_ollama(ask: AskServer, model: str) -> LoadedModels:
    running = msgspec.json.decode(await ask("/api/ps", None), type=_OllamaRunning)
    contexts = {each.name: each.context_length for each in running.models if each.context_length > 0}
    command, trained = f"OLLAMA_CONTEXT_LENGTH={NEEDED_TOKENS} ollama serve", dict[str, int]()
    found = LoadedModels("Ollama", contexts, command, trained=trained)
    tokens = found.find(model)
    if model and (tokens is None or tokens < NEEDED_TOKENS):
        body = msgspec.json.encode({"model": model})
        shown = msgspec.json.decode(await ask("/api/show", body), type=_OllamaShown)
        own = _NUM_CTX.search(shown.parameters)
        if own and tokens is None:  # it is loaded with the size of its own file
            contexts[model] = int(own[1])
        if (most := shown.find_trained()) is not None:
            trained[model] = most
    return found


class _LlamaSettings(msgspec.Struct):
    n_ctx: int


class _LlamaProps(msgspec.Struct):
    default_generation_settings: _LlamaSettings
    total_slots: int = 1


class _LlamaMeta(msgspec.Struct):
    n_ctx_train: int = 0


class _LlamaModel(msgspec.Struct):
    meta: _LlamaMeta | None = None  # a server without a loaded model says null


class _LlamaList(msgspec.Struct):
    data: list[_LlamaModel]


async def _ask_llama_cpp(ask: AskServer, model: str) -> LoadedModels:
    props = msgspec.json.decode(await ask("/props", None), type=_LlamaProps)
    size = NEEDED_TOKENS * max(props.total_slots, 1)  # the slots share it
    contexts = {"": props.default_generation_settings.n_ctx}
    listed = msgspec.json.decode(await ask("/v1/models", None), type=_LlamaList).data
    metas = [each.meta for each in listed if each.meta is not None and each.meta.n_ctx_train > 0]
    trained = {"": metas[0].n_ctx_train} if metas else {}
    command = f"llama-server --ctx-size {size} …"
    return LoadedModels("llama.cpp", contexts, command, is_only=True, trained=trained)


class _LmStudioModel(msgspec.Struct):
    id: str
    state: str
    loaded_context_length: int = 0
    max_context_length: int = 0


class _LmStudioList(msgspec.Struct):
    data: list[_LmStudioModel]


async def _ask_lm_studio(ask: AskServer, model: str) -> LoadedModels:
    listed = msgspec.json.decode(await ask("/api/v0/models", None), type=_LmStudioList).data
    loaded = {each.id: each.loaded_context_length for each in listed if each.state == "loaded"}
    contexts = {name: size for name, size in loaded.items() if size > 0}
    trained = {each.id: each.max_context_length for each in listed if each.max_context_length > 0}
    command = f"lms load MODEL --context-length {NEEDED_TOKENS}"
    return LoadedModels("LM Studio", contexts, command, trained=trained)


class _VllmModel(msgspec.Struct):
    id: str
    max_model_len: int


class _VllmList(msgspec.Struct):
    data: list[_VllmModel]


async def _ask_vllm(ask: AskServer, model: str) -> LoadedModels:
    listed = msgspec.json.decode(await ask("/v1/models", None), type=_VllmList).data
    contexts = {each.id: each.max_model_len for each in listed}
    return LoadedModels("vLLM", contexts, f"vllm serve MODEL --max-model-len {NEEDED_TOKENS}")
