"""Codes that let someone in: made, written for reading, read back, and hashed."""

from __future__ import annotations

import hashlib
import secrets
from typing import NewType

from talaria.core.access import CodeHash

Code = NewType("Code", str)

# Without 0 O 1 I L, which look alike, and U, which spells words.
ALPHABET = "23456789ABCDEFGHJKMNPQRSTVWXYZ"
LENGTH = 12  # 58 bits
_GROUP = 4


def new_code() -> Code:
    """As it is shown: `K7QD-93MX-4TZA`."""
    letters = "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))
    return _grouped(letters)


def read_code(text: str) -> Code | None:
    """A code as people type it, with any spaces, dashes and case; None for what cannot be one."""
    if len(text) > LENGTH * 3 or not text.isascii():
        return None
    letters = "".join(text.upper().replace("-", " ").split())
    if len(letters) != LENGTH or not set(letters) <= set(ALPHABET):
        return None
    return _grouped(letters)


def hash_code(code: Code) -> CodeHash:
    return CodeHash(hashlib.sha256(b"talaria pairing code " + code.encode()).hexdigest())


def _grouped(letters: str) -> Code:
    return Code("-".join(letters[start : start + _GROUP] for start in range(0, LENGTH, _GROUP)))
