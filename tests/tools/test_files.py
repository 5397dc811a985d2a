from __future__ import annotations

import os
import re
from collections.abc import Callable

import pytest

from support.pictures import gif, jpeg, png, webp
from talaria.core.errors import ToolError
from talaria.core.messages import Text
from talaria.tools.files import find_passage
from talaria.workspace.reading import picture_part
from tools.conftest import SETTINGS, ToolCaller

MAX_PICTURE_BYTES = 5 * (1 << 20) // 4 * 3


async def test_a_written_file_can_be_read_edited_and_listed(caller: ToolCaller) -> None:
    assert await caller.ok("write_file", path="src/a.py", content="x = 1\n") == (
        "Wrote 6 bytes to src/a.py (a new file)."
    )
    assert await caller.ok("edit_file", path="src/a.py", old="1", new="2") == "Edited src/a.py at line 1."
    assert await caller.ok("read_file", path="src/a.py") == "x = 2\n"
    assert (
        await caller.ok("write_file", path="src/a.py", content="") == "Wrote 0 bytes to src/a.py (replaced)."
    )
    assert await caller.ok("read_file", path="src/a.py") == "[The file is empty.]"
    assert await caller.ok("list_files", pattern="**") == "src/\nsrc/a.py  0 B"


async def test_a_long_file_is_read_whole_by_following_its_notes(caller: ToolCaller) -> None:
    content = "".join(f"line {n} {'x' * (n % 90)}\n" for n in range(1, 3000)) + "y" * 50_000 + "\nend"
    caller.folder.mkdir()
    (caller.folder / "long.txt").write_text(content)
    arguments: dict[str, int] = {}
    read = ""
    while True:
        text = await caller.ok("read_file", path="long.txt", **arguments)
        assert len(text.encode()) <= SETTINGS.max_result
        note = re.search(r"\n?\[Lines \d+ to \d+ of 3001\. To go on: (.*)\.\]$", text)
        if note is None:
            break
        arguments = {name: int(value) for name, value in (pair.split("=") for pair in note[1].split(", "))}
        read += text[: note.start()] + ("" if "column" in arguments else "\n")
    assert read + text == content
    assert not (caller.folder / ".talaria").exists()


async def test_offset_and_limit_choose_lines_and_the_note_says_how_to_go_on(caller: ToolCaller) -> None:
    await caller.ok("write_file", path="n.txt", content="1\n2\n3\n4\n")
    text = await caller.ok("read_file", path="n.txt", offset=2, limit=2)
    assert text == "2\n3\n[Lines 2 to 3 of 4. To go on: offset=4.]"
    assert await caller.ok("read_file", path="n.txt", offset=4, limit=2) == "4\n"
    assert await caller.error("read_file", path="n.txt", offset=9) == "Error: It has only 4 lines."
    assert "at least 1" in await caller.error("read_file", path="n.txt", offset=0)


async def test_a_binary_file_is_refused_and_broken_text_is_shown_as_far_as_it_goes(
    caller: ToolCaller,
) -> None:
    caller.folder.mkdir()
    (caller.folder / "b.bin").write_bytes(b"\x89PNG\0\0")
    (caller.folder / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    assert "binary" in await caller.error("read_file", path="b.bin")
    assert await caller.ok("read_file", path="latin.txt") == "Gr\ufffd\ufffde"


@pytest.mark.parametrize("make", [png, jpeg, gif, webp])
async def test_a_picture_is_shown(caller: ToolCaller, make: Callable[..., bytes]) -> None:
    caller.folder.mkdir()
    (caller.folder / "a.txt").write_bytes(make(640, 480))
    result = await caller.result("read_file", path="a.txt")
    about, shown = result.parts
    assert isinstance(about, Text)
    assert about.text.startswith("[a.txt: image/")
    assert "640 × 480 pixels" in about.text
    assert shown == picture_part(make(640, 480))


async def test_a_picture_that_is_too_large_says_so(caller: ToolCaller) -> None:
    caller.folder.mkdir()
    (caller.folder / "wide.png").write_bytes(png(9000, 10))
    (caller.folder / "heavy.png").write_bytes(png() + bytes(MAX_PICTURE_BYTES))
    wide = await caller.error("read_file", path="wide.png")
    assert "9000 × 10 pixels" in wide
    assert "8000 pixels on each side" in wide
    assert "too large" in await caller.error("read_file", path="heavy.png")


async def test_a_text_that_begins_like_a_picture_is_a_text(caller: ToolCaller) -> None:
    await caller.ok("write_file", path="a.txt", content="GIF89a is an old format.")
    assert await caller.ok("read_file", path="a.txt") == "GIF89a is an old format."


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": "a", "new": "b"}),
        ("list_files", {}),
        ("search_files", {"pattern": "x"}),
    ],
)
@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "~/x", "a\0b"])
async def test_no_tool_leaves_the_folder(
    caller: ToolCaller, name: str, arguments: dict[str, str], path: str
) -> None:
    secret = caller.folder.parent / "secret.txt"
    secret.write_text("secret a")
    await caller.error(name, path=path, **arguments)
    assert secret.read_text() == "secret a"


@pytest.mark.parametrize("path", [".talaria/todo/x.json", ".talaria", "./.talaria/x", "a/../.talaria/x"])
async def test_the_gateways_own_files_are_read_only(caller: ToolCaller, path: str) -> None:
    assert "read-only" in await caller.error("write_file", path=path, content="x")
    assert "read-only" in await caller.error("edit_file", path=path, old="a", new="b")


async def test_an_edit_that_is_not_unique_says_where_it_would_fit(caller: ToolCaller) -> None:
    await caller.ok("write_file", path="a.txt", content="x\ny\nx\n")
    text = await caller.error("edit_file", path="a.txt", old="x", new="z")
    assert text == "Error: `old` occurs 2 times (at lines 1, 3). Add lines around it until it is unique."
    assert "not in the file" in await caller.error("edit_file", path="a.txt", old="nope", new="z")
    assert "empty" in await caller.error("edit_file", path="a.txt", old="", new="z")
    assert "nothing to change" in await caller.error("edit_file", path="a.txt", old="y", new="y")
    assert await caller.ok("read_file", path="a.txt") == "x\ny\nx\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("a\nb\n", "a\nb", "c\nd", "c\nd\n"),
        ("a\r\nb\r\n", "a\nb", "c\nd", "c\r\nd\r\n"),
        ("a\r\nb\r\n", "a\r\nb", "c\r\nd", "c\r\nd\r\n"),
        ("a\r\nb\r\n", "b", "b\nc", "b\r\nc\r\n"),
        ("a\nb\r\nc\n", "b\r\n", "x\r\n", "x\r\nc\n"),
        ("a\r\nb\nc\r\n", "b\nc", "d\ne", "d\ne\r\n"),
        ("one two", "two", "", "one "),
    ],
)
def test_an_edit_keeps_the_line_endings(before: str, old: str, new: str, after: str) -> None:
    content = before.encode()
    at, found, put = find_passage(content, old.encode(), new.encode())
    assert (content[:at] + put + content[at + len(found) :]).endswith(after.encode())


def test_overlapping_occurrences_count_as_two() -> None:
    with pytest.raises(ToolError, match="2 times"):
        find_passage(b"aaa", b"aa", b"b")


async def test_an_edit_leaves_all_other_bytes_as_they_are(caller: ToolCaller) -> None:
    caller.folder.mkdir()
    (caller.folder / "x").write_bytes(b"\xff\xfe old \xe9\r\n\tend")
    await caller.ok("edit_file", path="x", old="old", new="new ✓")
    assert (caller.folder / "x").read_bytes() == b"\xff\xfe new " + "✓".encode() + b" \xe9\r\n\tend"


async def test_a_listing_shows_kinds_and_odd_names_on_one_line_each(caller: ToolCaller) -> None:
    (caller.folder / "dir").mkdir(parents=True)
    (caller.folder / "two\nlines").write_text("x")
    (caller.folder / "link").symlink_to("/etc")
    with (caller.folder / "bad").open("wb"):
        pass
    (caller.folder / "bad").rename(str(caller.folder) + "/bad\udcff")
    os.mkfifo(caller.folder / "pipe")
    text = await caller.ok("list_files")
    assert text == (
        "bad\\udcff  0 B\ndir/\nlink  [link, not followed]\npipe  [not a regular file]\ntwo\\nlines  1 B"
    )


async def test_a_long_listing_says_that_it_is_cut(caller: ToolCaller) -> None:
    caller.folder.mkdir()
    for n in range(1001):
        (caller.folder / f"{n:04}").touch()
    *lines, note = (await caller.ok("list_files")).splitlines()
    assert len(lines) == 1000
    assert note == "[More than 1000: not all are listed. Narrow the path or the pattern.]"


async def test_an_empty_folder_and_a_missing_one_are_told_apart(caller: ToolCaller) -> None:
    assert await caller.ok("list_files") == "[Nothing there matches.]"
    assert "There is no nowhere" in await caller.error("list_files", path="nowhere")
