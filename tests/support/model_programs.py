"""Strict stand-ins for local model servers: each knows only the addresses that the real program has."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answers = dict[tuple[str, str], Any]
MODEL = "qwen3:8b"
_LIST = {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "library"}]}
_CHUNKS = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "ready"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
)


def ollama(context: int, parameters: str = "", *, is_loaded: bool = True, trained: int = 40_960) -> Answers:
    entry = {"name": MODEL, "model": MODEL, "size": 5, "size_vram": 5, "context_length": context}
    return {
        ("GET", "/v1/models"): _LIST,
        ("GET", "/api/ps"): {"models": [entry] if is_loaded else []},
        ("POST", "/api/show"): {"parameters": parameters, "model_info": {"qwen3.context_length": trained}},
    }


def llama_cpp(context: int, slots: int = 1, *, trained: int = 40_960) -> Answers:
    item = {"id": MODEL, "object": "model", "meta": {"n_ctx": context, "n_ctx_train": trained}}
    settings = {"id": 0, "n_ctx": context, "params": {"temperature": 0.8}}
    props = {"default_generation_settings": settings, "total_slots": slots, "build_info": "b1"}
    return {
        ("GET", "/v1/models"): {"object": "list", "data": [item]},
        ("GET", "/props"): props,
    }


def lm_studio(context: int, *, is_loaded: bool = True, trained: int = 40_960) -> Answers:
    item: dict[str, Any] = {"id": MODEL, "type": "llm", "state": "not-loaded", "max_context_length": trained}
    if is_loaded:
        item |= {"state": "loaded", "loaded_context_length": context}
    return {("GET", "/v1/models"): _LIST, ("GET", "/api/v0/models"): {"object": "list", "data": [item]}}


def vllm(context: int) -> Answers:
    item = {"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "max_model_len": context}
    return {("GET", "/v1/models"): {"object": "list", "data": [item]}}


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    """Serve the answers, and chat completions. Gives the address of the API."""
    is_studio = ("GET", "/api/v0/models") in answers

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["model"] == MODEL
            if self.path == "/v1/chat/completions":
                lines = "".join(f"data: {json.dumps(each)}\n\n" for each in _CHUNKS) + "data: [DONE]\n\n"
                self._send(200, lines.encode(), "text/event-stream")
            else:
                self._answer("POST")

        def _answer(self, method: str) -> None:
            found = answers.get((method, self.path))
            missing = {"error": f"Unexpected endpoint or method. ({method} {self.path})"}
            status = 200 if found is not None or is_studio else 404  # LM Studio says 200 to everything
            self._send(status, json.dumps(missing if found is None else found).encode(), "application/json")

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
