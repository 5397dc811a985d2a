"""Orders for the store's tests, in the fewest words, and a clock to run them by."""

from __future__ import annotations

from itertools import count

import msgspec

from talaria.core.entries import EntryBody
from talaria.core.ids import ChatKey, OwnerId, QuestionId, SessionId, TurnId
from talaria.core.ledger import (
    Accept,
    Accepted,
    Began,
    Begin,
    Binding,
    Commit,
    Fresh,
    StepWrite,
    TurnEnd,
    TurnRecord,
)
from talaria.core.messages import AssistantMessage, Message, Text, UserMessage
from talaria.core.questions import APPROVE, Decision, Question, QuestionKind
from talaria.core.sessions import Session
from talaria.core.specs import AgentSpec, PinnedSpec, Prefix, pin
from talaria.core.turns import Inbound, Sender, StepKind, StepState, TurnState
from talaria.store.store import Store
from talaria.testing.clock import FakeClock

CHAT = ChatKey("agent:main:http:api:home")
OTHER_CHAT = ChatKey("agent:main:http:api:away")
ME = OwnerId("own_me")
RIVAL = OwnerId("own_rival")
LEASE = 30.0
START = 1_000_000.0


def new_clock() -> FakeClock:
    """Return a clock at `START`. Its `elapsed` is its `now`: PostgreSQL's clock is derived from it."""
    clock = FakeClock(0.0)
    clock.advance(START)
    return clock


def pinned(name: str = "one") -> PinnedSpec:
    spec = AgentSpec("main", "local", f"model-{name}", "chat", "You are kind.", ("shell",), "fp", "cred")
    return pin(spec, Prefix(b'{"role":"system"}', b"[]"))


_numbers = count(1)


def accepting(
    text: str = "hello",
    *,
    chat: ChatKey = CHAT,
    key: str | None = None,
    session: str | None = None,
    spec: PinnedSpec | None = None,
    context: tuple[Message, ...] = (),
    ephemeral: bool = False,
    binding: Binding = Binding.CURRENT,
    resume: SessionId | None = None,
    scope: str = "",
    digest: str = "",
    key_ttl: float = 86_400.0,
    begins: UserMessage | None = None,
    owner: OwnerId = ME,
    expire_before: float = 0.0,
    address: str | None = None,
    steers: TurnId | None = None,
) -> Accept:
    n = next(_numbers)
    turn_id = TurnId(f"turn_{n:06}")
    return Accept(
        turn_id,
        Inbound(chat, Sender("u1", "Ada"), (Text(text),), key=key, address=address),
        Fresh(SessionId(session or f"ses_{n:06}"), spec, context, ephemeral),
        binding=binding,
        resume=resume,
        scope=scope,
        digest=digest,
        key_ttl=key_ttl,
        begin=None if begins is None else Begin(turn_id, owner, LEASE, begins),
        expire_before=expire_before,
        steers=steers,
    )


async def begun(store: Store, order: Accept | None = None, owner: OwnerId = ME) -> tuple[Accepted, Began]:
    accepted = await store.accept(order or accepting())
    return accepted, await store.begin(Begin(accepted.turn.id, owner, LEASE, said("hello")))


def said(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def ending(turn: Accepted, lease: Began, *entries: EntryBody, reply: str = "hi") -> Commit:
    return Commit(
        turn.turn.session_id, lease.fence, turn.turn.id, entries, end=TurnEnd(TurnState.DONE, reply)
    )


async def answered(store: Store, order: Accept | None = None) -> Accepted:
    turn, lease = await begun(store, order)
    await store.commit(ending(turn, lease, AssistantMessage("hi")))
    return turn


def step(n: int, state: StepState, kind: StepKind = StepKind.TOOL) -> StepWrite:
    return StepWrite(n, kind, "shell", state, call_id=f"call_{n}")


def asking(turn: Accepted, n: int = 1, **changes: object) -> Question:
    question = Question(
        QuestionId(f"q_{next(_numbers):06}"),
        turn.turn.id,
        n,
        f"call_{n}",
        QuestionKind.APPROVAL,
        "Run `rm -r build`?",
        START,
        START + 3600,
    )
    return msgspec.structs.replace(question, **changes)


def approved(at: float = START) -> Decision:
    return Decision(APPROVE, "u1", at)


async def parked(
    store: Store, order: Accept | None = None, *, owner: OwnerId = ME, count: int = 1
) -> tuple[Accepted, Began, tuple[Question, ...]]:
    """A turn that waits, with one question for each of `count` pending steps."""
    turn, lease = await begun(store, order, owner)
    steps = tuple(step(n, StepState.PENDING) for n in range(1, count + 1))
    questions = tuple(asking(turn, write.n) for write in steps)
    await store.commit(Commit(turn.turn.session_id, lease.fence, turn.turn.id, steps=steps, ask=questions))
    return turn, lease, questions


async def bodies(store: Store, session_id: SessionId) -> list[EntryBody]:
    return [entry.body for entry in await store.log(session_id, 0)]


async def record_of(store: Store, turn_id: TurnId) -> TurnRecord:
    record = await store.turn_record(turn_id)
    assert record is not None
    return record


async def session_of(store: Store, session_id: SessionId) -> Session:
    session = await store.session(session_id)
    assert session is not None
    return session
