"""People who write over HTTP, each message to a gateway at random, and again elsewhere until one accepts it.

The check reads what the chats have in the end: every message is answered, or its failure reported, in the
order of its chat; no turn continues after another has begun in its log; no tool has run twice.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from talaria.core.failpoints import Failpoint
from talaria.testing.simulated_users import MessageKind
from talaria.turns.crashes import MAX_CRASHES
from trial.faults import OF_TURNS, Load
from trial.report import Check, Figure, none_of
from trial.world import TRY_SECONDS, World

_STOP_SECONDS = 4.0
_POISON = "poison"
_ENDED = ("done", "failed", "cancelled")
_GIVEN_UP = f"was tried {MAX_CRASHES} times"
_UNKNOWN = "outcome is unknown"
_NAME = re.compile(r"\bm\d+\b")
_BAD_TOKENS = (None, "wrong", "one-token-for-all-gateways")  # the last one is for gateways alone
# A stopped message never ends by itself; `/stop` follows at another gateway.
_KINDS = [MessageKind.TEXT] * 4 + [MessageKind.TOOL] * 3 + [MessageKind.SLOW, MessageKind.STOP]
_ENTRIES = """
SELECT session_id, turn_id, kind, body FROM entries WHERE turn_id IS NOT NULL ORDER BY session_id, seq
"""
Entries = dict[str, list[tuple[str, str, str]]]  # by session: turn, kind, body


@dataclass(slots=True)
class Said:
    """A message that a gateway has accepted. `kind` is None for one that kills every gateway that runs it."""

    name: str
    chat: str
    kind: MessageKind | None
    turn_id: str = ""


class HttpChats(Load):
    """People in `chats` chats, some of whose messages kill the gateway, and others with a wrong token."""

    points: tuple[Failpoint, ...] = (*OF_TURNS, Failpoint.ACCEPTED)

    def __init__(self, chats: int = 12, poisons: int = 1) -> None:
        self._poisons = poisons
        self._names = itertools.count(1)
        self.said: dict[str, list[Said]] = {f"chat{number}": [] for number in range(chats)}
        self.stops_again = 0
        self.let_in: list[str] = []

    def text_of(self, said: Said) -> str:
        """Return the text of a message, with marks for the scripted model."""
        match said.kind:
            case None:
                return f"{_POISON} {said.name}"
            case MessageKind.TOOL:
                return f'[[call leave_mark {{"name": "{said.name}"}}]][[reply did {said.name}]]'
            case MessageKind.SLOW:
                return f"[[chunks 6]][[chunk-delay 0.1]][[reply {said.name} took its time]]"
            case MessageKind.STOP:
                return f"{said.name} [[hang]]"
            case _:
                return said.name

    # -- talking --------------------------------------------------------------------------------------------

    async def run(self, world: World) -> None:
        async with asyncio.TaskGroup() as tasks:
            for chat in [*self.said]:
                tasks.create_task(self._talk(world, chat), name=chat)
            tasks.create_task(self._intrude(world), name="strangers")

    async def calmed(self, world: World) -> None:
        """Send a message that kills the gateway which runs it, in a chat of its own."""
        if self._poisons:
            self._poisons -= 1
            name = f"m{next(self._names)}"
            said = Said(name, f"{_POISON}{name}", None)
            self.said[said.chat] = [said]
            await self._send(world, said)

    async def _talk(self, world: World, chat: str) -> None:
        random = Random(f"{chat} {world.random.random()}")
        while not world.is_over:
            await world.is_open.wait()
            said = Said(f"m{next(self._names)}", chat, random.choice(_KINDS))
            is_stopped = said.kind is MessageKind.STOP
            if is_stopped and self.said[chat]:  # `/stop` must not hit the turn before it
                await self._until(world, self.said[chat][-1], _ENDED)
            self.said[chat].append(said)
            await self._send(world, said)
            if is_stopped:
                await self._stop(world, said)
            await asyncio.sleep(random.expovariate(1.5))

    async def _stop(self, world: World, said: Said) -> None:
        """Stop a turn that hangs. A person says it again when nothing happens."""
        await self._until(world, said, ("running", "waiting", *_ENDED))
        for number in itertools.count():
            path = f"/api/sessions/{said.chat}/messages"
            await world.call("POST", path, {"text": "/stop"}, f"{said.name}stop{number}")
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._until(world, said, _ENDED)
                    return
            self.stops_again += 1

    async def _until(self, world: World, said: Said, states: Sequence[str]) -> None:
        """Wait until the turn of a message is in one of the states."""
        while said.turn_id:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                if (await world.try_call("GET", f"/api/turns/{said.turn_id}"))["state"] in states:
                    return
            world.check()
            await asyncio.sleep(0.1)

    async def _send(self, world: World, said: Said) -> None:
        path = f"/api/sessions/{said.chat}/messages"
        answer = await world.call("POST", path, {"text": self.text_of(said)}, said.name)
        said.turn_id = answer["turn_id"] if answer is not None else ""

    async def _intrude(self, world: World) -> None:
        """Ask every way in without a right to."""
        async with aiohttp.ClientSession() as session:
            while not world.is_over:
                token = world.random.choice(_BAD_TOKENS)
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = world.random.choice(world.members).gateway.url
                path = world.random.choice(
                    ("/api/sessions/chat0/messages", "/v1/chat/completions", "/api/jobs")
                )
                body = {"text": "intruder", "messages": [{"role": "user", "content": "intruder"}]}
                with suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
                    async with (
                        asyncio.timeout(TRY_SECONDS),
                        session.post(url + path, json=body, headers=headers) as answer,
                    ):
                        if answer.status < 400:
                            self.let_in.append(f"{path} with {token}: {answer.status}")
                await asyncio.sleep(0.3)

    # -- the check ------------------------------------------------------------------------------------------

    def results_below(self, world: World) -> dict[str, list[str]]:
        """Return results of tools in the delegates of messages, by the turns of these."""
        return {}

    async def judge(self, world: World) -> list[Figure]:
        columns = ("id", "state", "reply", "error", "attempts", "session_id")
        rows = world.query(f"SELECT {', '.join(columns)} FROM turns")
        turns = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
        entries: Entries = {}
        for session_id, turn_id, kind, body in world.query(_ENTRIES):
            entries.setdefault(session_id, []).append((turn_id, kind, body))
        effects = Counter(world.effects.read_text().splitlines())
        record = _Judgement(turns, entries, effects, self.results_below(world))
        for said in self.said.values():
            for one in said:
                record.judge_message(one)
            record.judge_order(said)
        record.judge_mixing()
        intruders = world.query("SELECT id FROM turns WHERE inbound LIKE '%intruder%'")
        self.let_in += [str(row[0]) for row in intruders]
        figures = [
            none_of("… messages over HTTP lost", record.lost, Check.LOST),
            none_of("… answered twice", record.duplicated, Check.DUPLICATED),
            none_of("… messages over HTTP out of order", record.out_of_order, Check.ORDER),
            none_of("… effects of their tools repeated", record.repeated, Check.EFFECTS),
            none_of("… messages that kill: not given up after three attempts", record.poisoned, Check.LOST),
            none_of("… strangers with a turn", self.let_in),
            Figure("… messages over HTTP, to all gateways", sum(map(len, self.said.values()))),
            Figure("… requests, with those sent again", world.tries),
            Figure("… `/stop` that had to be said again", self.stops_again),
            Figure("… messages over HTTP given up after three crashes, and reported", record.given_up),
            Figure("… tool calls reported as *outcome unknown*", record.unknown),
        ]
        if world.server and record.broken:
            figures.append(none_of("… sessions with one of these", [world.stories(record.broken)]))
        return figures


class _Judgement:
    """The findings about all messages. `broken` are the sessions that show one."""

    def __init__(
        self,
        turns: dict[str, dict[str, Any]],
        entries: Entries,
        effects: Counter[str],
        below: dict[str, list[str]],
    ) -> None:
        self._below = below
        self._turns = turns
        self._entries = entries
        self._effects = effects
        self.lost: list[str] = []
        self.duplicated: list[str] = []
        self.out_of_order: list[str] = []
        self.poisoned: list[str] = []
        self.repeated = [
            name
            for name, times in effects.items()
            if not name.startswith("job") and times > (MAX_CRASHES if name.startswith(_POISON) else 1)
        ]
        self.given_up = self.unknown = 0
        self.broken: set[str] = set()

    def judge_message(self, said: Said) -> None:
        wrong = len(self.lost) + len(self.duplicated)
        turn = self._turns.get(said.turn_id)
        self._compare(said, turn, f"{said.name} {said.kind} in {said.chat}: {turn}")
        if turn and len(self.lost) + len(self.duplicated) > wrong:
            self.broken.add(turn["session_id"])

    def _compare(self, said: Said, turn: dict[str, Any] | None, told: str) -> None:
        if turn is None:
            self.lost.append(told)
            return
        state, is_given_up = turn["state"], _GIVEN_UP in f"{turn['reply']} {turn['error']}"
        if said.kind is None:
            if state != "failed" or not is_given_up:
                self.poisoned.append(told)
            return
        entries = self._entries.get(turn["session_id"], [])
        mine = [(kind, body) for turn_id, kind, body in entries if turn_id == said.turn_id]
        if sum(kind == "user" for kind, _ in mine) > 1:
            self.duplicated.append(told)
        if state == "failed" and is_given_up:
            self.given_up += 1
            return
        if said.kind is MessageKind.STOP:
            if state != "cancelled":
                self.lost.append(told)
            return
        answers = [json.loads(body) for kind, body in mine if kind == "assistant"]
        finals = [one["text"] for one in answers if not one["tool_calls"]]
        if state != "done" or said.name not in _NAME.findall(str(turn["reply"])):
            self.lost.append(told)
        elif len(finals) != 1:
            self.duplicated.append(f"{told} {finals}")
        if said.kind is MessageKind.TOOL and not self._effects[said.name]:
            self.unknown += 1
            results = [body for kind, body in mine if kind == "tool_results"]
            if not any(_UNKNOWN in body for body in (*results, *self._below.get(said.turn_id, ()))):
                self.lost.append(f"{told}: no effect, and the model was not told")

    def judge_order(self, said: list[Said]) -> None:
        """Check that the log has the messages of a chat in the order in which they were accepted."""
        turns = self._turns
        sessions = dict.fromkeys(turns[one.turn_id]["session_id"] for one in said if one.turn_id in turns)
        logged = [
            turn_id for each in sessions for turn_id, kind, _ in self._entries.get(each, []) if kind == "user"
        ]
        place = {one.turn_id: n for n, one in enumerate(said)}
        numbers = [place[turn_id] for turn_id in dict.fromkeys(logged) if turn_id in place]
        if numbers != sorted(numbers):
            late = [said[b].name for a, b in itertools.pairwise(numbers) if b < a]
            self.out_of_order.append(f"{said[0].chat}: {late}")
            self.broken |= set(sessions)

    def judge_mixing(self) -> None:
        """Check that no turn continues in a log after another one has begun there."""
        for session_id, log in self._entries.items():
            runs = [turn_id for turn_id, _ in itertools.groupby(turn_id for turn_id, _, _ in log)]
            twice = [turn_id for turn_id, times in Counter(runs).items() if times > 1]
            if twice:
                self.out_of_order.append(f"{session_id} continues {twice}")
                self.broken.add(session_id)
