"""The context size that a local model server has loaded, which is often less than the model can read.

Each kind of server tells it in its own place: Ollama at /api/ps, llama.cpp at /props, LM Studio at
/api/v0/models, vLLM in its list of models. A longer request is refused, or its beginning is cut off silently.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from talaria.core.errors import ModelError
from talaria.models.failures import DECODE_ERRORS

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
