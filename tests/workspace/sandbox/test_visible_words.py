"""No process shows other users of the machine the command or the chat in its words."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from talaria.workspace.sandbox.command import Sandbox, shell
from talaria.workspace.sandbox.process import open_process, run
from workspace.sandbox.conftest import Places

TEXT = 'echo ready; read -r line; echo "got $line"; : a-private-command'


def words_of_all() -> str:
    """Return the words of every process of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(found)


@pytest.mark.parametrize("has_state", [False, True], ids=["text", "script"])
async def test_no_process_shows_the_command_or_its_folders(
    any_sandbox: Sandbox, places: Places, has_state: bool
) -> None:
    command = places.command(TEXT, has_input=True, cwd=places.folder)
    if has_state:  # as the session's shell runs it
        script = f'cd -- {places.folder} && eval "$1"'
        command = replace(command, argv=("/bin/sh", "-c", script, "sh", TEXT))
    async with open_process(any_sandbox, command) as process:
        output = process.output()
        assert (await anext(output)).content == b"ready\n"
        shown = words_of_all()
        assert "a-private-command" not in shown
        assert str(places.folder) not in shown and str(places.tmp) not in shown
        await process.write(b"it\n")
        assert (await anext(output)).content == b"got it\n"


async def test_a_text_runs_as_if_it_were_an_argument_of_the_shell(
    any_sandbox: Sandbox, places: Places
) -> None:
    text = 'echo "$0 $# $(env | grep -c TALARIA_)"\necho "two $1"\nexit 7'
    done = await run(any_sandbox, places.command(text))
    assert (done.out, done.err, done.ending.code) == (b"/bin/sh 0 0\ntwo \n", b"", 7)
    argv = ("/bin/sh", "-c", 'eval "$1"', "sh", text)
    done = await run(any_sandbox, replace(places.command(text), argv=argv))
    assert (done.out.splitlines()[0], done.ending.code) == (b"sh 1 0", 7)
    assert shell(text)[-1] == text
