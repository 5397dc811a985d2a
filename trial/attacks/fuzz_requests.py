"""Fuzzed HTTP requests, drawn from a seed: calls of /openapi.json with hostile values, and damaged bytes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from random import Random
from typing import Any, NamedTuple
from urllib.parse import quote

INTRUDER = "intruder"  # what callers say who may start no turn
_METHODS = (
    "GET",
    "POST",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "CONNECT",
    "TRACE",
    "get",
    "",
    "A" * 300,
)
_ODD_PATHS = ("*", "{x}", "//{x}", "/api/../{x}", "/hooks/telegram", "/api/sessions/fuzz/messages")
_LEFT_OUT = ("/api/backup", "/api/models/{name}/fetch")  # copy the database; download a model
_TEXTS = (
    "fuzz", "ses_0", "turn_0", "file_" + "0" * 32, "..", "%00", "%ff%fe", "%2e%2e%2f", "a" * 200, "ü", "\x00",
    "0", "-1", "9" * 5000, "0" * 5000 + "1", "1e400", "nan", "٣", "", "%", "a b", "'\"><script>", "\r\n",
)  # fmt: skip
_VALID_FIELDS = (
    "Last-Event-ID: {x}", "Idempotency-Key: {x}", "X-Talaria-Session: {x}", "Origin: {x}",
    "Range: bytes={x}-", "Cookie: talaria_login={x}; {x}={x}", "Expect: 100-continue", "Connection: close",
    "Content-Type: {x}", "X-File-Name: {x}", "Sec-Fetch-Site: cross-site", "X-Talaria-Session: fuzz",
    "Accept: {x}", "X: {x}", "X-Talaria-Login: {x}", "x-stainless-retry-count: {x}",
)  # fmt: skip
_FIELDS = (
    *_VALID_FIELDS, "Content-Length: {n}", "Transfer-Encoding: chunked", "Transfer-Encoding: {x}",
    "Host: {x}", "Connection: Upgrade", "Upgrade: websocket", "Authorization: Bearer {x}",
    "Authorization: {x}", "{x}", " folded: {x}", "Origin: null", "Content-Encoding: gzip",
)  # fmt: skip
_FIELD_CHARACTERS = " :;=/<>'\"%,"
_ODD_CHUNKS = (
    b"5\r\nhello\r\n", b"5;name=value\r\nhello\r\n0\r\nTrailer: x\r\n\r\n", b"FFFFFFFFFFFFFFFF\r\nhello",
    b"-1\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"zz\r\n\r\n", b"\r\n\r\n",
    b"1\r\n{\r\n" * 2000, b"5\r\nhello" * 3, b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n", b"0" * 70_000 + b"5\r\n",
)  # fmt: skip


class Caller(Enum):
    """Who sends a request. Only the first two may start turns."""

    HOME = "home"
    CHATTER = "chat"
    READER = "read"
    WRONG = "wrong"
    NOBODY = "nobody"
    MALFORMED = "malformed"

    @property
    def is_intruder(self) -> bool:
        return self not in (Caller.HOME, Caller.CHATTER)


_CALLERS = (Caller.HOME,) * 7 + (Caller.CHATTER,) * 5 + (Caller.READER, Caller.WRONG, Caller.NOBODY) * 2
_MALFORMED = ("Bearer", "Bearer  ", "bearer \u00ff", "Basic Zm9vOmJhcg==", "Bearer " + "x" * 9000, "{x}")


class Target(NamedTuple):
    """A call, with a body that fits it."""

    method: str
    path: str
    body: Any

    @property
    def starts_turns(self) -> bool:
        return self.method == "POST" and self.path.endswith(("/messages", "/completions", "/responses"))


def find_targets(description: Mapping[str, Any]) -> list[Target]:
    """Return the calls of /openapi.json."""
    schemas = description["components"]["schemas"]
    found = []
    for path, methods in description["paths"].items():
        for method, call in methods.items():
            content = call.get("requestBody", {}).get("content", {}).get("application/json", {})
            body = content.get("example") or (_sample(content["schema"], schemas) if content else None)
            if path not in _LEFT_OUT:
                found.append(Target(method.upper(), path.replace("{model}", "{x}"), body))
    return found


def _sample(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    if "$ref" in schema:
        return _sample(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0], schemas)
    if schema.get("type") == "object":
        members = schema.get("properties", {})
        return {name: _sample(members[name], schemas) for name in schema.get("required", members)}
    return {"string": "fuzz", "array": [], "integer": 1, "number": 1.5, "boolean": True}.get(schema["type"])


@cache
def _bomb() -> bytes:
    """40 MB of zeros in 40 kB, more than a body may have."""
    return gzip.compress(bytes(40_000_000), 9, mtime=0)


class RequestFuzzer:
    """Draws requests. The same seed draws the same ones, but for the ids that answers have told (`known`).
    `tokens` are those of the callers that have one."""

    def __init__(
        self,
        random: Random,
        host: str,
        tokens: Mapping[Caller, str],
        targets: Sequence[Target],
        known: Sequence[str],
    ) -> None:
        self._random = random
        self._host = host
        self._tokens = tokens
        self._targets = targets
        self._known = ("fuzz", *known)
        self.caller = random.choice((*_CALLERS, Caller.MALFORMED))
        self._said = INTRUDER if self.caller.is_intruder else "hello"

    def draw(self) -> bytes:
        """Return a request. Most are valid HTTP, so that they reach the handlers."""
        return self._draw_valid() if self._random.random() < 0.65 else self._draw_any()

    def _pick(self) -> Target:
        """Return a call, often one that starts a turn."""
        random = self._random
        if random.random() < 0.6:
            return random.choice(self._targets)
        target = random.choice([target for target in self._targets if target.starts_turns])
        return target._replace(path=target.path.replace("{x}", "fuzz")) if random.random() < 0.7 else target

    # -- heads ----------------------------------------------------------------------------------------------

    def _draw_valid(self) -> bytes:
        random = self._random
        target = self._pick()
        is_usual = random.random() < 0.8
        method = (
            target.method if is_usual else random.choice(("GET", "POST", "HEAD", "DELETE", "PUT", "PATCH"))
        )
        body = self._body(target)
        path = quote(self._path(target.path), safe="/?=%", errors="surrogatepass")
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *self._authorization()]
        match random.randrange(20):
            case 0 | 1:
                lines.append("Transfer-Encoding: chunked")
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
            case 2:
                lines.append("Transfer-Encoding: chunked")
                body = random.choice(_ODD_CHUNKS)
            case 3:
                body = random.choice((gzip.compress(body), gzip.compress(body)[:-4], body, _bomb()))
                lines += ["Content-Encoding: gzip", f"Content-Length: {len(body)}"]
            case _:
                lines.append(f"Content-Length: {len(body)}")
        for field in random.sample(_VALID_FIELDS, random.choice((0, 0, 0, 1, 3))):
            lines.append(quote(self._fill(field), safe=_FIELD_CHARACTERS, errors="surrogatepass"))
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _draw_any(self) -> bytes:
        random = self._random
        target = self._pick()
        body = self._body(target)
        path = self._path(random.choice((target.path, target.path, random.choice(_ODD_PATHS))))
        method = random.choice(_METHODS) if random.random() < 0.3 else target.method
        lines = [f"{method} {path} HTTP/{random.choice(('1.1', '1.1', '1.1', '1.0', '2.0', '9'))}"]
        lines += [f"Host: {self._host}"] * random.choice((1, 1, 1, 1, 0, 2))
        lines += self._authorization()
        if body and random.random() < 0.9:
            lines.append(f"Content-Length: {len(body)}")
        lines += [self._fill(random.choice(_FIELDS)) for _ in range(random.choice((0, 0, 1, 2, 40)))]
        data = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogatepass") + body
        return self._damage(data) if random.random() < 0.5 else data

    def _authorization(self) -> list[str]:
        match self.caller:
            case Caller.NOBODY:
                return []
            case Caller.MALFORMED:
                return [f"Authorization: {self._random.choice(_MALFORMED).format(x='?')}"]
            case Caller.WRONG:
                return [f"Authorization: Bearer talaria_{self._random.randbytes(16).hex()}"]
        return [f"Authorization: Bearer {self._tokens[self.caller]}"]

    def _path(self, path: str) -> str:
        random, path = self._random, self._fill(path)
        if random.random() < 0.4:
            name = random.choice(("limit", "after", "wait", "name", "order", "x"))
            path += f"?{name}={'0' if name == 'wait' and random.random() < 0.5 else self._fill('{x}')}"
        return path

    def _fill(self, text: str) -> str:
        random = self._random
        text = text.replace("{n}", str(random.choice((0, 1, 5, 2**31, 2**64, -1, "0x5", "5, 5", "9" * 30))))
        for name in ("{x}", "{id}", "{name}"):
            while name in text:
                values = self._known if random.random() < 0.5 else _TEXTS
                text = text.replace(name, random.choice(values), 1)
        return text

    # -- bodies ---------------------------------------------------------------------------------------------

    def _body(self, target: Target) -> bytes:
        random = self._random
        body = self._say(target.body)
        match random.randrange(12):
            case 0 | 1 | 2 | 10 | 11:
                return json.dumps(body).encode() if body is not None else b""
            case 3 | 4 | 5 if body is not None:
                return json.dumps(self._mutate(body)).encode()
            case 6:
                return random.randbytes(random.choice((1, 100, 5000)))
            case 7:
                return random.choice(
                    (
                        b"[" * 50_000,
                        b'{"text": "' + b"\\u0000" * 20_000 + b'"}',
                        b"0," * 60_000,
                        b"1" * 100_000,
                    )
                )
            case 8:
                return json.dumps(self._value(4)).encode()
        return b""

    def _say(self, value: Any) -> Any:
        """Return the value with the caller's words in it."""
        if isinstance(value, dict):
            return {name: self._say(member) for name, member in value.items()}
        if isinstance(value, list):
            return [self._say(item) for item in value]
        return self._said if value == "hello" else value

    def _mutate(self, value: Any) -> Any:
        """Return the value with one of its parts replaced, left out, or beside a member that is unknown."""
        random = self._random
        if not isinstance(value, (dict, list)) or not value or random.random() < 0.2:
            return self._value(2)
        if isinstance(value, list):
            at = random.randrange(len(value))
            return [*value[:at], self._mutate(value[at]), *value[at + 1 :]]
        name = random.choice(list(value))
        match random.randrange(5):
            case 0:
                return {key: member for key, member in value.items() if key != name}
            case 1:
                return {**value, random.choice(("stream", "tools", "n", "store", "x")): self._value(2)}
        return {**value, name: self._mutate(value[name])}

    def _value(self, depth: int) -> Any:
        random = self._random
        if depth and random.random() < 0.7:
            size = random.choice((0, 1, 3))
            if random.random() < 0.5:
                return [self._value(depth - 1) for _ in range(size)]
            names = ("text", "role", "content", "files", "code", "type", "image_url", "tool_calls", "id", "x")
            return {random.choice(names): self._value(depth - 1) for _ in range(size)}
        return random.choice(
            (
                None,
                True,
                0,
                -1,
                1e308,
                10**30,
                -(2**63) - 1,
                1e-320,
                "user",
                "assistant",
                "tool",
                "text",
                "a" * 2000,
                "\ud800",
                "\x00",
                "\u202e",
                "",
                self._said,
            )
        )

    def _damage(self, data: bytes) -> bytes:
        random, damaged = self._random, bytearray(data)
        for _ in range(random.choice((1, 1, 3, 20))):
            at = random.randrange(len(damaged) + 1)
            match random.randrange(4):
                case 0:
                    damaged[at:at] = random.randbytes(random.choice((1, 1, 8)))
                case 1:
                    del damaged[at : at + random.choice((1, 4, 100))]
                case 2 if at < len(damaged):
                    damaged[at] = random.randrange(256)
                case _:
                    damaged[at:at] = random.choice((b"\r\n", b"\n", b"\r", b"\x00", b":", b" ", b"\r\n\r\n"))
        return bytes(damaged)
