"""A child of the built-in model without a model: of the same manners, told what to do by its weights."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    key = ""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {self.key}":
            self.send_response(401)
            self.end_headers()
            return
        said = body["messages"][-1]["content"]
        if "die" in said:
            os.kill(os.getpid(), signal.SIGKILL)
        said = ",".join(sorted(os.environ)) if said == "environment" else said
        text = answer(body, said)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in re.findall(r"\S+\s*", text):
            choice: dict[str, object] = {"delta": {"content": piece}}
            if body.get("logprobs"):  # of a word with a question mark the model is not sure
                scores = [{"token": piece, "logprob": -1.6 if "?" in piece else -0.01, "bytes": None}]
                choice["logprobs"] = {"content": scores}
            self._send({"choices": [choice]})
        self._send({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self._send({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _send(self, chunk: dict[str, object]) -> None:
        self.wfile.write(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def answer(body: dict[str, Any], said: str) -> str:
    """Return the first word of the message that the grammar allows, arguments by the schema, or talk.

    A message that begins with "maybe" is talk if talk is favoured, one with "likely" if it is much favoured.
    """
    if (grammar := body.get("grammar")) is not None:
        favour = body["logit_bias"][0][1]
        allowed = grammar.removeprefix("root ::= ").replace('"', "").split(" | ")
        is_talk = (said.startswith("maybe") and favour > 0) or (said.startswith("likely") and favour > 2)
        return "talk" if is_talk else next((word for word in said.split() if word in allowed), "talk")
    if (limit := body.get("response_format")) is not None:
        fields = limit["json_schema"]["schema"]["properties"]
        return json.dumps(
            {
                name: given.get("const") or given.get("enum", [f"a {name}"])[0]
                for name, given in fields.items()
            }
        )
    return "It was Ada?" if said.startswith("guess") else f"You said: {said}"


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    doing = Path(orders["weights"]).read_text()
    print("loading", file=sys.stderr, flush=True)
    if doing == "refuse":
        print(json.dumps({"error": "RuntimeError: not a model"}), flush=True)
        sys.exit(1)
    if doing == "libgomp":
        print(json.dumps({"error": "ImportError: libgomp.so.1: cannot open shared object file"}), flush=True)
        sys.exit(1)
    if doing == "illegal":
        os.kill(os.getpid(), signal.SIGILL)
    Handler.key = orders["key"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_port}/v1"}), flush=True)
    if doing == "stubborn":
        signal.pause()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
