"""Memory in whole gateways: who is shown what, when running sessions hear of it, and no prefix breaks."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.gateway import without_http
from support.prefixes import PrefixWatch
from support.waiting import until
from talaria.core.access import OWNER
from talaria.core.ids import JOBS_CHANNEL, ChatAddress, ChatKey
from talaria.core.memory import MemoryPlace, TurnMemory
from talaria.core.messages import File, Text
from talaria.core.redaction import Secret, SecretRegistry
from talaria.core.settings import Parts
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.gateway import Gateway
from talaria.parts import PARTS
from talaria.testing.keyword_memory import KeywordMemory
from talaria.testing.model_server import ModelServer
from talaria.tools.part import ToolPart
from talaria.tools.settings import ToolSettings

PAGE = ChatKey("agent:main:http:api:page")
OTHER = ChatKey("agent:main:http:api:other")
ANNA = ChatKey("agent:main:telegram:dm:2")
GROUP = ChatKey("agent:main:telegram:group:-5")


@dataclass(frozen=True, slots=True)
class MemoryGateway:
    home: Path
    server: ModelServer
    gateway: Gateway

    async def say(self, key: ChatKey, text: str, **more: Any) -> Turn:
        sender = Sender("api", is_operator=True) if ":http:" in key else Sender(key.split(":")[4])
        inbound = Inbound(key, sender, (Text(text),), **more)
        done = await self.gateway.turns.wait(await self.gateway.turns.submit(inbound))
        assert done.state is TurnState.DONE, done.error
        return done

    async def remember(self, key: ChatKey, text: str, page: str = "MEMORY.md") -> None:
        call = json.dumps({"action": "add", "text": text, "page": page})
        await self.say(key, f"[[call memory {call}]][[reply ok]]")

    @property
    def last(self) -> list[dict[str, Any]]:
        """The messages of the last request."""
        return list(json.loads(self.server.bodies[-1])["messages"])

    @property
    def prompt(self) -> str:
        return str(self.last[0]["content"])

    @property
    def notes(self) -> list[str]:
        return [str(each["content"]) for each in self.last if "[Note: the memory" in str(each["content"])]

    def page(self, name: str = "main/MEMORY.md") -> str:
        return (self.home / "memory" / name).read_text()


@asynccontextmanager
async def life(
    home: Path,
    server: ModelServer,
    *,
    tables: Mapping[str, Any] | None = None,
    secrets: SecretRegistry | None = None,
    parts: Parts = PARTS,
) -> AsyncIterator[MemoryGateway]:
    async with without_http(home, server, tables=tables, parts=parts, secrets=secrets) as gateway:
        yield MemoryGateway(home, server, gateway)


async def test_a_new_session_begins_with_what_an_earlier_one_wrote_down(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.remember(PAGE, "Likes green tea.", "USER.md")
        assert "green tea" not in world.prompt
        result = json.loads(world.server.bodies[-1])["messages"][-1]["content"]
        assert re.fullmatch(r"USER\.md was changed:\n\+ Likes green tea\. \(\d{4}-\d\d-\d\d\)", result)
        session = (await world.say(PAGE, "/new")).session_id
        await world.say(PAGE, "hello")
        assert re.search(r"## USER\.md\n- Likes green tea\. \(\d{4}-\d\d-\d\d\)$", world.prompt)
        assert world.notes == []
        written = world.page("main/USER.md")
        assert "<!-- 20" in written and session not in written and "ses_" in written


async def test_a_running_session_hears_of_a_change_once_and_not_of_its_own(tmp_path: Path) -> None:
    async with ModelServer() as server:
        async with life(tmp_path, server) as world:
            await world.say(PAGE, "hello")
            await world.remember(OTHER, "Has a cat.")
            await world.say(OTHER, "more")
            assert world.notes == [], "its own edit"
            await world.say(PAGE, "and now?")
            assert len(world.notes) == 1 and "\n+ Has a cat. (" in world.notes[0]
            await world.say(PAGE, "again")
            assert len(world.notes) == 1
            (tmp_path / "memory" / "main" / "MEMORY.md").write_text("- Has a dog.\n")
            await world.say(PAGE, "by hand")
            assert len(world.notes) == 2
            assert "\n+ Has a dog.\n- Has a cat. (" in world.notes[1]
        async with life(tmp_path, server) as world:
            await world.say(PAGE, "after a restart")
            assert len(world.notes) == 2
            await world.say(OTHER, "after a restart")
            assert len(world.notes) == 1 and "\n+ Has a dog.\n- Has a cat. (" in world.notes[0]


async def test_what_went_back_while_the_gateway_was_down_is_told(tmp_path: Path) -> None:
    async with ModelServer() as server:
        async with life(tmp_path, server) as world:
            await world.say(PAGE, "hello")
            await world.remember(OTHER, "Has a cat.")
            await world.say(PAGE, "and now?")
        (tmp_path / "memory" / "main" / "MEMORY.md").unlink()
        async with life(tmp_path, server) as world:
            await world.say(PAGE, "after a restart")
            assert len(world.notes) == 2 and "\n- Has a cat. (" in world.notes[1]


async def test_a_note_that_was_undone_is_told_again(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.say(PAGE, "hello")
        await world.remember(OTHER, "Has a cat.")
        await world.say(PAGE, "and now?")
        await world.say(PAGE, "/undo")
        await world.say(PAGE, "once more")
        assert len(world.notes) == 1


async def test_reload_takes_memory_into_the_prefix_and_tells_nothing(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.say(PAGE, "hello")
        await world.remember(OTHER, "Has a cat.")
        await world.say(PAGE, "/reload")
        await world.say(PAGE, "and now?")
        assert "Has a cat." in world.prompt and world.notes == []


async def test_what_one_person_said_is_never_shown_to_another(tmp_path: Path) -> None:
    chats = {"owner": PAGE, "anna": ANNA, "group": GROUP}
    async with ModelServer() as server, life(tmp_path, server) as world:
        for name, key in chats.items():
            await world.say(key, "hello")
            await world.remember(key, f"{name} said this.")
        for key in (PAGE, ANNA):
            await world.remember(key, "private to a person", "USER.md")
        for name, key in chats.items():
            await world.say(key, '[[call memory {"action":"read"}]][[reply ok]]')
            await world.say(key, "/new")
            await world.say(key, "hello")
            assert f"{name} said this." in world.prompt
            others = [other for other in chats if other != name]
            for body in server.bodies:
                messages = json.dumps(json.loads(body)["messages"])
                if f"{name} said this." in messages:
                    assert not any(f"{other} said this." in messages for other in others)
        assert "private to a person" not in world.prompt, "the group is last"
        topic = ChatKey(f"{GROUP}:7")
        await world.say(topic, "hello")
        assert "group said this." in world.prompt


async def test_in_a_group_the_page_about_a_person_is_refused(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.remember(GROUP, "Anna is 40.", "USER.md")
        assert "USER.md is not used here" in world.last[-1]["content"]
        assert not list(tmp_path.rglob("USER.md"))


async def test_secrets_are_taken_out_of_what_is_written_and_read(tmp_path: Path) -> None:
    secrets = SecretRegistry([Secret("the key", "s3cret-value-of-the-gateway")])
    async with ModelServer() as server, life(tmp_path, server, secrets=secrets) as world:
        await world.say(PAGE, '[[call memory {"action":"add","text":"key s3cret-value-of-the-gateway"}]] x')
        assert "s3cret-value" not in world.page()
        (tmp_path / "memory" / "main" / "USER.md").write_text("- by hand: s3cret-value-of-the-gateway\n")
        await world.say(PAGE, "/new")
        await world.say(PAGE, "hello")
        assert "by hand" in world.prompt
        assert not any(b"s3cret-value" in body for body in server.bodies)


async def test_without_the_family_nothing_is_remembered(tmp_path: Path) -> None:
    tables = {"tools": {"enabled": ["files"]}}
    (tmp_path / "memory" / "main").mkdir(parents=True)
    (tmp_path / "memory" / "main" / "MEMORY.md").write_text("- Has a cat.\n")
    async with ModelServer() as server, life(tmp_path, server, tables=tables) as world:
        await world.say(PAGE, "hello")
        assert "cat" not in world.prompt and b'"memory"' not in server.bodies[-1]


async def test_no_memory_write_breaks_a_prefix(tmp_path: Path) -> None:
    """Two chats of one person write and read by turns, with edits by hand in between, over two lives."""
    async with ModelServer() as server:
        for times in range(2):
            async with life(tmp_path, server, tables={"pool": {"max_agents": 1}}) as world:
                for turn in range(4):
                    for chat in (PAGE, OTHER, ANNA):
                        name = chat.rpartition(":")[2]
                        await world.remember(chat, f"<{name}> fact {times} {turn}")
                    with (tmp_path / "memory" / "main" / "MEMORY.md").open("a") as file:
                        file.write(f"- by hand {times} {turn}\n")
        watch = PrefixWatch(_chat_of)
        watch.see_all(server.bodies)
        assert watch.breaks == []
        assert len(watch.requests) == 3


def _chat_of(raw: bytes) -> str:
    said = next(each for each in json.loads(raw)["messages"] if each["role"] == "user")
    found = re.search("<(page|other|2)>", said["content"])
    assert found
    return found[1]


async def test_the_command_shows_edits_and_clears(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:

        async def reply(text: str, key: ChatKey = PAGE) -> str:
            return (await world.say(key, text)).reply or ""

        assert (await reply("/memory")).count("Nothing is remembered.") == 2
        assert re.fullmatch(
            r"MEMORY\.md was changed:\n\+ Has a cat\. \([-\d]+\)", await reply("/memory add Has a cat.")
        )
        assert "Has a cat. <!-- 20" in await reply("/memory")
        assert "MEMORY.md says so already." in await reply("/memory add has a CAT.")
        assert "+ Is 40." in await reply("/memory user add Is 40.")
        assert "- Is 40." in await reply("/memory user replace is 40 => Is 41.")
        assert "MEMORY.md has no such fact." in await reply("/memory forget dog")
        assert "Say it like this: `/memory" in await reply("/memory frobnicate")
        assert "Has a cat" not in await reply("/memory", ANNA)
        assert "USER.md" not in await reply("/memory", GROUP)
        assert "USER.md is not used here" in await reply("/memory user add x", GROUP)
        assert "- Is 41." in await reply("/memory user clear")
        assert "Is 41." in next((tmp_path / "memory/main/earlier").iterdir()).read_text()
        await world.say(PAGE, "hello")
        assert "Has a cat." in "".join(world.notes), "the model did not see the command"


# -- another provider --------------------------------------------------------------------------------------


class Troubled(KeywordMemory):
    """Fails, and then hangs, before each turn; fails after it."""

    async def prefetch(self, turn: TurnMemory) -> str:
        raise RuntimeError("no answer")

    async def sync(self, turn: TurnMemory, answer: str) -> None:
        raise RuntimeError("no room")


def with_memory(provider: KeywordMemory) -> Parts:
    part = ToolPart(
        name="memory",
        table=("tools",),
        settings=ToolSettings,
        open=lambda scope, settings: nullcontext(provider),
    )
    return tuple(part if each.name == "memory" else each for each in PARTS)


async def test_a_provider_that_follows_turns_is_asked_before_and_told_after(tmp_path: Path) -> None:
    memory = KeywordMemory()
    async with ModelServer() as server:
        async with life(tmp_path, server, parts=with_memory(memory)) as world:
            assert b'"recollect"' not in b"".join(server.bodies)
            await world.say(PAGE, "the garden gate is green")
            assert b'"recollect"' in server.bodies[-1] and b'"name":"memory"' not in server.bodies[-1]
            assert world.gateway.turns.memories is not None
            await world.gateway.turns.memories.close()
            await world.say(OTHER, "which garden?")
            assert "the garden gate is green" in json.dumps(world.last)
            await world.say(ANNA, "which garden?")
            assert "gate is green" not in json.dumps(world.last)
            await world.say(PAGE, "garden by a job", is_unattended=True)
        said = list(memory.said[MemoryPlace("main", OWNER)].values())
        assert "the garden gate is green" in said and "which garden?" in said
        assert not any("by a job" in text for text in said), "nobody attended"


class Counted(KeywordMemory):
    asked = 0

    async def prefetch(self, turn: TurnMemory) -> str:
        self.asked += 1
        return "nothing new"


async def test_a_turn_with_several_model_calls_asks_the_provider_once(tmp_path: Path) -> None:
    memory = Counted()
    async with ModelServer() as server, life(tmp_path, server, parts=with_memory(memory)) as world:
        before = len(server.bodies)
        assert (await world.say(PAGE, "[[call recollect {}]][[reply fine]]")).reply == "fine"
        assert (len(server.bodies) - before, memory.asked) == (2, 1)


async def test_a_provider_in_trouble_keeps_no_turn_from_its_answer(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server, parts=with_memory(Troubled())) as world:
        assert (await world.say(PAGE, "[[reply fine]]")).reply == "fine"


# -- full pages --------------------------------------------------------------------------------------------


def fill(home: Path) -> Path:
    """A page with room for less than one more fact."""
    path = home / "memory" / "main" / "MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"- fact {number:02} {'x' * 190}\n" for number in range(40)))
    return path


async def test_a_full_page_is_shortened_by_a_counted_call_and_the_page_before_is_kept(tmp_path: Path) -> None:
    path = fill(tmp_path)
    before = path.read_text()
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.remember(PAGE, "the new fact" + " y" * 60)
        told = world.last[-1]["content"]
        assert re.match(r"MEMORY\.md was full, and was shortened from 8\d\d\d to 4\d\d\d bytes\.", told)
        assert "\n- fact 01 x" in told, "what is left out is said"
        after = path.read_text()
        assert len(after.encode()) < 6000 and "the new fact" in after and "fact 00" in after
        kept = next((path.parent / "earlier").iterdir()).read_text()
        assert kept.strip() == before.strip()
        assert len(server.bodies) == 3, "the call beside the answers is one"
        await world.say(PAGE, "again")
        assert world.notes == []
        assert "4 model calls" in ((await world.say(PAGE, "/usage")).reply or "")


async def test_a_full_page_that_cannot_be_shortened_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = fill(tmp_path)
    path.write_text("No list:\n" + path.read_text())
    before = path.read_text()
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.remember(PAGE, "the new fact" + " y" * 60)
        told = world.last[-1]["content"]
        assert "MEMORY.md is full" in told and "did not answer with a list" in told
        assert path.read_text() == before and not (path.parent / "earlier").exists()
        assert "is full" in ((await world.say(PAGE, "/memory add " + "z" * 300)).reply or "")


async def test_a_cap_on_spending_holds_for_shortening_too(tmp_path: Path) -> None:
    path = fill(tmp_path)
    before = path.read_text()
    tables = {
        "budgets": {"per_day_usd": 0.1, "assumed_output": 100},
        "prices": {"scripted/scripted": {"input": 1.0, "output": 40.0}},
    }
    async with ModelServer() as server, life(tmp_path, server, tables=tables) as world:
        await world.remember(PAGE, "the new fact" + " y" * 60)
        told = world.last[-1]["content"]
        assert "MEMORY.md is full" in told and "It was not shortened: " in told
        assert path.read_text() == before and len(server.bodies) == 2


# -- trust -------------------------------------------------------------------------------------------------


async def test_content_from_outside_writes_no_memory_without_an_approval(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        add = '[[call memory {"action":"add","text":"The page says so."}]][[reply ok]]'
        sent = File("a.txt", "a.txt", "text/plain", 1)
        inbound = Inbound(PAGE, Sender("api", is_operator=True), (Text(add), sent))
        turns = world.gateway.turns
        live = await turns.submit(inbound)
        await until(live.open_questions, pause=0)
        (question,) = live.open_questions()
        assert "The page says so." in question.text and "Untrusted content" in question.text
        assert not (tmp_path / "memory").exists()
        reading = await world.say(OTHER, '[[call memory {"action":"read"}]][[reply read]]')
        assert reading.reply == "read"
        await world.say(PAGE, "/approve")
        assert (await turns.wait(live)).state is TurnState.DONE
        assert "The page says so." in world.page()
        await world.say(PAGE, '[[call memory {"action":"read"}]][[reply read]]')
        assert "The page says so." in world.last[-1]["content"], "reading is never asked about"
        unattended = Inbound(PAGE, Sender("api"), (Text(add.replace("so", "more")),), is_unattended=True)
        await turns.wait(await turns.submit(unattended))
        assert "nobody attends this turn" in world.last[-1]["content"]
        assert "says more" not in world.page()


async def test_a_job_remembers_for_the_chat_that_asked_for_it(tmp_path: Path) -> None:
    async with ModelServer() as server, life(tmp_path, server) as world:
        await world.remember(ANNA, "Anna likes tea.")
        await world.say(ChatAddress("main", JOBS_CHANNEL, "new", "job_1", ANNA).key(), "hello")
        assert "Anna likes tea." in world.prompt
        await world.remember(ChatAddress("main", JOBS_CHANNEL, "new", "job_1", GROUP).key(), "Of the group.")
        await world.say(GROUP, "hello")
        assert "Of the group." in world.prompt and "Anna" not in world.prompt


# -- compaction --------------------------------------------------------------------------------------------


async def test_a_compaction_takes_memory_into_the_prefix(tmp_path: Path) -> None:
    tables = {"models": {"scripted/*": {"context": 12_000, "tools": True}}}
    long = "word " * 600
    async with ModelServer() as server, life(tmp_path, server, tables=tables) as world:
        await world.say(PAGE, "hello")
        await world.remember(PAGE, "Wrote this itself.")
        await world.remember(OTHER, "Has a cat.")
        await world.say(PAGE, "and now?")
        assert len(world.notes) == 1 and "Has a cat." not in world.prompt
        for number in range(40):
            done = await world.say(PAGE, f"message {number} {long}")
            if "[Compacted from" in (done.reply or ""):
                break
        assert "Has a cat." in world.prompt and "Wrote this itself." in world.prompt
        heard = len(world.notes)  # the first note may stand in what is kept
        await world.say(PAGE, "next")
        assert len(world.notes) == heard
        await world.remember(OTHER, "Has a dog.")
        await world.say(PAGE, "next")
        assert "+ Has a dog." in world.notes[-1] and "cat" not in world.notes[-1]
        assert "Has a dog." not in world.prompt
