"""The family `files`: read, write, edit, list, search and send files of the chat's folder."""

from __future__ import annotations

from io import BufferedReader

from talaria.core.errors import ToolError
from talaria.core.messages import Content, File, Part, Text
from talaria.core.tools import SEND_FILE, Risk, ToolSpec
from talaria.core.units import format_size
from talaria.tools.function import Arguments, FunctionTool, Handler, counted, in_thread, parameters, text
from talaria.tools.search import search_files
from talaria.tools.tool import Tool, ToolContext
from talaria.workspace.folder import MAX_WRITE_BYTES, FileKind, Folder, FolderPath
from talaria.workspace.reading import (
    MAX_PICTURE_BYTES,
    MAX_SIDE,
    SNIFFED_BYTES,
    Found,
    Glob,
    Position,
    TextPage,
    is_binary,
    look_at,
    picture_part,
    read_page,
    walk,
)
from talaria.workspace.uploads import keep_copy

_NOTE_BYTES = 400
_DEFAULT_LINES = 2000
_MAX_LISTED = 1000
_MAX_PLACES = 10

_PATH = text("Relative to the chat's folder.")

READ_FILE = ToolSpec(
    name="read_file",
    description=(
        "Read a file from the chat's folder. A long text comes in parts: a note at the end says how many "
        "lines there are and with which offset to go on. A picture (PNG, JPEG, GIF, WebP) is shown to you."
    ),
    parameters=parameters(
        {
            "path": _PATH,
            "offset": counted("First line to read. Default: 1."),
            "limit": counted(f"The most lines to read. Default: {_DEFAULT_LINES}."),
            "column": counted("Where to begin in the first line, if a note says so."),
        },
        required=["path"],
    ),
    idempotent=True,
    read_only=True,
)

WRITE_FILE = ToolSpec(
    name="write_file",
    description=(
        "Write a text file in the chat's folder. Makes the file and its parent folders, or replaces the "
        "whole content of an existing file. To change a part of a file use edit_file."
    ),
    parameters=parameters(
        {"path": _PATH, "content": text("The whole new content.")},
        required=["path", "content"],
    ),
    risk=Risk.FILES,
    idempotent=True,
    reads_files=False,
)

EDIT_FILE = ToolSpec(
    name="edit_file",
    description=(
        "Replace one passage of a text file in the chat's folder. `old` must occur exactly once: copy it "
        "from the file with its indentation, and add lines around it until it is unique. Line endings are "
        "kept."
    ),
    parameters=parameters(
        {
            "path": _PATH,
            "old": text("The text to replace, exactly as it stands in the file."),
            "new": text("The text to put in its place; empty deletes it."),
        },
        required=["path", "old", "new"],
    ),
    risk=Risk.FILES,
    reads_files=False,
)

LIST_FILES = ToolSpec(
    name="list_files",
    description=(
        "List files and folders with their sizes; folders end with a slash. Without a pattern it lists one "
        'folder; "*.py" matches names in it, "**/*.py" at any depth, "**" everything but .git.'
    ),
    parameters=parameters(
        {
            "path": text("Default: the chat's folder."),
            "pattern": text('Glob, relative to path, such as "**/*.py". Default: "*".'),
        }
    ),
    idempotent=True,
    read_only=True,
)

SEARCH_FILES = ToolSpec(
    name="search_files",
    description=(
        "Search the text files of the chat's folder for a regular expression (Python syntax, matched line by "
        "line; write (?i) in front to ignore case). Returns path:line: text for each matching line."
    ),
    parameters=parameters(
        {
            "pattern": text("The regular expression."),
            "path": text("File or folder to search. Default: the chat's folder."),
        },
        required=["pattern"],
    ),
    idempotent=True,
    read_only=True,
)


SEND = ToolSpec(
    name=SEND_FILE,
    description=(
        "Send a file from the chat's folder to the person you talk with. It goes out with your reply, as it "
        "is now: changes that you make afterwards are not sent."
    ),
    parameters=parameters({"path": _PATH}, required=["path"]),
    idempotent=True,
    reads_files=False,
)


def file_tools(max_result: int) -> tuple[Tool, ...]:
    """Return the tools. What `read_file` returns has at most `max_result` bytes, so it is never cut."""
    return (
        FunctionTool(READ_FILE, _reader(max_result - _NOTE_BYTES)),
        FunctionTool(WRITE_FILE, in_thread(_write)),
        FunctionTool(EDIT_FILE, in_thread(_edit)),
        FunctionTool(LIST_FILES, _list_files),
        FunctionTool(SEARCH_FILES, search_files),
        FunctionTool(SEND, in_thread(_send)),
    )


def _reader(max_bytes: int) -> Handler:
    def read(arguments: Arguments, context: ToolContext) -> Content:
        folder = context.open_folder()
        path = folder.resolve(arguments["path"])
        start = Position(int(arguments.get("offset", 1)), int(arguments.get("column", 1)))
        limit = int(arguments.get("limit", _DEFAULT_LINES))
        with folder.open(path) as file:
            if picture := _read_picture(path, file):
                return picture
            return _render_page(read_page(file, start, limit, max_bytes), start)

    return in_thread(read)


def _read_picture(path: FolderPath, file: BufferedReader) -> tuple[Part, ...]:
    """Return the picture as parts; nothing if the file is not one. Raises `ToolError` if it is too large."""
    head = file.read(SNIFFED_BYTES)
    data = head + file.read(MAX_PICTURE_BYTES + 1 - len(head)) if is_binary(head) else b""
    file.seek(0)
    picture = look_at(data)
    if picture is None:
        return ()
    about = f"{picture.media_type}, {picture.width} × {picture.height} pixels"
    shown = picture_part(data)
    if shown is None:
        limits = f"{format_size(MAX_PICTURE_BYTES)} and {MAX_SIDE} pixels on each side"
        raise ToolError(f"{path} is a picture ({about}) that is too large.", f"The limit is {limits}.")
    return (Text(f"[{path}: {about}, {format_size(len(data))}]"), shown)


def _render_page(page: TextPage, start: Position) -> str:
    if not page.lines:
        return "[The file is empty.]"
    if page.next is None:
        return page.text
    go_on = f"offset={page.next.line}"
    if page.next.column > 1:
        go_on += f", column={page.next.column}"
    gap = "" if page.text.endswith("\n") else "\n"
    note = f"[Lines {start.line} to {page.last_line} of {page.lines}. To go on: {go_on}.]"
    return f"{page.text}{gap}{note}"


def _write(arguments: Arguments, context: ToolContext) -> str:
    folder = context.open_folder()
    path = _writable(folder, arguments["path"])
    data = _encoded(arguments["content"])
    is_new = folder.write(path, data)
    return f"Wrote {len(data)} bytes to {path} ({'a new file' if is_new else 'replaced'})."


def _edit(arguments: Arguments, context: ToolContext) -> str:
    folder = context.open_folder()
    path = _writable(folder, arguments["path"])
    before = folder.read(path, MAX_WRITE_BYTES)
    at, old, new = find_passage(before, _encoded(arguments["old"]), _encoded(arguments["new"]))
    folder.write(path, b"".join((before[:at], new, before[at + len(old) :])))
    return f"Edited {path} at line {_line_of(before, at)}."


def find_passage(content: bytes, old: bytes, new: bytes) -> tuple[int, bytes, bytes]:
    """Return the place of `old` in `content`, and `old` and `new` in the line endings of the content.

    Raises `ToolError` unless `old` occurs exactly once. Bytes that are not UTF-8 are as good as others.
    """
    if not old:
        raise ToolError("`old` is empty.", "Give the text to replace, or use write_file.")
    returns = content.count(b"\r\n")
    if returns > content.count(b"\n") - returns:
        adapted = _with_returns(old), _with_returns(new)
        if adapted[0] in content:
            old, new = adapted
    if old == new:
        raise ToolError("`old` and `new` are the same: nothing to change.")
    places = _occurrences(content, old)
    if not places:
        raise ToolError(
            "`old` is not in the file.", "Read the file and copy the passage exactly, with its indentation."
        )
    if len(places) > 1:
        lines = ", ".join(str(_line_of(content, at)) for at in places[:_MAX_PLACES])
        is_more = len(places) > _MAX_PLACES
        raise ToolError(
            f"`old` occurs {'more than ' if is_more else ''}{min(len(places), _MAX_PLACES)} times "
            f"(at lines {lines}{', …' if is_more else ''}).",
            "Add lines around it until it is unique.",
        )
    return places[0], old, new


def _occurrences(content: bytes, passage: bytes) -> list[int]:
    """Return the first places of `passage`, overlapping ones too, since each is a different edit."""
    places: list[int] = []
    at = content.find(passage)
    while at >= 0 and len(places) <= _MAX_PLACES:
        places.append(at)
        at = content.find(passage, at + 1)
    return places


def _with_returns(content: bytes) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def _line_of(content: bytes, at: int) -> int:
    return content.count(b"\n", 0, at) + 1


def _send(arguments: Arguments, context: ToolContext) -> Content:
    # The journal finds the file in the result, and the reply brings it.
    folder = context.open_folder()
    path = folder.resolve(arguments["path"])

    def check(data: bytes) -> None:
        if names := context.redactor.names_in(data):
            what = f"{path} holds a secret of the gateway ({', '.join(names)}) and is not sent."
            raise ToolError(what, "Take it out of the file first.")

    sent, digest = keep_copy(folder, path, (context.turn_id, context.call_id), check=check)
    told = Text(f"{path} will be sent with your reply.")
    return told, File(sent.name, str(path), sent.type, sent.size, digest=digest)


async def _list_files(arguments: Arguments, context: ToolContext) -> str:
    return await context.resources.computing(_list, arguments, context)


def _list(arguments: Arguments, context: ToolContext) -> str:
    folder = context.open_folder()
    start = folder.resolve(arguments.get("path", "."))
    glob = Glob(arguments.get("pattern", "*"))
    listing = walk(folder, start, glob, _MAX_LISTED, is_cancelled=context.scope.is_cancelled)
    lines = [_render_found(found) for found in listing.found]
    if not listing.is_complete:
        lines.append(f"[More than {len(lines)}: not all are listed. Narrow the path or the pattern.]")
    return "\n".join(lines) or "[Nothing there matches.]"


def _render_found(found: Found) -> str:
    match found.item.kind:
        case FileKind.FOLDER:
            return f"{found.path}/"
        case FileKind.FILE:
            return f"{found.path}  {format_size(found.item.size)}"
        case FileKind.LINK:
            return f"{found.path}  [link, not followed]"
        case FileKind.OTHER:
            return f"{found.path}  [not a regular file]"


def _writable(folder: Folder, path: str) -> FolderPath:
    inside = folder.resolve(path)
    if inside.is_private:
        raise ToolError(f"{inside} belongs to the gateway and is read-only.", "Choose another folder.")
    return inside


def _encoded(content: str) -> bytes:
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise ToolError("The text has half of a surrogate pair, which no file can hold.") from None
