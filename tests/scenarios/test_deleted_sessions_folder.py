"""Somebody deletes `sessions` in the home of a running gateway. Open sessions continue without a restart."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from support.gateway import running_gateway
from support.waiting import until
from talaria.testing.gateway_process import GatewayProcess
from talaria.workspace.sandbox.bubblewrap import BubblewrapSandbox
from talaria.workspace.sandbox.choice import prove
from talaria.workspace.sandbox.command import Sandbox
from talaria.workspace.sandbox.landlock import LandlockSandbox

if sys.platform != "linux":
    pytest.skip("sandboxes are for Linux", allow_module_level=True)


async def _call(gateway: GatewayProcess, tool: str, **arguments: object) -> str:
    return str((await gateway.say("one", f"[[call {tool} {json.dumps(arguments)}]]"))["reply"])


def _running(home: Path) -> list[str]:
    """Return the commands of the home's background processes that run, whatever files they have."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(home / "files"):
                found.append((process / "cmdline").read_bytes().decode())
    return found


@pytest.mark.parametrize("sandbox", [BubblewrapSandbox(), LandlockSandbox()], ids=lambda each: each.name)
async def test_open_sessions_continue_after_their_folder_was_deleted(sandbox: Sandbox) -> None:
    if reason := (await prove(sandbox, Path("/nowhere"))).why_not:
        pytest.skip(reason)
    config = f'[tools]\nenabled = ["terminal", "files"]\nsandbox = "{sandbox.name}"\n'
    async with running_gateway(config=config) as (gateway, _):
        assert "first" in await _call(gateway, "terminal", command="echo first; echo x >$TMPDIR/x")
        await _call(gateway, "terminal", command="sleep 1000", background=True)
        await _call(gateway, "write_file", path="note", content="one")
        shutil.rmtree(gateway.home / "sessions")
        assert "second\n[Exit code 0.]" in await _call(gateway, "terminal", command="ls $TMPDIR; echo second")
        assert "typed" in await _call(gateway, "terminal", command="echo typed", tty=True)
        await _call(gateway, "terminal", command="sleep 1001", background=True)
        assert "note" in await _call(gateway, "write_file", path="note", content="two")
        assert "two\n[Exit code 0.]" in await _call(gateway, "terminal", command="cat note; echo")
        await _call(gateway, "terminal", command="cd /usr; export KEPT=1")
        assert "/usr 1" in await _call(gateway, "terminal", command='echo "$PWD $KEPT"')
        assert {word for line in _running(gateway.home) for word in line.split("\0")} >= {"1000", "1001"}
        await gateway.call("POST", f"/api/sessions/{(await gateway.say('one', 'bye'))['session_id']}/end")
        await until(lambda: not _running(gateway.home))
