"""What every `SessionProcesses` must do. Run over each sandbox of the machine, and over the shipped fake."""

from __future__ import annotations

import asyncio

import pytest

from talaria.core.errors import ToolError
from talaria.core.ids import TurnId
from talaria.core.shells import ProcessInfo, ProcessStart, ProcessState
from talaria.workspace.processes import SessionProcesses

TURN = TurnId("turn_one")


async def start(processes: SessionProcesses, text: str, *, wakes: bool = False) -> ProcessInfo:
    return await processes.start(ProcessStart(text, TURN, wakes=wakes))


async def ended(processes: SessionProcesses, process_id: str) -> ProcessInfo:
    async with asyncio.timeout(30):
        while True:
            (info,) = [each for each in await processes.list() if each.id == process_id]
            if info.state is not ProcessState.RUNNING:
                return info
            await asyncio.sleep(0.005)


async def printed(processes: SessionProcesses, process_id: str, text: str) -> str:
    """Poll until the process has printed the text, and return all that was polled."""
    seen = ""
    async with asyncio.timeout(30):
        while text not in seen:
            seen += (await processes.poll(process_id)).text
            await asyncio.sleep(0.005)
    return seen


class ProcessSuite:
    """Fixture: `processes`, those of one session."""

    async def test_one_that_ends_has_an_exit_code_and_output(self, processes: SessionProcesses) -> None:
        info = await start(processes, "echo one\necho two\nexit 3")
        assert info.command == "echo one\necho two\nexit 3"
        info = await ended(processes, info.id)
        assert (info.state, info.code, info.written) == (ProcessState.ENDED, 3, 8)
        assert (await processes.poll(info.id)).text == "one\ntwo\n"
        assert (await processes.poll(info.id)).text == "", "only what is new"

    async def test_one_that_runs_is_given_input_until_it_is_closed(self, processes: SessionProcesses) -> None:
        info = await start(processes, "cat")
        assert info.state is ProcessState.RUNNING
        assert await processes.write(info.id, "héllo\n") == 7
        assert await printed(processes, info.id, "llo\n") == "héllo\n"
        assert await processes.write(info.id, "again\n") == 6
        assert await printed(processes, info.id, "again") == "again\n", "a poll goes on where the last ended"
        await processes.write(info.id, None)
        assert (await ended(processes, info.id)).code == 0
        with pytest.raises(ToolError, match="has ended"):
            await processes.write(info.id, "more")

    async def test_a_kill_returns_when_it_is_gone(self, processes: SessionProcesses) -> None:
        info = await start(processes, "echo up\nsleep 1000")
        other = await start(processes, "cat")
        await printed(processes, info.id, "up")
        killed = await processes.kill(info.id)
        assert (killed.state, killed.code) == (ProcessState.ENDED, 143)
        assert (await processes.kill(info.id)) == killed, "once more does nothing"
        assert [each.state.value for each in await processes.list()] == ["ended", "running"]
        await processes.kill(other.id)

    async def test_the_log_is_read_in_pages(self, processes: SessionProcesses) -> None:
        info = await start(processes, "echo 0123456789")
        await ended(processes, info.id)
        page = await processes.log(info.id, None, 4)
        assert (page.text, page.begin, page.end) == ("789\n", 7, 11)
        page = await processes.log(info.id, 2, 4)
        assert (page.text, page.begin, page.end, page.info.written) == ("2345", 2, 6, 11)
        assert (await processes.log(info.id, 500, 4)).text == ""
        assert (await processes.poll(info.id)).text == "0123456789\n", "the log moves no poll"

    @pytest.mark.parametrize("text", ["", " \n ", "echo a\0b"])
    async def test_nothing_to_run_is_refused(self, processes: SessionProcesses, text: str) -> None:
        with pytest.raises(ToolError):
            await start(processes, text)
        assert list(await processes.list()) == []

    async def test_an_unknown_id_is_refused(self, processes: SessionProcesses) -> None:
        for ask in (processes.poll, processes.kill):
            with pytest.raises(ToolError, match="no background process"):
                await ask("p_nobody")
        with pytest.raises(ToolError, match="no background process"):
            await processes.write("../p1", "x")
        with pytest.raises(ToolError, match="no background process"):
            await processes.log("", None, 10)
