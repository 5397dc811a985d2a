"""The family `delegate`: the model hands tasks to child sessions, and its turn waits for their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from talaria.core.delegates import Delegate, DelegateOutcome, DelegateTask, Report
from talaria.core.errors import ToolError
from talaria.core.ids import DelegateId, TurnId
from talaria.core.text import clean_line, did_you_mean
from talaria.core.tools import DELEGATE, ToolSpec
from talaria.core.turns import Inbound, TurnState
from talaria.tools.function import Arguments, parameters, text
from talaria.tools.settings import DelegateSettings
from talaria.tools.tool import Tool, ToolContext
from talaria.tools.toolset import ToolSet

MAX_TASK = 32_000  # characters
MAX_TASKS = 16
GRACE_SECONDS = 60.0  # for a child that is stopped at its deadline to write what it has found
_TITLE = 60
# A delegate speaks to its parent only.
KEPT_BACK = frozenset({"send_message", "jobs", "ask_user"})

_SPEC = ToolSpec(
    name=DELEGATE,
    description=(
        "Hand one task (`task`), or several that do not depend on each other (`tasks`), to helpers, and get "
        "their results. They work side by side in this chat's folder and see nothing of this conversation: "
        "write all that they need into the task or `context`. For work that reads much and reports little."
    ),
    parameters=parameters(
        {
            "task": text("What to do and what to report."),
            "tasks": {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": MAX_TASKS,
                "description": "Several tasks.",
            },
            "context": text("What all need to know."),
            "tools": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Their only tools; default: yours.",
            },
            "background": {
                "type": "boolean",
                "description": "Continue at once; results come as messages.",
            },
            "agent": text("A named agent."),
            "model": text("Model: provider/name or alias."),
        }
    ),
    idempotent=True,
    uses_files=False,
)


class DelegateTool(Tool):
    """`delegate`: the call is planned, its turn waits for the children, and `run` reports their outcomes."""

    spec = _SPEC

    def __init__(self, settings: Callable[[], DelegateSettings]) -> None:
        self._settings = settings

    def plan(
        self, arguments: Arguments, inbound: Inbound, tools: ToolSet, earlier: int
    ) -> Sequence[DelegateTask]:
        """Return the tasks of a call. `tools` are those of the turn, which has handed out `earlier` tasks
        before. Raises `ToolError` if a limit forbids the call."""
        settings, depth = self._settings(), depth_of(inbound)
        asked = [*filter(None, (arguments.get("task"),)), *(arguments.get("tasks") or ())]
        if not all(each.strip() for each in asked) or not asked:
            raise ToolError("There is no task.", "Give `task`, or `tasks` with at least one.")
        if max(map(len, asked)) > MAX_TASK:
            raise ToolError(f"A task has more than {MAX_TASK:,} characters.", "Write the rest into a file.")
        if depth >= settings.max_depth and (error := no_delegates(inbound)) is not None:
            raise error
        if arguments.get("background") and inbound.order is not None:
            raise ToolError(
                "Only an agent that answers a person can hand out tasks in the background.",
                "Leave `background` out and wait for the results.",
            )
        if earlier + len(asked) > settings.max_per_turn:
            raise ToolError(
                f"This turn has handed out {earlier} tasks. With {len(asked)} more it would exceed "
                f"delegates.max_per_turn ({settings.max_per_turn}).",
                "Do the rest yourself, or hand out fewer, larger tasks.",
            )
        names = _usable(tools.names, arguments.get("tools"), can_delegate=depth + 1 < settings.max_depth)
        context = arguments.get("context")
        return [
            DelegateTask(
                f"{each}\n\nWhat else you have to know:\n{context}" if context else each,
                names,
                arguments.get("model") or "",
                title=clean_line(each, _TITLE),
                agent=arguments.get("agent") or "",
            )
            for each in asked
        ]

    def ends_at(self, now: float, inbound: Inbound) -> float:
        """Return until when a call that is made now waits. A helper's own helpers end before it does."""
        end = now + self._settings().timeout.total_seconds() + GRACE_SECONDS
        order = inbound.order
        return end if order is None or order.descent is None else min(end, order.descent.until)

    async def run(self, arguments: Arguments, context: ToolContext) -> str:
        if any(each.report is not Report.RESULT for each in context.delegates):
            numbered = "\n".join(f"[{n}] {each.task.title}" for n, each in enumerate(context.delegates, 1))
            return f"Handed out in the background. Each result comes as a message.\n{numbered}"
        if any(each.outcome is None or each.outcome.untrusted for each in context.delegates):
            context.distrust()
        return "\n\n".join(_reports(context.delegates))


def no_delegates(inbound: Inbound) -> ToolError | None:
    """Return why a helper at the last level has no helpers; None for a turn that is no helper."""
    if not (depth := depth_of(inbound)):
        return None
    return ToolError(
        f"You are a helper at depth {depth}, and cannot hand out tasks.", "Do the task yourself."
    )


def depth_of(inbound: Inbound) -> int:
    """Return how deep in its tree the turn of this message is; 0 for a turn that is no delegate."""
    return 0 if inbound.order is None or inbound.order.descent is None else inbound.order.descent.depth


def holder_of(turn_id: TurnId, inbound: Inbound) -> TurnId | DelegateId:
    """Return how the ids of the turn's delegates begin."""
    order = inbound.order
    return turn_id if order is None or order.descent is None else order.descent.delegate


def _usable(own: Sequence[str], wished: Sequence[str] | None, *, can_delegate: bool) -> tuple[str, ...]:
    """Return the tools of helpers: never more than those of the turn. Raises `ToolError` for an unknown
    name."""
    kept_back = KEPT_BACK if can_delegate else KEPT_BACK | {DELEGATE}
    names = tuple(name for name in own if name not in kept_back)
    if wished is None:
        return names
    for name in wished:
        if name not in names:
            listed = ", ".join(names) or "none"
            hint = did_you_mean(name, names, f"They can have: {listed}.")
            raise ToolError(f"Helpers cannot have the tool {name!r}.", hint)
    return tuple(dict.fromkeys(wished))


def _reports(delegates: Sequence[Delegate]) -> Iterable[str]:
    """Yield what the model reads of each delegate."""
    if len(delegates) == 1 and (only := delegates[0]).outcome is not None and is_done(only):
        yield only.outcome.text
        return
    for number, each in enumerate(delegates, 1):
        head = f"[{number}] " if len(delegates) > 1 else ""
        yield f"{head}{describe_end(each)}"


def is_done(delegate: Delegate) -> bool:
    return delegate.outcome is not None and delegate.outcome.state == TurnState.DONE


def describe_end(delegate: Delegate) -> str:
    """Return what the model reads of a delegate that has ended."""
    outcome = delegate.outcome
    if outcome is None:
        return "timed out, and could not be stopped: its result is unknown."
    if outcome.state == TurnState.DONE:
        return f"done:\n{outcome.text}"
    return f"{_why_ended(delegate, outcome)} Files that it has written are in the folder."


def _why_ended(delegate: Delegate, outcome: DelegateOutcome) -> str:
    said = outcome.partial
    if outcome.state == TurnState.FAILED:
        why = f"failed: {outcome.text}"
    else:
        said = said or outcome.text
        is_late = delegate.ended_at is not None and delegate.ended_at >= deadline_of(delegate)
        why = "timed out." if is_late else "stopped by a person."
    return f"{why}\nIts last words were:\n{said}\n" if said else why


def deadline_of(delegate: Delegate) -> float:
    """Return when the child is stopped. Its parent waits a little longer, for what the child has found."""
    return delegate.expires_at - GRACE_SECONDS
