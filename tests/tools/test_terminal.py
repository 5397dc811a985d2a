"""The tool `terminal` and the file tools over one tree, with real commands in the sandbox of this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path
from shutil import rmtree

import msgspec
import pytest

from support.proved_sandbox import proved
from support.waiting import until
from talaria.core.errors import ToolError
from talaria.core.events import Event, ToolOutput
from talaria.core.ids import ChatAddress, SessionId
from talaria.core.limits import Limits, LimitSettings
from talaria.core.messages import ToolCall, ToolOutcome, ToolResult
from talaria.core.shells import ShellCommand
from talaria.core.units import Size, format_size
from talaria.parts import builtin_tools
from talaria.tools.settings import ToolSettings
from talaria.workspace.sandbox.command import ProcessLimits
from talaria.workspace.shell import SessionCommands, SessionShell
from talaria.workspace.workspaces import ChatWorkspace, ChatWorkspaces
from tools.conftest import bound

KEY = ChatAddress("main", "test", "dm", "someone").key()
A, B = SessionId("ses_a"), SessionId("ses_b")
LIMITS = ProcessLimits(memory=512 << 20, processes=64)


@dataclass
class Terminal:
    """The built-in tools of one session, called as a model calls them."""

    workspaces: ChatWorkspaces
    settings: ToolSettings = field(default_factory=ToolSettings)
    limits: Limits = field(default_factory=Limits)
    session_id: SessionId = A
    events: list[Event] = field(default_factory=list)
    numbers: count[int] = field(default_factory=count)

    @property
    def handle(self) -> ChatWorkspace:
        return self.workspaces.open(self.session_id, KEY)

    async def call(self, name: str, **arguments: object) -> ToolResult:
        over_a_fake = bound(
            builtin_tools(self.settings),
            self.handle.folder,
            self.session_id,
            self.settings,
            self.events,
            self.limits,
        )
        tools = msgspec.structs.replace(over_a_fake, workspace=self.handle)
        text = msgspec.json.encode(arguments).decode()
        return await tools.run(ToolCall(f"call_{next(self.numbers)}", name, text))

    async def run(self, command: str, **more: object) -> str:
        return (await self.call("terminal", command=command, **more)).text

    def shown(self) -> str:
        return "".join(each.text for each in self.events if isinstance(each, ToolOutput))


@pytest.fixture
async def terminal(tmp_path: Path) -> AsyncIterator[Terminal]:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    workspaces = ChatWorkspaces(home, (), SessionCommands(await proved(), limits=LIMITS))
    yield Terminal(workspaces)
    assert not list(home.rglob(".talaria-*")), "a command left its state behind"


# -- output and end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo out; echo err >&2", "out\nerr\n[Exit code 0.]"),
        ("printf 'no line end'; exit 3", "no line end\n[Exit code 3.]"),
        ("true", "[Exit code 0.]"),
        ("kill -SEGV $$", "[Ended by SIGSEGV (exit code 139).]"),
        ("no-such-program", "sh: line 1: no-such-program: command not found\n[Exit code 127.]"),
        ("echo one\nfalse", "one\n[Exit code 1.]"),
        (r"printf '\033[31mred\033[0m \033]0;title\007plain\a'", "red plain\n[Exit code 0.]"),
        (r"printf '10%%\r50%%\r100%%\n'", "100%\n[Exit code 0.]"),
        (r"printf '\342\202'; sleep 0.01; printf '\254'", "€\n[Exit code 0.]"),
    ],
)
async def test_a_result_has_the_output_as_plain_text_and_the_end_in_words(
    terminal: Terminal, command: str, text: str
) -> None:
    assert await terminal.run(command) == text


async def test_output_is_shown_as_it_comes(terminal: Terminal) -> None:
    fifo = terminal.handle.folder / "fifo"
    await terminal.run("mkfifo fifo")
    running = asyncio.create_task(terminal.run("echo first; cat fifo"))
    await until(lambda: "first" in terminal.shown())
    assert not running.done()
    fifo.write_text("second\n")
    assert await running == "first\nsecond\n[Exit code 0.]"
    assert terminal.shown() == "first\nsecond\n"


async def test_at_its_time_limit_a_command_ends_with_all_its_processes_and_its_output_stays(
    terminal: Terminal,
) -> None:
    command = "trap '' TERM INT HUP; echo begun; (setsid sleep 1000 &) ; while :; do sleep 1000; done"
    text = await terminal.run(command, timeout=3)  # time for `echo` on a busy machine
    said = "Ended after 3 seconds, its time limit: every process of it was killed."
    assert text == f"begun\n[{said}]"


async def test_no_command_gets_more_time_than_the_settings_allow(terminal: Terminal) -> None:
    terminal.settings = ToolSettings(max_command_timeout=timedelta(seconds=1))
    assert "[Ended after 1 seconds" in await terminal.run("sleep 1000", timeout=5000)


async def test_a_cancelled_call_leaves_no_process(terminal: Terminal) -> None:
    await terminal.run("mkfifo alive")
    fifo = terminal.handle.folder / "alive"
    running = asyncio.create_task(terminal.run("exec 3<>alive; echo begun; sleep 1000 & sleep 1000"))
    await until(lambda: "begun" in terminal.shown())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(OSError, match="No such device"):  # a writer would find a reader otherwise
        os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)


async def test_the_middle_of_a_long_output_is_in_a_file_that_can_be_read_on(terminal: Terminal) -> None:
    text = await terminal.run("seq 1 20000")
    assert len(text.encode()) <= terminal.settings.max_result
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("19999\n20000\n[Exit code 0.]")
    note = next(line for line in text.splitlines() if line.startswith("[The middle"))
    assert "The whole result has 106.3 KiB in 20000 lines and is in .talaria/results/terminal-" in note
    next_line = int(note.split("offset=")[1].split(")")[0])
    path = note.split(" is in ")[1].partition(":")[0]
    page = await terminal.call("read_file", path=path, offset=next_line, limit=1)
    assert page.text.startswith(f"{next_line}\n")
    assert f"\n{next_line}\n" not in text
    assert await terminal.run(f"wc -l < {path}") == "20000\n[Exit code 0.]", "the shell sees it too"


async def test_a_folder_that_is_gone_or_belongs_to_root_is_made_again(
    terminal: Terminal,
) -> None:
    folder = Path(terminal.handle.folder)
    assert await terminal.run("echo one > a; cat a") == "one\n[Exit code 0.]"
    rmtree(folder)
    assert await terminal.run("cat a || echo two > b; cat b") == (
        "cat: a: No such file or directory\ntwo\n[Exit code 0.]"
    )
    rmtree(folder)
    folder.mkdir(mode=0o700)
    (folder / "c").write_text("three\n")
    assert await terminal.run("echo four >> c; cat c") == "three\nfour\n[Exit code 0.]"


async def test_output_that_has_no_room_in_the_chats_folder_is_cut(terminal: Terminal) -> None:
    terminal.limits = Limits(LimitSettings(chat_files=Size(1 << 20)))
    text = await terminal.run("head -c 5000000 /dev/zero | tr '\\0' x")
    kept = re.search(r"Its first (.*) are in (.*)[.] The chat's folder is full: it has \1 in", text)
    assert kept is not None
    size = (Path(terminal.handle.folder) / kept[2]).stat().st_size
    assert 0 < size <= 1 << 20
    assert kept[1] == format_size(size)
    assert text.endswith("x\n[Exit code 0.]")


async def test_output_in_a_full_folder_is_not_kept(terminal: Terminal) -> None:
    terminal.limits = Limits(LimitSettings(chat_files=Size(1024)))
    text = await terminal.run("head -c 50000 /dev/zero | tr '\\0' x")
    assert "It was not kept. The chat's folder is full: it has 0 B in " in text
    assert text.endswith("x\n[Exit code 0.]")


async def test_output_that_is_no_text_is_told_by_its_length(terminal: Terminal) -> None:
    text = await terminal.run("head -c 3000 /dev/zero | tr '\\0' '\\377'; echo; head -c 50000 /dev/urandom")
    assert text.startswith("[3000 bytes that are not text]\n")
    assert len(text.encode()) <= terminal.settings.max_result


# -- state --------------------------------------------------------------------------------------------------


async def test_directory_and_variables_last_and_a_failed_or_killed_command_breaks_neither(
    terminal: Terminal,
) -> None:
    await terminal.run("mkdir -p a/b; cd a; export ONE='x  y' TWO=$'l1\\nl2'; unset LANG; exit 5")
    assert await terminal.run('pwd; echo "$ONE|$TWO|$LANG|"') == (
        f"{terminal.handle.folder}/a\nx  y|l1\nl2||\n[Exit code 0.]"
    )
    await terminal.run("cd b; export ONE=lost; kill -9 $$")
    await terminal.run("cd b; set -eu; false")
    text = await terminal.run('pwd; echo "$ONE"')
    assert text == f"{terminal.handle.folder}/a/b\nx  y\n[Exit code 0.]"


async def test_a_state_is_kept_that_a_commands_own_trap_would_have_replaced(terminal: Terminal) -> None:
    assert await terminal.run("trap 'echo bye' EXIT; cd /usr") == "bye\n[Exit code 0.]"
    assert await terminal.run("pwd") == "/usr\n[Exit code 0.]"


async def test_a_directory_that_is_gone_is_told_and_the_command_runs_in_the_folder(
    terminal: Terminal,
) -> None:
    folder = terminal.handle.folder
    await terminal.run("mkdir gone; cd gone; rmdir ../gone")
    told = f"[The working folder {folder}/gone is gone. This runs in {folder}.]"
    assert await terminal.run("pwd") == f"{told}\n{folder}\n[Exit code 0.]"
    assert await terminal.run("pwd") == f"{folder}\n[Exit code 0.]"


@pytest.mark.parametrize("state", ["", "[]", "{", '{"cwd": 3}', '{"cwd": "/", "changed": 1, "removed": 2}'])
async def test_a_state_that_cannot_be_read_is_none(terminal: Terminal, state: str) -> None:
    await terminal.run("cd /usr")
    terminal.handle.places.shell_state.write_text(state)
    assert await terminal.run("pwd") == f"{terminal.handle.folder}\n[Exit code 0.]"


async def test_a_command_cannot_put_something_else_in_the_place_of_its_state(terminal: Terminal) -> None:
    """It may write what it likes, since the state is its own; but only a file, and only so much."""
    await terminal.run("cd /usr")
    for trick in (
        "ln -s /etc/passwd $dump",
        "mkdir $dump",
        "mkfifo $dump",
        "head -c 900000 /dev/zero >$dump",
        "printf 'not absolute\\0BAD NAME=1\\0IFS=x\\0' >$dump",
    ):
        find = "grep -o '[^ ]*/[.]talaria-[0-9a-f]*' $TMPDIR/traps | head -n 1"
        text = await terminal.run(f"cd /; trap >$TMPDIR/traps; dump=$({find}); test $dump || exit 3; {trick}")
        assert "[Exit code 0." in text
        assert (await terminal.handle.shell.state()).cwd == "/usr", trick
    terminal.handle.places.shell_state.unlink()  # the last one said that all variables were unset
    await terminal.run("rm -rf $TMPDIR/.talaria-*")


async def test_home_lasts_for_the_chat_and_tmp_for_the_session(terminal: Terminal) -> None:
    await terminal.run("echo mine >~/note; echo passing >$TMPDIR/note")
    assert await terminal.run("cat ~/note $TMPDIR/note") == "mine\npassing\n[Exit code 0.]"
    other = Terminal(terminal.workspaces, session_id=B)
    assert (await other.run("cat ~/note; ls $TMPDIR/note")).startswith("mine\nls: cannot")
    places = terminal.handle.places
    await terminal.workspaces.end(terminal.session_id)
    assert not places.tmp.exists()
    assert (await terminal.run("cat ~/note; ls $TMPDIR/note")).startswith("mine\nls: cannot")


# -- bad input ----------------------------------------------------------------------------------------------

FORK_BOMB = "b() { b | b & }; b 2>/dev/null; wait 2>/dev/null; sleep 1000"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("", "Error: The command is empty. Say what to run."),
        (" \n\t ", "Error: The command is empty. Say what to run."),
        ("echo \0x", "Error: The command has a NUL byte. Write such bytes to a file, and name the file."),
        ("echo " + "x" * (1 << 20), "Error: The command is too long: "),
        ("\x01\x02\x7f", "command not found\n[Exit code 127.]"),
        ("\ufffd\u202e\U0010ffff", "command not found\n[Exit code 127.]"),
        ("if", "syntax error"),
        ("'", "unexpected EOF while looking for matching"),
        ("exec 1>&- 2>&-; echo gone", "[Exit code 1.]"),
    ],
)
async def test_bad_commands_are_clear_results(terminal: Terminal, command: str, says: str) -> None:
    result = await terminal.call("terminal", command=command)
    assert says in result.text
    assert len(result.text) < 1000
    assert await terminal.run("echo goes on") == "goes on\n[Exit code 0.]"


@pytest.mark.parametrize("timeout", [0, -1, "soon", 1.5, [1]])
async def test_a_bad_time_limit_is_told(terminal: Terminal, timeout: object) -> None:
    result = await terminal.call("terminal", command="true", timeout=timeout)
    assert result.outcome is ToolOutcome.ERROR
    assert "arguments.timeout must be" in result.text


async def test_a_fork_bomb_ends_with_its_command(terminal: Terminal) -> None:
    assert "[Ended after 1 seconds" in await terminal.run(FORK_BOMB, timeout=1)
    assert await terminal.run("echo goes on") == "goes on\n[Exit code 0.]"


async def test_a_command_that_fills_its_memory_ends_alone(terminal: Terminal) -> None:
    text = await terminal.run("head -c 700000000 /dev/zero | tail -c 699999999 | wc -c")
    assert "memory exhausted" in text or "cannot allocate" in text.lower() or "SIGKILL" in text
    assert await terminal.run("echo goes on") == "goes on\n[Exit code 0.]"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_a_full_disk_is_told_and_the_gateway_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "full"
    home.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "tmpfs", str(home)]
    if shutil.which("mount") is None or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        terminal = Terminal(ChatWorkspaces(home, (), SessionCommands(await proved(), limits=LIMITS)))
        text = await terminal.run("cd /usr; head -c 5000000 /dev/zero >$HOME/full; echo code $?")
        assert "No space left on device\ncode 1\n[Exit code 0." in text
        assert "seq 1" not in await terminal.run("seq 1 20000"), "the output has no room either"
        await terminal.run("rm $HOME/full")
        assert "room again\n[Exit code 0.]" in await terminal.run("echo room again")
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True, capture_output=True)


# -- on a terminal ------------------------------------------------------------------------------------------


async def test_a_command_gets_a_terminal_when_it_asks_for_one(terminal: Terminal) -> None:
    asks = "test -t 0 && test -t 1 && test -t 2 && stty size && echo typed >/dev/tty"
    assert await terminal.run(asks, tty=True) == "24 80\ntyped\n[Exit code 0.]"
    assert await terminal.run("test -t 0 || test -t 1; cat") == "[Exit code 0.]"


async def test_a_program_that_waits_for_input_is_named(terminal: Terminal) -> None:
    pieces: list[bytes] = []

    async def sink(piece: bytes) -> None:
        pieces.append(piece)

    shell = SessionShell(terminal.handle.places, terminal.workspaces.commands, patience=0.2)
    end = await shell.run(ShellCommand("printf 'Password: '; sleep 0.5; cat; echo never", 100, True), sink)
    assert (end.waited, b"".join(pieces)) == ("cat", b"Password: ")
    end = await shell.run(ShellCommand("sleep 0.5", 100, True), sink)
    assert (end.waited, end.code) == ("", 0), "it waits, but for nobody"


# -- the same tree ------------------------------------------------------------------------------------------


async def test_files_of_the_file_tools_are_the_shells_and_the_other_way_round(terminal: Terminal) -> None:
    await terminal.call("write_file", path="new/by tool.txt", content="tool\n")
    text = await terminal.run(
        "cd new; echo shell >>'by tool.txt'; mkdir sub; echo made >sub/f; touch x; rm x"
    )
    assert text == "[Exit code 0.]"
    await terminal.call("write_file", path="new/sub/f", content="replaced\n")
    await terminal.call("write_file", path="new/sub/g", content="beside\n")
    edited = await terminal.call("edit_file", path="new/by tool.txt", old="shell", new="both")
    assert edited.outcome is ToolOutcome.OK
    cat = "cat 'by tool.txt' sub/f sub/g && echo more >>sub/f && rm -r sub && find . -not -user $(id -u)"
    assert await terminal.run(cat) == "tool\nboth\nreplaced\nbeside\n[Exit code 0.]"


async def test_an_edit_is_exact_or_refused(terminal: Terminal) -> None:
    await terminal.run(r"printf 'def f():\n    return  1\n\treturn 1\n' >f.py")
    for old in ("return 2", "return 1\n\treturn", "    return 1", "DEF f", "def f( ):"):
        result = await terminal.call("edit_file", path="f.py", old=old, new="x")
        assert "`old` is not in the file." in result.text, old
    assert (
        "`old` occurs 2 times" in (await terminal.call("edit_file", path="f.py", old="return ", new="x")).text
    )


@pytest.mark.parametrize(
    ("make", "path", "says"),
    [
        ("mkfifo odd", "odd", "odd is not a regular file. Pipes, sockets and devices cannot be used."),
        ("ln -s odd odd", "odd", "odd is a symbolic link, which is not followed."),
        ("ln -s /etc/passwd odd", "odd", "odd is a symbolic link, which is not followed."),
        ("ln -s . odd", "odd/f", "odd is a symbolic link, which is not followed."),
        ("echo x >one; ln one odd", "odd", "odd is a hard link"),
        ("truncate -s 3G odd", "odd", "odd has 3.0 GiB: too large for this tool."),
        ("mkdir odd", "odd", "odd is a folder, not a file."),
        ("head -c 9000 /dev/urandom >odd; printf '\\0' >>odd", "odd", "binary"),
    ],
)
async def test_odd_files_that_a_command_made_are_refused_in_words(
    terminal: Terminal, make: str, path: str, says: str
) -> None:
    assert await terminal.run(make) == "[Exit code 0.]"
    result = await terminal.call("read_file", path=path)
    assert result.outcome is ToolOutcome.ERROR
    assert says in result.text
    for name in ("list_files", "search_files"):
        arguments = {"pattern": "x"} if name == "search_files" else {}
        assert (await terminal.call(name, **arguments)).outcome is ToolOutcome.OK


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
async def test_a_file_without_permissions_is_refused_in_words(terminal: Terminal) -> None:
    await terminal.run("echo x >odd")
    # Not by a command: in Landlock, commands of the gateway's own user cannot change permissions.
    (Path(terminal.handle.folder) / "odd").chmod(0)
    assert "odd: Permission denied." in (await terminal.call("read_file", path="odd")).text


async def test_a_closed_folder_of_a_session_goes_with_it(terminal: Terminal) -> None:
    await terminal.run("mkdir -p $TMPDIR/a/b; chmod 0 $TMPDIR/a/b $TMPDIR/a")
    session = terminal.handle.places.session
    await terminal.workspaces.end(terminal.session_id)
    assert not session.exists()


async def test_commands_are_refused_with_the_hint_where_no_sandbox_holds(tmp_path: Path) -> None:
    from talaria.workspace.sandbox.choice import Sandboxes

    terminal = Terminal(ChatWorkspaces(tmp_path, (), SessionCommands(Sandboxes("ssh", tmp_path))))
    result = await terminal.call("terminal", command="true")
    assert result.outcome is ToolOutcome.ERROR
    assert result.text == (
        'Error: tools.sandbox = "ssh" is not built yet, so commands are refused. Set tools.sandbox to "auto".'
    )
    with pytest.raises(ToolError):
        await terminal.workspaces.commands.sandboxes.get()
