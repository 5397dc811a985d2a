"""What every backend does, with real processes. Security is in test_escapes.py."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.waiting import until
from talaria.workspace.sandbox import launcher
from talaria.workspace.sandbox.command import Launch, ProcessLimits, Sandbox, SandboxCommand, SandboxError
from talaria.workspace.sandbox.process import Output, Stream, open_process, run
from workspace.sandbox.conftest import Holders, Places


async def test_the_exit_code_and_both_streams_are_told(any_sandbox: Sandbox, places: Places) -> None:
    done = await run(any_sandbox, places.command("echo out; echo err >&2; exit 7"))
    assert (done.ending.code, done.ending.signal, done.ending.timed_out) == (7, None, False)
    assert (done.out, done.err) == (b"out\n", b"err\n")

    done = await run(any_sandbox, places.command("printf", "%s|", "two words", "$HOME"))
    assert (done.ending.code, done.out) == (0, b"two words|$HOME|")


async def test_a_signal_and_a_missing_program_are_told_as_a_shell_does(
    any_sandbox: Sandbox, places: Places
) -> None:
    killed = await run(any_sandbox, places.command("kill -9 $$"))
    assert (killed.ending.code, killed.ending.signal) == (137, signal.SIGKILL)

    missing = await run(any_sandbox, places.command("no-such-program", "x"))
    assert missing.ending.code == 127
    assert b"no-such-program" in missing.err


async def test_its_folders_last_and_its_variables_are_those_that_were_named(
    any_sandbox: Sandbox, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_GATEWAY", "hunter2")
    (places.folder / "sub").mkdir(mode=0o777)
    text = 'pwd; echo a >"$HOME/a"; echo b >"$TMPDIR/b"; echo c >../c; echo "$NAMED"; env'
    named = {"NAMED": "it's $x \n two"}
    done = await run(any_sandbox, places.command(text, environ=named, cwd=places.folder / "sub"))
    assert done.ending.code == 0, done
    first, *_ = done.out.decode().splitlines()
    assert first == str(places.folder / "sub")
    assert "it's $x \n two\n" in done.out.decode()
    assert b"hunter2" not in done.out
    assert [(places.home / "a").read_text(), (places.tmp / "b").read_text()] == ["a\n", "b\n"]
    assert (places.folder / "c").read_text() == "c\n"


async def test_variables_do_not_reach_the_programs_that_confine_it(
    any_sandbox: Sandbox, places: Places
) -> None:
    """A library that the model names in LD_PRELOAD must not run outside, nor before the limits are set."""
    traces = {"LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(places.folder / "trace")}
    done = await run(any_sandbox, places.command("/bin/cat", "/dev/null", environ=traces))
    assert done.ending.code == 0, done
    written = [path.read_text() for path in places.folder.glob("trace.*")]
    assert written
    assert all("/bin/cat" in text for text in written)


async def test_output_comes_while_the_command_runs(any_sandbox: Sandbox, places: Places) -> None:
    async with open_process(any_sandbox, places.command("echo first; exec sleep 1000")) as process:
        async for piece in process.output():
            assert piece == Output(Stream.OUT, b"first\n")
            break


async def test_much_output_needs_little_memory(any_sandbox: Sandbox, places: Places) -> None:
    size = 8 << 20
    tracemalloc.start()
    try:
        done = await run(any_sandbox, places.command(f"head -c {size} /dev/zero"), max_output=1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(done.out), done.dropped) == (1000, size - 1000)
    assert peak < 2 << 20


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    text = (
        "exec 9>held; trap '' TERM INT HUP; (setsid sleep 1000 >&- 2>&- &); echo begun; sleep 1000; sleep 9"
    )
    for seconds in (1.0, 4.0, 16.0, 64.0):  # a loaded machine may need more to begin at all
        done = await run(any_sandbox, places.command(text, limits=ProcessLimits(seconds=seconds)))
        assert done.ending.timed_out
        assert not holders.alive()
        if done.out:
            break
    assert done.out == b"begun\n"


async def test_a_cancelled_command_leaves_no_process(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    begun = asyncio.Event()

    async def follow() -> None:
        text = "exec 9>held; (setsid sleep 1000 &); echo begun; sleep 1000"
        async with open_process(any_sandbox, places.command(text)) as process:
            async for _ in process.output():
                begun.set()

    task = asyncio.create_task(follow())
    await begun.wait()
    assert holders.alive()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not holders.alive()


async def test_what_a_command_leaves_in_the_background_ends_with_it(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    done = await run(any_sandbox, places.command("exec 9>held; (setsid sleep 1000 &) ; sleep 1000 & exit 3"))
    assert done.ending.code == 3
    assert not holders.alive()


async def test_processes_that_start_their_successors_are_ended(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    (places.folder / "again").write_text("setsid sh again &\n")
    done = await run(any_sandbox, places.command("exec 9>held; sh again; sh again; exit 4"))
    assert done.ending.code == 4
    assert not holders.alive()


async def test_the_gateways_death_ends_the_command(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    command = places.command("exec 9>held; (setsid sleep 1000 &); echo begun; sleep 1000")
    gateway = os.fork()
    if gateway == 0:
        try:
            asyncio.run(run(any_sandbox, command))  # this process is killed before that returns
        finally:
            os._exit(1)
    await until(holders.alive)
    os.kill(gateway, signal.SIGKILL)
    os.waitpid(gateway, 0)
    await until(lambda: not holders.alive())


async def test_no_descriptor_is_left(any_sandbox: Sandbox, places: Places) -> None:
    await run(any_sandbox, places.command("true"))  # what is loaded once
    before = len(os.listdir("/proc/self/fd"))
    await run(any_sandbox, places.command("true"))
    with pytest.raises(SandboxError):
        await run(any_sandbox, places.command("true", cwd=places.folder / "gone"))
    assert len(os.listdir("/proc/self/fd")) == before


@dataclass(frozen=True)
class Late:
    """A sandbox whose working folder is removed just before the command starts."""

    inner: Sandbox
    cwd: Path
    name: str = "late"

    def temporary(self, command: SandboxCommand) -> str:
        return self.inner.temporary(command)

    def prepare(self, command: SandboxCommand) -> Launch:
        launch = self.inner.prepare(command)
        self.cwd.rmdir()
        return launch


async def test_the_reason_that_kept_a_command_from_running_is_told(
    any_sandbox: Sandbox, places: Places
) -> None:
    gone = places.folder / 'a "gone" folder'
    gone.mkdir()
    with pytest.raises(SandboxError, match=r"did not start the command: .*No such file"):
        await run(Late(any_sandbox, gone), places.command("echo ran", cwd=gone))


# -- limits


async def test_a_fork_bomb_meets_the_limit_of_processes(
    any_sandbox: Sandbox, places: Places, holders: Holders
) -> None:
    if any_sandbox.name == "none" and os.geteuid() == 0:
        pytest.skip("root has no limit of processes without a sandbox")
    bomb = "exec 9>held; i=0; while [ $i -lt 300 ]; do sleep 1000 & echo; i=$((i+1)); done"
    done = await run(any_sandbox, places.command(bomb, limits=ProcessLimits(processes=40, seconds=100)))
    assert done.ending.code not in (0, None)
    is_counted_alone = os.geteuid() == 0 or any_sandbox.name == "bubblewrap"
    assert 10 < len(done.out) <= (60 if is_counted_alone else 299)  # others of this user come and go
    assert not holders.alive()


async def test_memory_and_the_size_of_files_have_limits(any_sandbox: Sandbox, places: Places) -> None:
    limits = ProcessLimits(memory=256 << 20, file_size=1 << 20, seconds=100)
    done = await run(any_sandbox, places.python("bytearray(512 << 20)", limits))
    assert b"MemoryError" in done.err

    done = await run(any_sandbox, places.command("head -c 3000000 /dev/zero >big", limits=limits))
    assert done.ending.code != 0
    assert (places.folder / "big").stat().st_size == 1 << 20


# -- bad input


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("",), "The command is empty."),
        (("  \n",), "The command is empty."),
        (("a\0b",), "The command has a NUL byte."),
        (("echo", "\ud800"), "The command is not valid Unicode text."),
        (("x" * (1 << 20),), "The command is too long: one word may have 128 KiB, all of them 1 MiB."),
        (
            ("echo", *["x" * 100_000] * 11),
            "The command is too long: one word may have 128 KiB, all of them 1 MiB.",
        ),
    ],
    ids=["empty", "blank", "nul", "surrogate", "a long word", "many words"],
)
async def test_bad_words_are_refused_before_anything_runs(
    any_sandbox: Sandbox, places: Places, words: tuple[str, ...], text: str
) -> None:
    with pytest.raises(SandboxError) as refused:
        await run(any_sandbox, places.command(*words))
    assert (refused.value.user_text, bool(refused.value.hint)) == (text, True)


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A=B", "ENV", "BASH_ENV", "IFS", "x\0"])
async def test_names_of_variables_that_a_shell_does_not_take_are_refused(
    any_sandbox: Sandbox, places: Places, name: str
) -> None:
    with pytest.raises(SandboxError, match="A variable cannot be named"):
        await run(any_sandbox, places.command("true", environ={name: "x"}))


async def test_folders_that_a_command_could_replace_by_a_link_are_refused(
    any_sandbox: Sandbox, places: Places, tmp_path: Path
) -> None:
    inner = places.folder / "home"
    inner.mkdir()
    with pytest.raises(SandboxError, match="lies in another one"):
        await run(any_sandbox, Places(places.folder, inner, places.tmp).command("true"))
    link = tmp_path / "link"
    link.symlink_to(places.home)
    with pytest.raises(SandboxError, match="goes through a link"):
        await run(any_sandbox, Places(places.folder, link, places.tmp).command("true"))
    with pytest.raises(SandboxError, match="is gone"):
        await run(any_sandbox, Places(places.folder, places.home, tmp_path / "no").command("true"))


async def test_a_command_that_prints_faster_than_it_is_read_runs_out_of_time(
    any_sandbox: Sandbox, places: Places
) -> None:
    limits = ProcessLimits(seconds=0.1)
    pieces = 0
    async with open_process(any_sandbox, places.command("exec yes", limits=limits)) as process:
        async for _ in process.output():
            pieces += 1
            await asyncio.to_thread(hashlib.sha256, bytes(4 << 20))  # so there is always a next piece
            if pieces > 100:
                break
        assert pieces <= 100
        assert (await process.wait()).timed_out


def test_a_process_that_ends_while_threads_are_counted_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    threads = len(os.listdir("/proc/self/task"))
    monkeypatch.setattr(os, "listdir", lambda path: [str(ended.pid), str(os.getpid())])
    assert launcher._count_threads(os.geteuid()) == threads
