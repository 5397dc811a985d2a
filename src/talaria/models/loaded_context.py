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
    of a model. `is_only` means that the server runs one model, whatever name it is called by."""

    server: str
    contexts: dict[str, int]
    command: str
    is_only: bool = False

    def find(self, model: str) -> int | None:
        """Return the size; None if the model is not loaded, so that nobody knows it."""
        if self.is_only:
            return next(iter(self.contexts.values()), None)
        return self.contexts.get(model, self.contexts.get(f"{model}:latest"))

    def shortage(self, model: str) -> tuple[str, str] | None:
        """Return what to say of a size that is too small for an agent, and the command that raises it."""
        tokens = self.find(model)
        if tokens is None or tokens >= NEEDED_TOKENS:
            return None
        text = (
            f"{self.server} has loaded {model} with a context of {tokens:,} tokens, and an agent with tools "
            f"needs {NEEDED_TOKENS:,}. Raise it:"
        )
        return text, self.command.replace("MODEL", model)


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


async def _ask_ollama(ask: AskServer, model: str) -> LoadedModels:
    running = msgspec.json.decode(await ask("/api/ps", None), type=_OllamaRunning)
    contexts = {each.name: each.context_length for each in running.models if each.context_length > 0}
    found = LoadedModels("Ollama", contexts, f"OLLAMA_CONTEXT_LENGTH={NEEDED_TOKENS} ollama serve")
    if model and found.find(model) is None:
        body = msgspec.json.encode({"model": model})
        shown = msgspec.json.decode(await ask("/api/show", body), type=_OllamaShown)
        if own := _NUM_CTX.search(shown.parameters):  # it is loaded with the size of its own file
            contexts[model] = int(own[1])
    return found


class _LlamaSettings(msgspec.Struct):
    n_ctx: int


class _LlamaProps(msgspec.Struct):
    default_generation_settings: _LlamaSettings
    total_slots: int = 1


async def _ask_llama_cpp(ask: AskServer, model: str) -> LoadedModels:
    props = msgspec.json.decode(await ask("/props", None), type=_LlamaProps)
    size = NEEDED_TOKENS * max(props.total_slots, 1)  # the slots share it
    contexts = {"": props.default_generation_settings.n_ctx}
    return LoadedModels("llama.cpp", contexts, f"llama-server --ctx-size {size} …", is_only=True)


class _LmStudioModel(msgspec.Struct):
    id: str
    state: str
    loaded_context_length: int = 0


class _LmStudioList(msgspec.Struct):
    data: list[_LmStudioModel]


async def _ask_lm_studio(ask: AskServer, model: str) -> LoadedModels:
    listed = msgspec.json.decode(await ask("/api/v0/models", None), type=_LmStudioList).data
    loaded = {each.id: each.loaded_context_length for each in listed if each.state == "loaded"}
    contexts = {name: size for name, size in loaded.items() if size > 0}
    return LoadedModels("LM Studio", contexts, f"lms load MODEL --context-length {NEEDED_TOKENS}")


class _VllmModel(msgspec.Struct):
    id: str
    max_model_len: int


class _VllmList(msgspec.Struct):
    data: list[_VllmModel]


async def _ask_vllm(ask: AskServer, model: str) -> LoadedModels:
    listed = msgspec.json.decode(await ask("/v1/models", None), type=_VllmList).data
    contexts = {each.id: each.max_model_len for each in listed}
    return LoadedModels("vLLM", contexts, f"vllm serve MODEL --max-model-len {NEEDED_TOKENS}")
