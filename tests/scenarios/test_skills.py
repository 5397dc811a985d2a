"""Skills in whole gateways: new sessions know of them, no prefix breaks, and their scripts run confined."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scenarios.test_memory import OTHER, PAGE, MemoryGateway, life
from skills.skill_makers import add_skill, make_skill
from support.prefixes import PrefixWatch
from support.proved_sandbox import proved
from talaria.core.ids import SessionId
from talaria.core.shells import ShellCommand
from talaria.skills.library import SkillLibrary
from talaria.skills.pins import SkillsInUse, readable_folders
from talaria.testing.model_server import ModelServer
from talaria.workspace.folder import chat_folder
from talaria.workspace.shell import SessionCommands
from talaria.workspace.workspaces import ChatWorkspaces

READ = '[[call skill {"name":"greet"}]][[reply read]]'


def tools_of(world: MemoryGateway) -> list[str]:
    return [tool["function"]["name"] for tool in json.loads(world.server.bodies[-1]).get("tools", ())]


async def test_a_running_session_keeps_its_prefix_and_new_ones_know_of_skills(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.say(PAGE, "hello")
        assert "skill" not in tools_of(world) and "# Skills" not in world.prompt
        library = SkillLibrary(tmp_path / "skills")
        changes: list[Callable[[], object]] = [
            lambda: add_skill(tmp_path),
            lambda: add_skill(tmp_path, "other"),
            lambda: make_skill(library.root, "greet", "Changed by hand."),
            lambda: library.accept(library.find("greet")),
            lambda: library.remove(library.find("other")),
        ]
        watch = PrefixWatch(lambda raw: "page")
        watch.see_all(server.bodies)
        for change in changes:
            change()
            seen = len(server.bodies)
            await world.say(PAGE, "and now?")
            await world.say(OTHER, "/new")
            watch.see_all(list(server.bodies)[seen:])
        assert watch.breaks == [] and watch.requests["page"] == 6
        await world.say(OTHER, "hello")
        assert world.prompt.endswith("\n- greet: Changed by hand.")
        assert "skill" in tools_of(world)
        await world.say(PAGE, "/reload")
        await world.say(PAGE, "once more")
        assert world.prompt.endswith("\n- greet: Changed by hand.") and "skill" in tools_of(world)


async def test_a_skill_is_called_by_its_name_and_shadows_no_command(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        for name in ("greet", "status", "reset", "b2b"):
            add_skill(tmp_path, name)
        await world.say(PAGE, "/greet Anna")
        said = str(world.last[-1]["content"])
        assert "Anna\n\n[Use the skill greet for this: read it with the tool `skill`" in said
        await world.say(PAGE, "/b2b")
        assert "Use the skill b2b" in str(world.last[-1]["content"])
        asked = len(server.bodies)
        assert "Agent main with" in ((await world.say(PAGE, "/status")).reply or "")
        assert "New session" in ((await world.say(PAGE, "/reset")).reply or "")
        helped = (await world.say(PAGE, "/help")).reply or ""
        assert "/greet [TEXT]: Greets people. (skill)" in helped and helped.count("/status") == 1
        assert len(server.bodies) == asked


async def test_without_the_family_nothing_is_told(tmp_path: Path) -> None:
    add_skill(tmp_path)
    tables = {"tools": {"enabled": ["files"]}}
    async with ModelServer() as server, life(tmp_path, server, tables=tables) as world:
        await world.say(PAGE, "hello")
        assert "# Skills" not in world.prompt and "skill" not in tools_of(world)
        assert "no command /greet" in ((await world.say(PAGE, "/greet")).reply or "")


async def test_a_script_of_a_skill_runs_in_the_sandbox_and_cannot_change_it(tmp_path: Path) -> None:
    home = Path(os.path.realpath(tmp_path))
    add_skill(home)
    copy = SkillsInUse(home / "skills").copy_of("greet")
    commands = SessionCommands(await proved(), readable=partial(readable_folders, home))
    workspaces = ChatWorkspaces(home, (), commands)
    shell = workspaces.open(SessionId("ses_1"), PAGE).shell
    said = bytearray()

    async def take(piece: bytes) -> None:
        said.extend(piece)

    tries = f"{copy}/scripts/hello.sh Anna; touch {copy}/x; chmod u+w {copy}/SKILL.md; ls {home / 'skills'}"
    await shell.run(ShellCommand(tries, 20), take)
    await workspaces.close()
    text = said.decode()
    assert f"hello Anna from {chat_folder(home, PAGE)}" in text
    assert "pins.json" not in text and "made" not in text
    assert not (copy / "x").exists()
    assert (copy / "SKILL.md").stat().st_mode & 0o777 == 0o444


async def test_a_session_reads_what_counts_now(tmp_path: Path) -> None:
    add_skill(tmp_path)
    library = SkillLibrary(tmp_path / "skills")
    async with ModelServer() as server, life(tmp_path, server) as world:

        async def read() -> str:
            await world.say(PAGE, READ)
            return str(world.last[-1]["content"])

        assert "Say hello." in await read()
        make_skill(library.root, body="Say goodbye.")
        assert "Say hello." in await read()
        library.accept(library.find("greet"))
        assert "Say goodbye." in await read()
        library.remove(library.find("greet"))
        assert "There is no tool 'skill'" in await read()


async def test_skills_without_room_in_the_prompt_are_found(tmp_path: Path) -> None:
    for number in range(24):
        add_skill(tmp_path, f"skill-{number:02}", "Handles something else. " * 8)
    add_skill(tmp_path, "zebra", "Draws stripes on animals.")
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.say(PAGE, '[[call tool_search {"query":"stripes on animals"}]][[reply found]]')
        assert "zebra" not in world.prompt and "tool_search` finds them." in world.prompt
        assert len(world.prompt[world.prompt.index("# Skills") :].encode()) <= 4096
        assert "zebra" in str(world.last[-1]["content"])
        await world.say(PAGE, '[[call skill {"name":"zebra"}]][[reply read]]')
        assert "Say hello." in str(world.last[-1]["content"])
