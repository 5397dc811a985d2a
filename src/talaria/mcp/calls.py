"""Calls of MCP tools: the check of their arguments, and their results as content for a model."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import mcp_types as types
import msgspec
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import best_match
from referencing import Registry

from talaria.core.errors import ToolError
from talaria.core.messages import Content, File, Part, Text
from talaria.mcp.texts import clean, clean_line
from talaria.tools.tool import ToolContext
from talaria.workspace.reading import picture_part

_MAX_SECONDS: Final = 0.2  # of CPU time; a usual check takes a few milliseconds
_MAX_ERRORS: Final = 20
# Regular expressions can take exponential time. The others take steps that nothing counts.
_SKIPPED: Final = (
    *("pattern", "patternProperties", "uniqueItems", "$dynamicRef", "unevaluatedItems"),
    "unevaluatedProperties",
)


class _Unchecked(Exception):
    """The time is over."""


def check_arguments(name: str, parameters: str, arguments: dict[str, Any]) -> None:
    """Raise `ToolError` for the model if the arguments of the tool `name` break its schema. Return without a
    result for a schema that is broken, or takes too long. Blocks for a moment: call it in a thread."""
    deadline = time.thread_time() + _MAX_SECONDS

    def bounded(keyword: str, check: Callable[..., Any]) -> Callable[..., Iterator[ValidationError]]:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            if time.thread_time() > deadline:
                raise _Unchecked
            is_foreign = keyword == "$ref" and not value.startswith("#/") and value != "#"
            is_matched = keyword == "additionalProperties" and "patternProperties" in schema
            is_old = keyword.startswith("exclusive") and isinstance(value, bool)  # as in draft 4
            if not is_foreign and not is_matched and not is_old:
                yield from check(validator, value, instance, schema) or ()

        return run

    known = Draft202012Validator.VALIDATORS
    checks = {word: bounded(word, check) for word, check in known.items() if word not in _SKIPPED}
    kind: Any = validators.create({}, checks, type_checker=Draft202012Validator.TYPE_CHECKER)
    try:
        found = kind(msgspec.json.decode(parameters), registry=Registry()).iter_errors(arguments)
        wrong = best_match(islice(found, _MAX_ERRORS))
    except Exception:  # a broken schema raises anything
        return
    if wrong is not None:
        where = clean_line(wrong.json_path.replace("$", "arguments", 1), 100)
        raise ToolError(f"The arguments of {name} are wrong: {where}: {clean_line(wrong.message)}.")


# -- the results of servers as parts that a model reads ---------------------------------------------------


MAX_PARTS = 200
_UNFIT = re.compile(r"[^A-Za-z0-9._-]+")

Block: TypeAlias = (
    types.TextContent | types.ImageContent | types.AudioContent | types.ResourceLink | types.EmbeddedResource
)


class _Place(NamedTuple):
    """The part of a result that a file belongs to."""

    server: str
    context: ToolContext
    number: int


def call_content(result: types.CallToolResult, server: str, context: ToolContext) -> Content:
    """Return the parts of a result. Raises `ToolError` for one that says that the call failed. Blocks."""
    blocks: Sequence[Any] = result.content
    if not blocks and result.structured_content is not None:
        return clean(msgspec.json.encode(result.structured_content, enc_hook=str).decode())
    parts = tuple(_parts(blocks, server, context))
    if result.is_error:
        said = "\n".join(part.text for part in parts if isinstance(part, Text))
        raise ToolError(said or f"The MCP server {server} says that the call failed.")
    return parts or "The call went well and has no result."


def resource_content(
    contents: Sequence[types.TextResourceContents | types.BlobResourceContents],
    server: str,
    context: ToolContext,
) -> Content:
    """Return a resource that was read. Blocks."""
    blocks = [types.EmbeddedResource(type="resource", resource=each) for each in contents[:MAX_PARTS]]
    return tuple(_parts(blocks, server, context)) or "The resource is empty."


def prompt_content(messages: Sequence[types.PromptMessage], server: str, context: ToolContext) -> Content:
    """Return the messages of a prompt, each behind its role. Blocks."""
    parts: list[Part] = []
    for message in messages[:MAX_PARTS]:
        parts += [Text(f"[{message.role}]"), *_parts([message.content], server, context)]
    return tuple(parts) or "The prompt is empty."


def list_items(
    resources: Sequence[types.Resource],
    templates: Sequence[types.ResourceTemplate],
    prompts: Sequence[types.Prompt],
) -> str:
    """Return the list of what a server can be asked for."""

    def line(what: str, name: str, description: str | None) -> str:
        told = clean_line(description or "", 200)
        return f"- {clean_line(what, 500)} ({clean_line(name, 100)}){f': {told}' if told else ''}"

    lines = ["Resources (uri):", *(line(each.uri, each.name, each.description) for each in resources)]
    lines += ["Templates of resources (uri with {names} to fill in):"] if templates else []
    lines += [line(each.uri_template, each.name, each.description) for each in templates]
    lines += ["Prompts (prompt, arguments):"] if prompts else []
    for prompt in prompts:
        arguments = ", ".join(clean_line(each.name, 60) for each in prompt.arguments or ())
        lines.append(line(prompt.name, arguments or "no arguments", prompt.description))
    return "\n".join(lines)


def _parts(blocks: Sequence[Block], server: str, context: ToolContext) -> Iterator[Part]:
    for index, block in enumerate(blocks[:MAX_PARTS]):
        place = _Place(server, context, index)
        match block:
            case types.TextContent(text=text):
                yield Text(clean(text))
            case types.ImageContent(data=data, mime_type=kind):
                yield _picture(data, kind, place)
            case types.AudioContent(data=data, mime_type=kind):
                yield _file(_decoded(data), kind, "audio", place)
            case types.ResourceLink(uri=uri, name=name, description=about):
                yield Text(f"[resource {clean_line(uri, 500)}: {clean_line(about or name)}]")
            case types.EmbeddedResource(resource=types.TextResourceContents(uri=uri, text=text)):
                yield Text(f"[resource {clean_line(uri, 500)}]\n{clean(text)}")
            case types.EmbeddedResource(resource=types.BlobResourceContents() as found):
                kind = found.mime_type or ""
                if kind.startswith("image/"):
                    yield _picture(found.blob, kind, place)
                else:
                    name = clean_line(found.uri).rstrip("/").rpartition("/")[2]
                    yield _file(_decoded(found.blob), kind, name, place)
    if len(blocks) > MAX_PARTS:
        yield Text(f"[{len(blocks) - MAX_PARTS} more parts of the result were left out.]")


def _picture(data: str, kind: str, place: _Place) -> Part:
    """Return a picture that models take, and any other one as a file."""
    content = _decoded(data)
    return picture_part(content) or _file(content, kind, "picture", place)


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data)
    except ValueError as error:
        raise ToolError("The MCP server sent a file that cannot be decoded.") from error


def _file(content: bytes, kind: str, name: str, place: _Place) -> Part:
    """Write a file to the chat's folder. A call that is run again after a crash replaces it."""
    kind = clean_line(kind, 100).partition(";")[0].strip() or "application/octet-stream"
    stem, dot, ending = _UNFIT.sub("_", name)[-60:].rpartition(".")
    suffix = f".{ending}" if dot and stem else mimetypes.guess_extension(kind) or ""
    context = place.context
    unique = f"{context.turn_id}\0{context.call_id}\0{place.number}"
    digest = hashlib.sha256(unique.encode(errors="replace")).hexdigest()[:8]
    told = f"{(stem or ending).strip('.') or 'file'}-{digest}{suffix}"
    folder = context.open_folder()
    path = folder.resolve(f"mcp/{place.server}/{told}")
    folder.write(path, content)
    return File(told, str(path), kind, len(content))
