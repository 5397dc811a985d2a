"""Removal of secrets from text, by exact value."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from urllib.parse import quote

MARK = "[redacted]"
_SHORTEST = 6


class Redactor:
    """Replaces each known secret, plain or in a usual encoding, by `[redacted]`. Immutable."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secret for secret in secrets if len(secret) >= _SHORTEST)
        forms = sorted({form for secret in self._secrets for form in _forms(secret)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(form) for form in forms)) if forms else None

    def with_secrets(self, secrets: Iterable[str]) -> Redactor:
        return Redactor({*self._secrets, *secrets})

    def __call__(self, text: str) -> str:
        return self._pattern.sub(MARK, text) if self._pattern else text

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"


def _forms(secret: str) -> Iterable[str]:
    data = secret.encode(errors="surrogateescape")
    yield secret
    yield quote(data, safe="")
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield data.hex()
    yield data.hex().upper()
    yield base64.b64encode(data).decode().rstrip("=")
    yield base64.urlsafe_b64encode(data).decode().rstrip("=")
