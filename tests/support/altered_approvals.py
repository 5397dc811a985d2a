"""G17: approvals that were altered in one place after a person gave them, and the gate that must refuse all.

Each case asks about a call through the real gate, notes a person's approval of it, changes one thing, and
runs the call. `attempt` returns whether it ran.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from support.trusts import FakeTrust
from talaria.core.ids import ChatKey, QuestionId, SessionId, TurnId
from talaria.core.messages import ToolCall, ToolOutcome
from talaria.core.questions import APPROVE, DENY, Decision, Question, QuestionKind, Span
from talaria.core.redaction import SecretRegistry
from talaria.core.tools import Risk, ToolSpec
from talaria.core.turns import Inbound, Sender
from talaria.testing.clock import FakeClock
from talaria.testing.fake_workspaces import FakeWorkspaces
from talaria.tools.approvals import CallGate
from talaria.tools.execution import BoundTools
from talaria.tools.function import parameters, text
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet
from talaria.tools.workers import ToolWorkers

SCHEMA = parameters({"command": text("What to run.")}, required=["command"])
CHARS = string.ascii_letters + string.digits + " /-;|&$'\"\\\u202e\u200b\u0430é"


class Recorder(Tool):
    """A risky tool that notes what it ran."""

    def __init__(self, name: str, ran: list[str]) -> None:
        self.spec = ToolSpec(name, "Runs.", SCHEMA, Risk.HIGH)
        self._ran = ran

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        self._ran.append(arguments["command"])
        return "ran"


@dataclass(frozen=True)
class Scene:
    """Everything that an approval is bound to."""

    command: str
    tool: str = "shell"
    session: str = "ses_1"
    user: str = "telegram:1"
    turn: str = "turn_1"
    call_id: str = "c1"
    cwd: str = "/work"
    variables: tuple[tuple[str, str], ...] = ()
    sandbox: Any = "none"
    processes: int = 256


class Stage:
    """The gate over fakes that ship with the package, in a scene that can be changed."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.clock = FakeClock()
        self.grants: set[tuple[str, str]] = set()

    def tools(self, scene: Scene) -> BoundTools:
        session_id = SessionId(scene.session)
        workspace = FakeWorkspaces(lambda key: Path("/work")).open(session_id, ChatKey("a chat"))
        workspace.session.cwd, workspace.session.environment = scene.cwd, dict(scene.variables)
        settings = ToolSettings(sandbox=scene.sandbox, command_processes=scene.processes)
        grants = {digest for session, digest in self.grants if session == scene.session}
        trust = FakeTrust(grants=grants)
        gate = CallGate(session_id, TurnId(scene.turn), scene.user, settings, workspace, trust, self.clock)
        return BoundTools(
            tools=ToolSet([Recorder("shell", self.ran), Recorder("other", self.ran)]),
            session_id=session_id,
            turn_id=TurnId(scene.turn),
            inbound=Inbound(ChatKey("a chat"), Sender(scene.user), ()),
            workspace=workspace,
            gate=gate,
            settings=settings,
            secrets=SecretRegistry(),
            resources=ToolWorkers().resources(session_id),
            emit=lambda event: None,
            count=lambda name, outcome: None,
        )

    async def approved(self, scene: Scene, span: Span = Span.ONCE) -> Question:
        """The question about the scene's call, with a person's approval."""
        draft = await self.tools(scene).question(call_of(scene))
        assert draft is not None
        now = self.clock.now()
        if span is not Span.ONCE:
            self.grants.add((scene.session, draft.digest))
        place = (QuestionId("q_1"), TurnId(scene.turn), 1, scene.call_id)
        return Question(
            *(*place, draft.kind, draft.text, now, now + draft.timeout),
            decision=Decision(APPROVE, scene.user, now + 1.0, span),
            name=scene.tool,
            digest=draft.digest,
        )

    async def runs(self, scene: Scene, question: Question | None) -> bool:
        """Return whether the scene's call runs with this question."""
        before = len(self.ran)
        result = await self.tools(scene).run(call_of(scene), question)
        has_run = len(self.ran) > before
        assert has_run is (result.outcome is ToolOutcome.OK), result.text
        return has_run


def call_of(scene: Scene) -> ToolCall:
    arguments = msgspec.json.encode({"command": scene.command}).decode()
    return ToolCall(scene.call_id, scene.tool, arguments)


def some_text(random: Random) -> str:
    return "".join(random.choices(CHARS, k=random.randint(1, 40)))


def altered_text(random: Random, given: str) -> str:
    """Another text: a character more, less or replaced, also by one that looks the same."""
    while True:
        at = random.randrange(len(given) + 1)
        new = random.choice(
            (
                given[:at] + random.choice(CHARS) + given[at:],
                given[:at] + given[at + 1 :],
                given[:at] + random.choice(CHARS) + given[at + 1 :],
                given + " ",
                given.upper(),
            )
        )
        if new and new != given:
            return new


Alteration = Callable[[Random, Scene], dict[str, Any]]
# Each changes one thing of the scene between the approval and the run.
SCENES: dict[str, Alteration] = {
    "bytes": lambda random, scene: {"command": altered_text(random, scene.command)},
    "cwd": lambda random, scene: {"cwd": altered_text(random, scene.cwd)},
    "variables": lambda random, scene: {"variables": (("PATH", some_text(random)),)},
    "session": lambda random, scene: {"session": altered_text(random, scene.session)},
    "user": lambda random, scene: {"user": altered_text(random, scene.user)},
    "turn": lambda random, scene: {"turn": altered_text(random, scene.turn)},
    "replay": lambda random, scene: {"call_id": altered_text(random, scene.call_id)},
    "other tool": lambda random, scene: {"tool": "other"},
    "sandbox": lambda random, scene: {"sandbox": random.choice(("auto", "bubblewrap", "landlock"))},
    "limits": lambda random, scene: {"processes": random.randint(257, 9999)},
}
# A grant names neither turn nor call, so it is not altered by those.
OF_GRANTS = [name for name in SCENES if name not in ("turn", "replay")]
# Each changes the row of the question.
ROWS: dict[str, Callable[[Random, Question], dict[str, Any]]] = {
    "no decision": lambda random, question: {"decision": None},
    "denied": lambda random, question: {"decision": Decision(DENY, "x", question.asked_at + 1)},
    "another word": lambda random, question: {
        "decision": Decision(altered_text(random, APPROVE), "x", question.asked_at + 1)
    },
    "decided late": lambda random, question: {
        "decision": Decision(APPROVE, "x", question.expires_at + random.uniform(0.001, 9e9))
    },
    "digest": lambda random, question: {"digest": altered_text(random, question.digest)},
    "no digest": lambda random, question: {"digest": ""},
    "an answer": lambda random, question: {"kind": QuestionKind.ANSWER},
    "a host": lambda random, question: {"kind": QuestionKind.HOST},
}


async def attempt(seed: int) -> tuple[str, bool]:
    """Alter one approval. Return how, and whether the call ran."""
    random, stage = Random(seed), Stage()
    scene = Scene(some_text(random), variables=(("A", some_text(random)),))
    ways = [*SCENES, *ROWS, "expiry", *(f"grant, {name}" for name in OF_GRANTS)]
    way = ways[seed % len(ways)]
    kind, _, name = way.partition(", ")
    span = Span.SESSION if kind == "grant" else Span.ONCE
    question: Question | None = await stage.approved(scene, span)
    assert question is not None
    if kind == "grant":
        question, scene = None, replace(scene, **SCENES[name](random, scene))
    elif way in SCENES:
        scene = replace(scene, **SCENES[way](random, scene))
    elif way in ROWS:
        question = msgspec.structs.replace(question, **ROWS[way](random, question))
    else:
        stage.clock.advance(question.expires_at - question.asked_at + random.choice((0.0, 1.0, 1e6)))
    return way, await stage.runs(scene, question)


async def untouched(seed: int, span: Span) -> bool:
    """The control: the same without an alteration, which must run."""
    random, stage = Random(seed), Stage()
    scene = Scene(some_text(random), variables=(("A", some_text(random)),))
    question = await stage.approved(scene, span)
    return await stage.runs(scene, question if span is Span.ONCE else None)


async def alter(count: int) -> tuple[Counter[str], list[str]]:
    """Make so many attempts. Return how many of each way there were, and those that ran."""
    tried: Counter[str] = Counter()
    ran: list[str] = []
    for seed in range(count):
        way, has_run = await attempt(seed)
        tried[way] += 1
        if has_run:
            ran.append(f"seed {seed}: {way}")
    return tried, ran
