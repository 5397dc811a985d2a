"""What a tiny model may answer next. It chooses badly, so it is left only what makes sense.

The schema that stands with the frozen prefix names everything; what a call is held to is a part of it, and
goes behind the conversation, so that the prefix stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from talaria.models.local.prompt import READ_SCHEMA, REPLY_SCHEMA, RESULT

_CALLS_IN_A_ROW = 2
_REPLY = msgspec.json.encode(REPLY_SCHEMA)
_READ = msgspec.json.encode(READ_SCHEMA)
_READ_OR_REPLY = b'{"anyOf":[%b,%b]}' % (_READ, _REPLY)
_WAS_READ = RESULT + b"read_file:"
_WAS_FOUND = (RESULT + b"list_files:", RESULT + b"search_files:")
_FILE = re.compile(
    rb"[\w-]\.(cfg|conf|css|csv|docx?|html?|ini|java|js|json|log|md|pdf|py|rs|rst|sh|sql|tex|toml|ts|tsv|txt"
    rb"|xlsx?|xml|ya?ml)\b",
    re.IGNORECASE,
)
_THEIR_FILES = re.compile(
    rb"\b((my|this|these|every|which)\s+(files?|folders?|notes|documents|directory)|the\s+(folder|directory))\b",
    re.IGNORECASE,
)
_PERHAPS_A_FILE = re.compile(rb"\w[./]\w|\b(README|LICENSE|Makefile|Dockerfile)\b")


def narrowed(schema: bytes, chunks: Sequence[bytes]) -> bytes:
    """After a result: a file that was read is to be told, what was found may be read first, after a failure
    anything may be tried; after two results in a row it has to talk. After the person's words: who names a
    file, or speaks of their files, wants a look; where no file was ever named there is none to read."""
    last = chunks[-1] if chunks else b""
    if last.startswith(_WAS_READ) or _has_looked_enough(chunks):
        return _REPLY
    if last.startswith(_WAS_FOUND):
        return _READ_OR_REPLY if _READ in schema else _REPLY
    if last.startswith(RESULT):
        return schema
    if not any(map(_PERHAPS_A_FILE.search, chunks)):
        schema = schema.replace(_READ + b",", b"")
    wants_a_look = _FILE.search(last) or _THEIR_FILES.search(last)
    return schema.replace(b"," + _REPLY, b"") if wants_a_look else schema


def _has_looked_enough(chunks: Sequence[bytes]) -> bool:
    return len(chunks) >= 2 * _CALLS_IN_A_ROW and all(
        chunk.startswith(RESULT) for chunk in chunks[-1 : -2 * _CALLS_IN_A_ROW : -2]
    )
