"""A small gateway to be explored: people who talk, stop, leave and come back, over restarts."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from support.fake_outlet import FakeOutlet, OutletFault
from support.rig import Rig, chat, start
from support.scripted_model import ScriptedModel
from support.sim import SimClock, SimLoop, run
from support.slow_store import SlowStore
from talaria.access.settings import BudgetSettings
from talaria.agent.loop import NOT_DECIDED
from talaria.core.delivery import OutboxState, OutgoingMessage
from talaria.core.errors import IdempotencyConflict, NotFound, StoreError, ToolError
from talaria.core.ids import Fence, SessionId, TurnId
from talaria.core.ledger import Accept, Accepted, Commit, Committed, Ended, Page, TurnEnd, TurnRecord
from talaria.core.messages import AssistantMessage, Text, ToolResults, UserMessage
from talaria.core.questions import APPROVE, DENY, QuestionDraft, QuestionKind
from talaria.core.spending import SpendingQuery
from talaria.core.tools import ToolSpec
from talaria.core.turns import Inbound, Sender, StepState, Turn, TurnState
from talaria.models.known import PriceSettings
from talaria.pool.policy import PoolLimits
from talaria.store.in_memory import MemoryStore
from talaria.testing.fake_workspaces import FakeWorkspaces, ReleaseBehaviour
from talaria.tools.function import parameters
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet
from talaria.turns.intake import Draining, StatelessCall
from talaria.turns.live import LiveTurn
from talaria.turns.settings import Busy

FAULTS = (
    "[[status 500]]",
    "[[chunks 3]][[cut 2]][[words 6]]",
    "[[empty]]",
)
SAYINGS = (
    "hello",
    "[[delay 0.4]] let me see",
    "[[chunks 3]][[chunk-delay 0.01]][[words 6]]",
    "[[call work {}]]",
    "[[call work {}]]+[[call look {}]]+[[call look {}]]",
    "[[call look {}]]+[[call look {}]][[delay 0.1]][[call work {}]][[reply done]]",
    "[[call nothing {}]]",
    "[[call risky {}]][[reply done]]",
    "[[call risky {}]]+[[call look {}]]+[[call risky {}]][[reply done]]",
)
COMMANDS = ("/new", "/new a title", "/title some title", "/status", "/resume 1", "/sessions")
STOPS = ("/stop", "/stop")
TICKS = (0.0, 0.01)  # the second makes many things happen at one moment, where the seed draws their order


SEND_FAULTS = (
    OutletFault.DELAY,
    OutletFault.REFUSE,
    OutletFault.LOSE,
    OutletFault.SWALLOW_ANSWER,
    OutletFault.CRASH,
)


class Platform(FakeOutlet):
    """Takes its time and misbehaves now and then."""

    def __init__(self, random: Random) -> None:
        super().__init__(takes_nonce=random.random() < 0.5, limit=10, shows=random.random() < 0.5)
        self._random = random
        self.is_sick = False

    async def deliver(self, post: OutgoingMessage) -> str:
        await asyncio.sleep(self._random.uniform(0, 0.05))
        if self.is_sick and self._random.random() < 0.3:
            self.faults.append(self._random.choice(SEND_FAULTS))
        message_id = await super().deliver(post)
        await asyncio.sleep(self._random.uniform(0, 0.05))
        return message_id


class Ledger(MemoryStore):
    """Remembers what was accepted, in order, and how often each turn and each session was ended."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__(clock)
        self.accepted: list[Turn] = []
        self.ends: Counter[TurnId] = Counter()
        self.session_ends: Counter[SessionId] = Counter()

    async def accept(self, order: Accept) -> Accepted:
        accepted = await super().accept(order)
        if not accepted.is_duplicate:
            self.accepted.append(accepted.turn)
        if accepted.ended is not None:
            self.session_ends[accepted.ended] += 1
        return accepted

    async def end_session(self, session_id: SessionId, fence: Fence) -> Ended:
        ended = await super().end_session(session_id, fence)
        self.session_ends[session_id] += ended.is_news
        return ended

    async def end_unused(self, before: float) -> Sequence[SessionId]:
        ended = await super().end_unused(before)
        self.session_ends.update(ended)
        return ended

    async def commit(self, order: Commit) -> Committed:
        committed = await super().commit(order)
        if order.end is not None and order.turn_id is not None:
            self.ends[order.turn_id] += 1
        return committed

    async def settle(self, turn_id: TurnId, end: TurnEnd) -> Turn:
        turn = await super().settle(turn_id, end)
        self.ends[turn_id] += 1
        return turn


class Work(Tool):
    """A tool that takes a moment, fails now and then, and counts what it did for whom. `unapproved` are calls
    that ran without a person's consent."""

    def __init__(self, name: str, random: Random, *, read_only: bool = False, asks: bool = False) -> None:
        self.spec = ToolSpec(name, "Works.", parameters({}), read_only=read_only, asks=asks)
        self.done: Counter[tuple[TurnId, str]] = Counter()
        self.unapproved: list[str] = []
        self._random = random

    def question(self, arguments: dict[str, Any]) -> QuestionDraft | None:
        return QuestionDraft(QuestionKind.APPROVAL, "May it?", self._random.choice((0.05, 5, 60)))

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self.done[context.turn_id, context.call_id] += 1
        if context.decision is None or context.decision.text != APPROVE:
            self.unapproved.append(context.call_id)
        await asyncio.sleep(self._random.uniform(0, 0.05))
        if self._random.random() < 0.1:
            raise ToolError("It did not work.")
        return "It worked."


@dataclass(frozen=True, slots=True)
class Mix:
    """What goes on in a world beside talking: people stop turns, also those that a restart brought back; two
    talk in one chat at once; the model fails; a share of the store's reads fails, except in the last life."""

    stops: bool = True
    stops_resumed: bool = True
    crowds: bool = True
    faults: bool = True
    sick_reads: float = 0.0


# Without crowds for as long as tests/turns/test_races.py expects failures, which come of two in one chat.
HEALTHY = Mix()
SICK = Mix(sick_reads=0.05)


class Explored(msgspec.Struct, frozen=True):
    """What a seed did, so that a replay can be compared and a run can tell what it covered."""

    steps: int
    states: dict[str, int]
    lives: int
    resumed: int
    refused: int
    gone: int
    ended: int
    joined: int
    marked: int
    approved: int
    denied: int
    expired: int


class TurnWorld:
    """Chats over one store; `live` is one life of the gateway, `check` looks at all that it left."""

    def __init__(self, random: Random, mix: Mix) -> None:
        self._random = random
        self._mix = mix
        self._may_stop: Callable[[], bool] = lambda: mix.stops
        self._clock = SimClock()
        self.ledger = Ledger(self._clock)
        self._slow = SlowStore(self.ledger, random)
        self._numbers = count()
        self.chats = [str(number) for number in range(random.randint(1, 3))]
        self.risky = Work("risky", random, asks=True)
        self.tools = [Work("work", random), Work("look", random, read_only=True), self.risky]
        self.decisions: Counter[str] = Counter()
        self.workspaces = FakeWorkspaces(
            lambda key: Path("/nowhere"), lambda: random.choice(tuple(ReleaseBehaviour))
        )
        self.platform = Platform(random)
        self.resumed = 0
        self.refused = 0
        self.gone = 0

    async def live(self, *, is_last: bool) -> None:
        """A life in which people talk. The last one is left when all is answered, others at any moment."""
        random = self._random
        limits = PoolLimits(random.randint(1, 3), random.choice((0.2, 3600)), random.choice((1 << 20, 4096)))
        async with start(
            self._slow,
            Path("/nowhere"),
            clock=self._clock,
            model=ScriptedModel(self._clock),
            limits=limits,
            tools=lambda tools: ToolSet(self.tools),
            cutoff=random.choice((lambda now: 0.0, lambda now: now - 0.2)),
            workspaces=self.workspaces,
            budgets=BudgetSettings(per_day_usd=1000),
            prices={"scripted/*": PriceSettings(input=1, output=10)},
            busy=random.choice(tuple(Busy)),
            random=random,
        ) as rig:
            self.platform.is_sick = self._mix.faults and not is_last
            if is_last or random.random() < 0.8:
                rig.delivery.attach("test", self.platform)
            self._slow.failing = 0.0 if is_last else self._mix.sick_reads
            resumed = list(rig.live)
            self.resumed += len(resumed)
            self._may_stop = lambda: (
                self._mix.stops
                and (self._mix.stops_resumed or (is_last and all(turn.settled.done() for turn in resumed)))
            )
            loops = (
                rig.keeper.run(),
                rig.pool.run(),
                rig.sessions.run(every=0.1),
                rig.delivery.run(),
                rig.turns.watch(),
                self._decide(rig),
            )
            beside = [asyncio.create_task(loop) for loop in loops]
            people = [asyncio.create_task(self._talk(rig, name)) for name in self._places()]
            if is_last:
                await asyncio.wait(people)
                while unsettled := [turn.settled for turn in rig.live]:
                    await asyncio.wait(unsettled)
                while (await self.ledger.stats()).outbox:
                    await asyncio.sleep(1)
            else:
                await asyncio.sleep(random.uniform(0, 1.5))
            self._slow.failing = 0.0
            await rig.turns.drain(random.choice((0, 0, 0.1)))
            await asyncio.gather(*people)
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            stats = rig.pool.stats()
            assert (stats.busy, stats.building) == (0, 0)
            assert stats.size <= limits.max_agents

    def _places(self) -> Iterable[str]:
        """Where people talk: one in each chat, and now and then a second one in the same."""
        share = 0.3 if self._mix.crowds else 0.0
        return [*self.chats, *(name for name in self.chats if self._random.random() < share)]

    async def _talk(self, rig: Rig, name: str) -> None:
        """One person: a message after the other, without always waiting for the answers."""
        sender = Sender(f"{name}-{next(self._numbers)}")
        for _ in range(self._random.randint(1, 4)):
            try:
                receipt = await self._send(rig, name, sender)
            except (Draining, StoreError):
                self.refused += 1
                return
            if receipt is not None:
                await self._follow_up(rig, receipt)
            await asyncio.sleep(self._random.choice((0, 0, 0.01, 0.1)))

    async def _send(self, rig: Rig, name: str, sender: Sender) -> LiveTurn | None:
        """None: the sender was gone before the answer came; the message may have been accepted or not."""
        random = self._random
        if random.random() < 0.05:
            return await rig.turns.call(StatelessCall(sender, (UserMessage((Text("hi"),)),)))
        commands = COMMANDS + STOPS if self._may_stop() else COMMANDS
        sayings = SAYINGS + FAULTS if self._mix.faults else SAYINGS
        text = random.choice(commands if random.random() < 0.25 else sayings)
        key = f"key-{random.randrange(3)}" if random.random() < 0.1 else None
        model = "fast" if random.random() < 0.1 else None
        said = text if text.startswith("/") else f"{text} ({next(self._numbers)})"
        address = name if random.random() < 0.5 else None
        inbound = Inbound(chat(name), sender, (Text(said),), key=key, model=model, address=address)
        sending = asyncio.create_task(rig.turns.submit(inbound))
        if random.random() < 0.15:
            await asyncio.sleep(random.uniform(0, 0.02))
            sending.cancel()
        try:
            return await sending
        except asyncio.CancelledError:
            self.gone += 1
        except IdempotencyConflict:
            pass
        return None

    async def _follow_up(self, rig: Rig, receipt: LiveTurn) -> None:
        match self._random.randrange(6):
            case 0 | 1:
                await rig.turns.wait(receipt)
            case 2 if self._mix.stops and (self._mix.stops_resumed or not receipt.repeats):
                await asyncio.sleep(self._random.uniform(0, 0.3))
                await rig.turns.cancel(receipt)
            case 3:
                async with aclosing(receipt.follow()) as events:
                    async for _ in events:
                        if self._random.random() < 0.1:
                            break
            case 4:
                with suppress(NotFound, StoreError):
                    await rig.turns.wait(await rig.turns.find(receipt.turn.id), 0.05)
            case 5 if self._random.random() < 0.5:
                with suppress(StoreError):
                    await rig.turns.end(receipt.turn.session_id)
            case _:
                pass

    async def _decide(self, rig: Rig) -> None:
        """A person who approves or denies what is asked, sooner or later, or not at all."""
        while True:
            await asyncio.sleep(self._random.uniform(0, 0.3))
            for question in (await self.ledger.open_questions(Page())).questions:
                text = self._random.choice((APPROVE, APPROVE, DENY, ""))
                if text:
                    with suppress(StoreError, NotFound):
                        await rig.turns.decide(question.id, text, "person")
                        self.decisions[text] += 1

    # -- what must hold -------------------------------------------------------------------------------------

    async def check(self) -> None:
        ledger = self.ledger
        for accepted in ledger.accepted:
            record = await ledger.turn_record(accepted.id)
            assert record is not None
            assert record.turn.state.is_final, f"{record.turn} was accepted and never settled"
            ends = 0 if record.turn.merged_into else 1
            assert ledger.ends[accepted.id] == ends, f"{record.turn} was not settled once"
            self._check_replies(record)
            assert all(step.state is StepState.ENDED for step in record.steps)
            if record.turn.usage is not None and record.turn.merged_into is None:
                assert record.turn.usage == record.spent.tokens, "a call was counted twice or not at all"
        spending = await ledger.spending(SpendingQuery(SessionId(""), "", 0.0))
        assert spending.reserved == 0, "money is still set aside for nobody"
        for session_id in {turn.session_id for turn in ledger.accepted}:
            await self._check_log(session_id)
        assert Counter(self.workspaces.ended) == +ledger.session_ends, "the hook heard of each end, once"
        for tool in self.tools:
            assert all(times == 1 for times in tool.done.values()), "a call was run again"
        assert self.risky.unapproved == [], "a call ran that nobody approved"

    async def count_expired(self) -> int:
        """Return how many calls were not run because no decision came in time."""
        records = [await self.ledger.turn_record(turn.id) for turn in self.ledger.accepted]
        steps = [step for record in records if record is not None for step in record.steps]
        return sum(step.result is not None and step.result.text == NOT_DECIDED for step in steps)

    def _check_replies(self, record: TurnRecord) -> None:
        """What is owed was sent, and nothing twice that does not say so."""
        turn = record.turn
        if turn.inbound.address is None or turn.merged_into is not None:
            assert record.replies == ()
            return
        if turn.state is not TurnState.CANCELLED:
            assert record.replies, f"{turn} owes a reply"
        for row in record.replies:
            taken = [post for post in self.platform.taken if post.nonce == row.nonce]
            assert row.state in (OutboxState.SENT, OutboxState.FAILED), f"{row} was never sent"
            assert row.state is OutboxState.FAILED or taken, f"{row} says it was sent"
            unmarked = [post for post in taken if not post.is_repeat and post.edits is None]
            assert len(unmarked) <= 1, "a reply was doubled without a mark"
            if self.platform.takes_nonce:
                assert len([post for post in taken if post.edits is None]) <= 1, "a nonce was used twice"

    async def _check_log(self, session_id: SessionId) -> None:
        log = [entry for entry in await self.ledger.log(session_id, 0) if entry.message is not None]
        asked = [e.body.text for e in log if isinstance(e.body, UserMessage) and e.turn_id is not None]
        assert len(asked) == len(set(asked)), "a message was logged twice"
        by_sender: dict[str, list[str]] = defaultdict(list)
        for turn in self.ledger.accepted:
            if turn.inbound.text in asked:
                by_sender[turn.inbound.sender.id].append(turn.inbound.text)
        for order in by_sender.values():
            assert [text for text in asked if text in order] == order, "messages changed places"
        for position, entry in enumerate(log):
            if isinstance(entry.body, AssistantMessage) and entry.body.tool_calls:
                results = log[position + 1].body
                assert isinstance(results, ToolResults), "a call has no results behind it"
                assert [r.call_id for r in results.results] == [call.id for call in entry.body.tool_calls]
            elif isinstance(entry.body, ToolResults):
                calls = log[position - 1].body
                assert isinstance(calls, AssistantMessage) and calls.tool_calls, "results without a call"
        for turn in self.ledger.accepted:
            record = await self.ledger.turn_record(turn.id)
            assert record is not None
            if (
                record.turn.session_id == session_id
                and record.turn.state is TurnState.DONE
                and turn.inbound.parts
            ):
                is_command = bool(turn.command)
                assert (turn.inbound.text in asked) is not is_command, "an answer without its question"


def explore(seed: int, mix: Mix) -> Explored:
    """A few small lives of a gateway under the interleaving of `seed`. Raises when something broke."""

    async def main() -> Explored:
        random = Random(seed)
        world = TurnWorld(random, mix)
        lives = random.randint(1, 4)
        for life in range(lives):
            await world.live(is_last=life == lives - 1)
        await world.check()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        states = (await world.ledger.stats()).turns
        ended = len(world.workspaces.ended)
        joined = [(await world.ledger.turn_record(turn.id)) for turn in world.ledger.accepted]
        return Explored(
            loop.steps,
            states,
            lives,
            world.resumed,
            world.refused,
            world.gone,
            ended,
            sum(record is not None and record.turn.merged_into is not None for record in joined),
            sum(post.is_repeat for post in world.platform.taken),
            world.decisions[APPROVE],
            world.decisions[DENY],
            await world.count_expired(),
        )

    try:
        return run(seed, main, max_steps=100_000, tick=TICKS[seed % 2])
    except Exception as error:
        error.add_note(f"seed {seed}: turn_world.explore({seed}, {mix}) brings it back")
        raise
