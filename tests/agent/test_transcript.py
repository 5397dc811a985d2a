"""What a model is told of pictures and files, and what is asked of it, by what is known of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.pictures import png
from support.prefixes import PrefixWatch
from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel, ScriptedModels
from talaria.agent.transcript import Transcript, as_told
from talaria.core.clock import SystemClock
from talaria.core.messages import (
    File,
    Image,
    Message,
    Part,
    Text,
    ToolOutcome,
    ToolResult,
    ToolResults,
    UserMessage,
)
from talaria.core.specs import AgentSpec
from talaria.core.turns import Inbound, Sender, Turn, TurnState
from talaria.models.known import Abilities
from talaria.models.openai_chat import OpenAIChat
from talaria.models.settings import FallbackSettings, ModelSettings
from talaria.store.in_memory import MemoryStore
from talaria.workspace.reading import picture_part

IMAGE_INPUT_BYTES = 8 << 10

PHOTO = File("photo.jpg", "inbox/1-photo.jpg", "image/jpeg", 122_880)
SEEN = Image("data:image/jpeg;base64," + "A" * 4000)
PARTS: tuple[Part, ...] = (Text("What is this?"), PHOTO, SEEN)
FILE_TOLD = Text("[file photo.jpg (image/jpeg, 120.0 KiB): there is no tool here to open it with]")
BLIND_TOLD = Text("[image photo.jpg, 120.0 KiB: this model cannot see images]")


def spec(*, sees: bool, tools: tuple[str, ...] = ("read_file",)) -> AgentSpec:
    return AgentSpec("main", "scripted", "m", "openai-chat", "p", tools, "", "", sees)


@pytest.mark.parametrize(
    ("sees", "tools", "told"),
    [
        (True, ("read_file",), PARTS),
        (False, ("read_file",), (PARTS[0], PHOTO, BLIND_TOLD)),
        (True, ("todo",), (PARTS[0], FILE_TOLD, SEEN)),
        (False, (), (PARTS[0], FILE_TOLD, BLIND_TOLD)),
    ],
)
def test_what_is_told_follows_from_the_spec(
    sees: bool, tools: tuple[str, ...], told: tuple[Part, ...]
) -> None:
    message = UserMessage(PARTS, stamp="now")
    assert as_told(message, spec(sees=sees, tools=tools)) == UserMessage(told, stamp="now")


@pytest.mark.parametrize(
    ("sees", "tools", "told"),
    [
        (True, ("read_file",), PARTS),
        (False, ("read_file",), (PARTS[0], PHOTO, BLIND_TOLD)),
        (False, (), (PARTS[0], FILE_TOLD, BLIND_TOLD)),
    ],
)
def test_results_are_told_like_messages(sees: bool, tools: tuple[str, ...], told: tuple[Part, ...]) -> None:
    plain = ToolResult("c2", "todo", "text", ToolOutcome.ERROR)
    results = ToolResults((ToolResult.of("c1", "look", PARTS), plain))
    expected = ToolResults((ToolResult.of("c1", "look", told), plain))
    assert as_told(results, spec(sees=sees, tools=tools)) == expected


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (SEEN, "[image image/jpeg, 2.9 KiB: this model cannot see images]"),
        (Image("https://x/y.png"), "[image https://x/y.png: this model cannot see images]"),
    ],
)
def test_a_picture_that_came_without_a_file_is_named_by_itself(image: Image, told: str) -> None:
    message = UserMessage((Text("Look."), image))
    assert as_told(message, spec(sees=False)) == UserMessage((Text("Look."), Text(told)))


@pytest.mark.parametrize(
    "message",
    [
        lambda *images: UserMessage((Text("a"), *images)),
        lambda *images: ToolResults((ToolResult.of("c", "look", (Text("a"), *images)),)),
    ],
)
def test_a_picture_weighs_what_it_takes_of_a_context_and_not_its_bytes(
    message: Callable[..., Message],
) -> None:
    shown, plain = Transcript(OpenAIChat(), spec(sees=True)), Transcript(OpenAIChat(), spec(sees=True))
    image = Image("data:image/png;base64," + "A" * 1_000_000)
    shown.append(message(image))
    plain.append(message())
    assert shown.size > 1_000_000
    assert IMAGE_INPUT_BYTES < shown.weight < IMAGE_INPUT_BYTES + 1000
    assert plain.weight == plain.size
    shown.clear()
    assert (shown.size, shown.weight) == (0, 0)


async def say(rig: Rig, *parts: Part) -> Turn:
    inbound = Inbound(chat("one"), Sender("ann"), parts)
    return await rig.turns.wait(await rig.turns.submit(inbound))


def users(body: bytes) -> list[Any]:
    return [message["content"] for message in json.loads(body)["messages"] if message["role"] == "user"]


async def test_bytes_of_pictures_and_notes_never_change_within_a_spec() -> None:
    model = ScriptedModel()
    abilities = {"scripted/blind": Abilities(images=False), "scripted/seer": Abilities(images=True)}
    settings = ModelSettings("scripted", "blind")
    async with start(
        MemoryStore(SystemClock()), Path("/nowhere"), model=model, settings=settings, abilities=abilities
    ) as rig:
        for name, shows in (("blind", False), ("seer", True), ("blind", False)):
            await say(rig, Text(f"/model scripted/{name}"))
            begun = len(model.bodies)
            await say(rig, *PARTS)
            await say(rig, Text("And?"))
            watch = PrefixWatch(lambda body: "one")
            watch.see_all(list(model.bodies)[begun:])
            assert not watch.breaks
            assert (SEEN.url in str(users(model.bodies[-1]))) is shows


@pytest.mark.parametrize(
    ("known", "shows"), [(Abilities(), False), (Abilities(images=True, tools=False), True)]
)
async def test_a_fallback_is_shown_pictures_only_if_it_is_known_to_see(known: Abilities, shows: bool) -> None:
    settings = ModelSettings("scripted", "m", fallback=(FallbackSettings("spare", "m"),))
    primary, spare = ScriptedModel(), ScriptedModel(name="spare")
    models = ScriptedModels(primary, {"spare": spare})
    async with start(
        MemoryStore(SystemClock()),
        Path("/nowhere"),
        settings=settings,
        models=models,
        model=primary,
        abilities={"spare/m": known},
    ) as rig:
        primary.is_down = True
        assert (await say(rig, *PARTS)).state is TurnState.DONE
    assert (SEEN.url in str(users(spare.bodies[-1]))) is shows
    assert ("cannot see images" in str(users(spare.bodies[-1]))) is not shows
    assert ("tools" in json.loads(spare.bodies[-1])) is (known.tools is not False)


@pytest.mark.parametrize(
    ("known", "has_tools", "effort"),
    [
        (Abilities(), True, "high"),
        (Abilities(tools=True, reasoning=True), True, "high"),
        (Abilities(tools=False, reasoning=False), False, None),
    ],
)
async def test_nothing_is_asked_of_a_model_that_it_is_known_not_to_have(
    known: Abilities, has_tools: bool, effort: str | None
) -> None:
    settings = ModelSettings("mine", "m")
    model = ScriptedModel()
    async with start(
        MemoryStore(SystemClock()),
        Path("/nowhere"),
        model=model,
        settings=settings,
        abilities={"mine/m": known},
    ) as rig:
        await rig.say("/reasoning high")
        await rig.say("hi")
    sent = json.loads(model.bodies[-1])
    assert ("tools" in sent) is has_tools
    assert sent.get("reasoning_effort") == effort


async def test_the_model_command_and_the_status_tell_what_is_known() -> None:
    abilities = {"scripted/m": Abilities(128_000, images=False)}
    settings = ModelSettings("scripted", "m")
    async with start(
        MemoryStore(SystemClock()), Path("/nowhere"), settings=settings, abilities=abilities
    ) as rig:
        await rig.say("hi")
        for command in ("/model", "/status"):
            reply = (await rig.say(command)).reply
            assert "scripted/m (128,000 tokens of context, tools, no images, reasoning)" in str(reply)


@pytest.mark.parametrize("sees", [True, False])
async def test_a_picture_that_is_read_is_shown_to_a_model_that_sees(tmp_path: Path, sees: bool) -> None:
    (tmp_path / "dot.png").write_bytes(png(3, 2))
    model = ScriptedModel()
    async with start(
        MemoryStore(SystemClock()),
        tmp_path,
        model=model,
        settings=ModelSettings("scripted", "m"),
        abilities={"scripted/m": Abilities(images=sees)},
    ) as rig:
        turn = await rig.say('[[call read_file {"path": "dot.png"}]] [[reply seen]]')
        assert turn.reply == "seen"
        await rig.say("And?")
        watch = PrefixWatch(lambda body: "one")
        watch.see_all(list(model.bodies))
        assert not watch.breaks
    shown = picture_part(png(3, 2))
    assert shown is not None
    for body in list(model.bodies)[1:]:
        [result] = [m["content"] for m in json.loads(body)["messages"] if m["role"] == "tool"]
        assert result.startswith("[dot.png: image/png, 3 × 2 pixels, 69 B]\n[image ")
        assert ("this model cannot see images" in result) is not sees
        assert (shown.url in str(users(body))) is sees
