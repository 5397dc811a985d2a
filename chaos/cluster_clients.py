"""Clients that spread the messages of many chats over all gateways of a cluster, and a check of the answers.

A client sends the messages of a chat one after another, each to a gateway at random, with an idempotency key.
It tries again elsewhere until a gateway has accepted the message. The check reads what the chats have in the
end.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Any

import aiohttp

from chaos.cluster_world import ClusterWorld
from talaria.turns.crashes import MAX_CRASHES

_TRY_SECONDS = 2.5
_STOP_SECONDS = 4.0
_POISON = "poison"
_ENDED = ("done", "failed", "cancelled")
_GIVEN_UP = f"was tried {MAX_CRASHES} times"
_UNKNOWN = "outcome is unknown"
_NAME = re.compile(r"\bm\d+\b")
_BAD_TOKENS = (None, "wrong", "one-token-for-all-gateways")  # the last one is for gateways alone


class SaidKind(StrEnum):
    TEXT = "text"
    TOOL = "tool"  # leaves a line in a file, wherever it runs
    SLOW = "slow"
    STOPPED = "stopped"  # never ends by itself; `/stop` follows at another gateway
    POISON = "poison"  # kills every gateway that runs it


@dataclass(slots=True)
class Said:
    """A message that a gateway has accepted."""

    name: str
    chat: str
    kind: SaidKind
    turn_id: str = ""


@dataclass(slots=True)
class ClusterReport:
    """What became of the messages and jobs. The lists should be empty."""

    said: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    let_in: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    poisoned: list[str] = field(default_factory=list)
    jobs: int = 0
    missed_jobs: list[str] = field(default_factory=list)
    doubled_jobs: list[str] = field(default_factory=list)
    given_up: int = 0
    unknown: int = 0
    tries: int = 0
    stops_again: int = 0
    broken: set[str] = field(default_factory=set)  # sessions that show one of these


class ClusterClients:
    """People in `chats` chats."""

    def __init__(self, world: ClusterWorld, random: Random, chats: int) -> None:
        self._world = world
        self._random = random
        self._chats = [f"chat{number}" for number in range(chats)]
        self._names = itertools.count(1)
        self._is_over = False
        self._kinds = [SaidKind.TEXT] * 4 + [SaidKind.TOOL] * 3 + [SaidKind.SLOW, SaidKind.STOPPED]
        self.said: dict[str, list[Said]] = {chat: [] for chat in self._chats}
        self.jobs: list[str] = []
        self.report = ClusterReport()

    # -- talking --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Talk in all chats until `stop`. Each message that was begun is brought to its acceptance."""
        async with asyncio.TaskGroup() as tasks:
            for chat in self._chats:
                tasks.create_task(self._talk(chat), name=chat)
            tasks.create_task(self._make_jobs(), name="jobs")
            tasks.create_task(self._intrude(), name="strangers")

    def stop(self) -> None:
        self._is_over = True

    async def poison(self) -> Said:
        """Send a message that kills the gateway which runs it, in a chat of its own."""
        name = f"m{next(self._names)}"
        said = Said(name, f"{_POISON}{name}", SaidKind.POISON)
        self.said[said.chat] = [said]
        await self._send(said, f"{_POISON} {name}")
        return said

    async def _talk(self, chat: str) -> None:
        random = Random(f"{chat} {self._random.random()}")
        while not self._is_over:
            said = Said(f"m{next(self._names)}", chat, random.choice(self._kinds))
            if said.kind is SaidKind.STOPPED and self.said[chat]:  # `/stop` must not hit the turn before it
                await self._until(self.said[chat][-1], _ENDED)
            self.said[chat].append(said)
            await self._send(said, _text(said))
            if said.kind is SaidKind.STOPPED:
                await self._stop(said)
            await asyncio.sleep(random.expovariate(1.5))

    async def _stop(self, said: Said) -> None:
        """Stop a turn that hangs. A person says it again when nothing happens."""
        await self._until(said, ("running", *_ENDED))
        for number in itertools.count():
            body = {"text": "/stop"}
            await self._call("POST", f"/api/sessions/{said.chat}/messages", f"{said.name}stop{number}", body)
            with suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    await self._until(said, _ENDED)
                    return
            self.report.stops_again += 1

    async def _until(self, said: Said, states: Sequence[str]) -> None:
        """Wait until the turn of a message is in one of the states."""
        while said.turn_id:
            gateway = self._random.choice(self._world.members).gateway
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(_TRY_SECONDS):
                    if (await gateway.call("GET", f"/api/turns/{said.turn_id}"))["state"] in states:
                        return
            self._world.check()
            await asyncio.sleep(0.1)

    async def _send(self, said: Said, text: str) -> None:
        answer = await self._call("POST", f"/api/sessions/{said.chat}/messages", said.name, {"text": text})
        said.turn_id = answer["turn_id"] if answer is not None else ""
        self.report.said[said.kind] += 1

    async def _make_jobs(self) -> None:
        """Make jobs that are due soon. One whose answer is lost may be there all the same, and counts too."""
        while not self._is_over:
            self.report.jobs += 1
            name = f"job{self.report.jobs}"
            due = datetime.now(UTC) + timedelta(seconds=self._random.choice((2, 3, 4)))
            text = f'[[call leave_mark {{"name": "{name}"}}]][[reply ran {name}]]'
            body = {"text": text, "name": name, "chat": "jobs", "at": due.isoformat()}
            gateway = self._random.choice(self._world.members).gateway
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(_TRY_SECONDS):
                    made = await gateway.call("POST", "/api/jobs", json=body)
                    self.jobs.append(made["id"])
            await asyncio.sleep(self._random.expovariate(0.5))

    async def _intrude(self) -> None:
        """Ask every way in without a right to."""
        async with aiohttp.ClientSession() as session:
            while not self._is_over:
                token = self._random.choice(_BAD_TOKENS)
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = self._random.choice(self._world.members).gateway.url
                path = self._random.choice(
                    ("/api/sessions/chat0/messages", "/v1/chat/completions", "/api/jobs")
                )
                body = {"text": "intruder", "messages": [{"role": "user", "content": "intruder"}]}
                try:
                    async with (
                        asyncio.timeout(_TRY_SECONDS),
                        session.post(url + path, json=body, headers=headers) as answer,
                    ):
                        if answer.status < 400:
                            self.report.let_in.append(f"{path} with {token}: {answer.status}")
                except (aiohttp.ClientError, OSError, TimeoutError):
                    pass
                await asyncio.sleep(0.3)

    async def _call(self, method: str, path: str, key: str, body: dict[str, Any]) -> Any:
        """Call gateways until one has accepted. A refusal that would be one everywhere ends it."""
        headers = {"Idempotency-Key": key}
        while True:
            gateway = self._random.choice(self._world.members).gateway
            self.report.tries += 1
            try:
                async with asyncio.timeout(_TRY_SECONDS):
                    return await gateway.call(method, path, json=body, headers=headers)
            except aiohttp.ClientResponseError as error:
                if error.status != 503:
                    self.report.refused.append(f"{key}: {error.status} {error.message} {path}")
                    return None
            except (aiohttp.ClientError, OSError, TimeoutError):
                pass
            self._world.check()
            await asyncio.sleep(0.05)

    # -- the check ------------------------------------------------------------------------------------------

    def judge(self) -> ClusterReport:
        """Check all that was said. Only after nothing is owed any more."""
        columns = ("id", "state", "reply", "error", "attempts", "session_id")
        rows = self._world.query(f"SELECT {', '.join(columns)} FROM turns")
        turns = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
        entries: dict[str, list[tuple[str, str, str]]] = {}
        for session_id, turn_id, kind, body in self._world.query(
            "SELECT session_id, turn_id, kind, body FROM entries WHERE turn_id IS NOT NULL"
            " ORDER BY session_id, seq"
        ):
            entries.setdefault(session_id, []).append((turn_id, kind, body))
        effects = Counter(self._world.effects.read_text().splitlines())
        self.report.repeated += [
            name
            for name, times in effects.items()
            if times > (MAX_CRASHES if name.startswith(_POISON) else 1)
        ]
        for chat, said in self.said.items():
            for one in said:
                wrong = len(self.report.lost) + len(self.report.duplicated)
                self._judge_message(one, turns.get(one.turn_id), entries, effects[one.name])
                if len(self.report.lost) + len(self.report.duplicated) > wrong and one.turn_id in turns:
                    self.report.broken.add(turns[one.turn_id]["session_id"])
            self._judge_order(chat, said, turns, entries)
        self._judge_mixing(entries)
        self._judge_jobs(effects)
        intruders = self._world.query("SELECT id FROM turns WHERE inbound LIKE '%intruder%'")
        self.report.let_in += [str(row[0]) for row in intruders]
        return self.report

    def _judge_message(
        self,
        said: Said,
        turn: dict[str, Any] | None,
        entries: dict[str, list[tuple[str, str, str]]],
        effects: int,
    ) -> None:
        report, told = self.report, f"{said.name} {said.kind} in {said.chat}: {turn}"
        if turn is None:
            report.lost.append(told)
            return
        state, is_given_up = turn["state"], _GIVEN_UP in f"{turn['reply']} {turn['error']}"
        if said.kind is SaidKind.POISON:
            if state != "failed" or not is_given_up:
                report.poisoned.append(told)
            return
        mine = [
            (kind, body)
            for turn_id, kind, body in entries.get(turn["session_id"], [])
            if turn_id == said.turn_id
        ]
        if sum(kind == "user" for kind, _ in mine) > 1:
            report.duplicated.append(told)
        if state == "failed" and is_given_up:
            report.given_up += 1
            return
        if said.kind is SaidKind.STOPPED:
            if state != "cancelled":
                report.lost.append(told)
            return
        answers = [json.loads(body) for kind, body in mine if kind == "assistant"]
        finals = [one["text"] for one in answers if not one["tool_calls"]]
        if state != "done" or said.name not in _NAME.findall(str(turn["reply"])):
            report.lost.append(told)
        elif len(finals) != 1:
            report.duplicated.append(f"{told} {finals}")
        if said.kind is SaidKind.TOOL and not effects:
            report.unknown += 1
            if not any(_UNKNOWN in body for kind, body in mine if kind == "tool_results"):
                report.lost.append(f"{told}: no effect, and the model was not told")

    def _judge_order(
        self,
        chat: str,
        said: list[Said],
        turns: dict[str, dict[str, Any]],
        entries: dict[str, list[tuple[str, str, str]]],
    ) -> None:
        """Check that the log has the messages in the order in which they were accepted."""
        sessions = dict.fromkeys(turns[one.turn_id]["session_id"] for one in said if one.turn_id in turns)
        logged = [
            turn_id for each in sessions for turn_id, kind, _ in entries.get(each, []) if kind == "user"
        ]
        expected = [one.turn_id for one in said]
        place = {turn_id: n for n, turn_id in enumerate(expected)}
        numbers = [place[turn_id] for turn_id in dict.fromkeys(logged) if turn_id in place]
        if numbers != sorted(numbers):
            late = [said[b] for a, b in itertools.pairwise(numbers) if b < a]
            self.report.out_of_order.append(f"{chat}: {[one.name for one in late]}")
            self.report.broken |= set(sessions)

    def _judge_mixing(self, entries: dict[str, list[tuple[str, str, str]]]) -> None:
        """Check that no turn goes on in a log after another one has begun there."""
        for session_id, log in entries.items():
            runs = [turn_id for turn_id, _ in itertools.groupby(turn_id for turn_id, _, _ in log)]
            twice = [turn_id for turn_id, times in Counter(runs).items() if times > 1]
            if twice:
                self.report.mixed.append(f"{session_id}: {twice}")
                self.report.broken.add(session_id)

    def _judge_jobs(self, effects: Counter[str]) -> None:
        """Check that each job that a gateway confirmed is there, and that each that is there ran once."""
        report = self.report
        rows = self._world.query(
            "SELECT j.id, j.plan, s.state, s.ended_at,"
            " (SELECT count(*) FROM turns t WHERE t.job_id = j.id AND t.state = 'done')"
            " FROM jobs j LEFT JOIN slots s ON s.job_id = j.id"
        )
        slots = Counter(row[0] for row in rows)
        report.missed_jobs += [f"{job_id} is not there" for job_id in self.jobs if job_id not in slots]
        for job_id, plan, state, ended_at, done in rows:
            told = f"{job_id} {plan} {state}: {slots[job_id]} slots, {done} turns done"
            if ended_at is None:
                report.missed_jobs.append(told)
            if slots[job_id] > 1 or done > 1:
                report.doubled_jobs.append(told)


def _text(said: Said) -> str:
    match said.kind:
        case SaidKind.TOOL:
            return f'[[call leave_mark {{"name": "{said.name}"}}]][[reply did {said.name}]]'
        case SaidKind.SLOW:
            return f"[[chunks 6]][[chunk-delay 0.1]][[reply {said.name} took its time]]"
        case SaidKind.STOPPED:
            return f"{said.name} [[hang]]"
        case _:
            return said.name
