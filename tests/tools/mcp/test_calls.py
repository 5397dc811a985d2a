from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from support.mcp_world import McpWorld, open_world, scripted
from support.waiting import until
from talaria.core.events import ToolOutput
from talaria.core.messages import File, Image, Text


async def test_a_model_uses_a_server_and_reads_clean_results(tmp_path: Path) -> None:
    async with open_world(tmp_path, {"one": scripted("--resources", "--noise")}) as world:
        await world.ready()
        assert await world.ok("mcp_one_echo", text="héllo") == "héllo"
        assert "arguments.text: 'nothing' should not be" in await world.error("mcp_one_echo", text="nothing")
        assert await world.ok("mcp_one_ansi") == "red esrever tag end"
        assert await world.error("mcp_one_fail") == "Error: ValueError: it does not work"
        listed = await world.ok("mcp_one_resources")
        assert "note://one (one)" in listed
        assert await world.ok("mcp_one_resources", uri="note://one") == "[resource note://one]\nthe note one"
        await _a_picture_and_a_file_are_kept(world)
        result = await world.result("mcp_one_echo", text="x")
        assert result.untrusted
        assert {tool.spec.origin for tool in world.source.tools()} == {"mcp:one"}


async def _a_picture_and_a_file_are_kept(world: McpWorld) -> None:
    result = await world.result("mcp_one_picture")
    text, image, file, link = result.parts
    assert text == Text("three")
    assert isinstance(image, Image)
    assert image.url.startswith("data:image/png;base64,")
    assert isinstance(file, File)
    assert file.media_type == "application/x-data"
    assert (world.folder / file.path).read_bytes() == b"\x00\x01\x02"
    assert link == Text("[resource note://one: one]")


async def test_progress_is_shown_and_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with open_world(tmp_path, {"one": scripted(), "two": scripted()}) as world:
        await world.ready("one", "two")
        assert await world.ok("mcp_one_slow", seconds=0) == "done"
        shown = [event.text for event in world.events if isinstance(event, ToolOutput)]
        assert "1 of 2: step 1\n" in "".join(shown)
        assert "".join(shown).count("2 of 2") == 1  # the server says it twice
        hanging = [asyncio.create_task(world.result(f"mcp_one_{name}")) for name in ("hang", "late")]
        await until(lambda: world.source.servers()["one"].calls == 3)
        assert await world.ok("mcp_two_echo", text="served") == "served"
        assert await world.ok("mcp_one_echo", text="served too") == "served too"
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        counted = ""
        async with asyncio.timeout(30):
            while counted != "2":  # the notices are on their way
                counted = await world.ok("mcp_one_cancelled")
        assert await world.ok("mcp_one_echo", text="x") == "x"  # and not the late answer
        assert world.source.servers()["one"].starts == 1


async def test_a_server_sees_its_own_folder_its_named_variables_and_no_network(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    environ = {"TOKEN": "sk-12345678", "OPENROUTER_API_KEY": "sk-secret", "PATH": "/usr/bin:/bin"}
    server = scripted(env={"API_KEY": "key ${TOKEN}"})
    listener = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with listener, open_world(tmp_path, {"one": server}, environ=environ) as world:
        await world.ready()
        facts = json.loads(await world.ok("mcp_one_who"))
        assert facts["cwd"] == str(world.home / "mcp/servers/one") == facts["environ"]["HOME"]
        assert facts["environ"]["API_KEY"] == "key sk-12345678"
        assert "sk-secret" not in json.dumps(facts)
        assert "wrote" in await world.ok("mcp_one_write", path="own.txt")
        (world.home / "http.token").write_text("a secret")
        for path in (world.home / "http.token", shared / "x", world.folder / "x", tmp_path / "x"):
            assert "Error" in await world.error("mcp_one_write", path=str(path))
        assert "Error" in await world.error("mcp_one_reach", host="127.0.0.1", port=port)
        assert (world.home / "http.token").read_text() == "a secret"


async def test_a_server_writes_where_the_settings_let_it_and_never_at_the_gateways_home(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    if (uid := shared.stat().st_uid) == 0:
        os.chown(shared, 65534, 65534)
        uid = 65534
    bad = scripted(writable=(str(tmp_path),))
    async with open_world(tmp_path, {"one": scripted(writable=(str(shared),)), "bad": bad}) as world:
        await world.ready()
        assert "wrote" in await world.ok("mcp_one_write", path=str(shared / "x"))
        assert (shared / "x").stat().st_uid == uid
        await until(lambda: world.state("bad") == "refused")
        assert "the gateway's home" in world.source.servers()["bad"].trouble


@pytest.mark.parametrize("setting", ["writable", "readable"])
async def test_a_server_is_refused_a_folder_behind_a_link_that_a_command_may_have_planted(
    tmp_path: Path, setting: str
) -> None:
    """The folder is in the project of a chat, whose commands replace it by a link to other files."""
    project, private = tmp_path / "project", tmp_path / "private"
    for path in (project, private / "data"):
        path.mkdir(parents=True)
    (project / "out").symlink_to(private)
    os.chown(project / "out", os.geteuid() or 65534, -1, follow_symlinks=False)
    planted = scripted(**{setting: (str(project / "out" / "data"),)})
    async with open_world(tmp_path, {"one": planted}) as world:
        await until(lambda: world.state("one") == "refused")
        assert f"{project / 'out'} is a link" in world.source.servers()["one"].trouble


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a link that belongs to root")
async def test_a_server_may_use_a_folder_behind_a_link_of_root(tmp_path: Path) -> None:
    """Some distributions have /home as a link."""
    shared = tmp_path / "real" / "shared"
    shared.mkdir(parents=True)
    os.chown(shared, 65534, 65534)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    server = scripted(writable=(str(tmp_path / "link" / "shared"),))
    async with open_world(tmp_path, {"one": server}) as world:
        await world.ready()
        assert "wrote" in await world.ok("mcp_one_write", path=str(shared / "x"))
