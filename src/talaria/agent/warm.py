"""Warm agents, each a view of a session's log that is ready for the next request, and their builder."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from talaria.agent.transcript import Transcript
from talaria.core.entries import Entry, ReasoningSet, Revision, Summary, tells_of_memory
from talaria.core.errors import StoreError
from talaria.core.ids import ChatKey, SessionId, SpecId
from talaria.core.limits import BoundedDict
from talaria.core.messages import TokenUsage, is_untrusted
from talaria.core.problems import Action, Do
from talaria.core.shown import ShownLog
from talaria.core.specs import AgentSpec, PinnedSpec
from talaria.models.wire import Models, Wire
from talaria.observe.metrics import Metrics
from talaria.store.store import Store

if TYPE_CHECKING:
    from talaria.workspace.workspaces import ChatWorkspace, ChatWorkspaces


# -- notices when a provider's prompt cache serves less than it should, and logs the cause ----------------
# A request repeats the one before it byte for byte. So its answer should report about as many cached tokens
# as the request before had input tokens.


_log = logging.getLogger("talaria.agent")
CACHE_SECONDS = 300.0  # how long providers keep a prefix at least
LEAST_TOKENS = 2048  # some providers do not cache shorter prompts
_DUE_PERCENT = 80  # providers cache in blocks, and count the last block differently


class MissCause(StrEnum):
    """Why less was served from the cache, in the order in which causes are looked for."""

    MODEL = "model"
    FALLBACK = "fallback"
    SPEC = "spec"
    REWRITTEN = "rewritten"
    IDLE = "idle"
    UNEXPLAINED = "unexplained"


_WORDS = {
    MissCause.MODEL: "the session's model was changed",
    MissCause.FALLBACK: "another model than the session's own answered, before or now",
    MissCause.SPEC: "the session's prompt or tools were changed",
    MissCause.REWRITTEN: "its history was rewritten (undo, retry or compaction)",
    MissCause.IDLE: f"it was not used for longer than the {CACHE_SECONDS / 60:.0f} minutes that caches last",
    MissCause.UNEXPLAINED: "nothing on our side changed; the provider did not serve it",
}


class CacheSample(msgspec.Struct, frozen=True):
    """The cached tokens of an answer, and what may explain a miss. `at` is elapsed time.

    `own` is the session's model and `answered` the one that answered, both as provider/model. `caches` is
    whether this agent ever got cached tokens.
    """

    at: float
    own: str
    answered: str
    spec_id: SpecId
    epoch: int
    tokens: TokenUsage
    caches: bool = False


def find_cause(before: CacheSample, now: CacheSample) -> MissCause | None:
    """Return why less was served than expected; None if enough was served, or nothing can be expected."""
    due = before.tokens.input
    if not (before.caches or now.caches) or due < LEAST_TOKENS:
        return None
    if now.tokens.cached * 100 >= due * _DUE_PERCENT:
        return None
    causes = {
        MissCause.MODEL: now.own != before.own,
        MissCause.FALLBACK: now.answered != before.answered,
        MissCause.SPEC: now.spec_id != before.spec_id,
        MissCause.REWRITTEN: now.epoch != before.epoch,
        MissCause.IDLE: now.at - before.at > CACHE_SECONDS,
    }
    return next((cause for cause, holds in causes.items() if holds), MissCause.UNEXPLAINED)


def watch(
    session_id: SessionId, before: CacheSample | None, now: CacheSample, metrics: Metrics
) -> CacheSample:
    """Log a miss and count it. Return the sample to compare the next answer with."""
    caches = now.tokens.cached > 0 or (before is not None and before.caches)
    now = msgspec.structs.replace(now, caches=caches)
    cause = None if before is None else find_cause(before, now)
    if cause is not None:
        assert before is not None
        metrics.cache_missed(cause)
        _log.log(
            logging.WARNING if cause is MissCause.UNEXPLAINED else logging.INFO,
            "the prompt cache of %s served %d of about %d tokens to session %s: %s",
            now.answered,
            now.tokens.cached,
            before.tokens.input,
            session_id,
            _WORDS[cause],
        )
    return now


# -- warm agents, each a view of a session's log that is ready for the next request, and their builder ----


_OVERHEAD = 2048  # the objects of an agent without messages, so that a thousand of them are not free
_CHUNK_OVERHEAD = 64  # the object around the bytes of one message, and its place in a list
_BUILDS_AT_ONCE = 2  # a build holds the entries and their encoded bytes
_SPECS_KEPT = 64
_SLICE_WORK = 256 << 10  # bytes that are encoded in about a millisecond, until other tasks get their turn
RECALL_TOOL = "recall_expand"
_ENTRY_WORK = 1 << 10  # an entry takes as long as so many bytes, besides its own


class WarmAgent(msgspec.Struct, eq=False):
    """Spec, transcript bytes and revision of one session. The log has all of it, so releasing loses nothing.

    `reasoning` is the session's own effort, empty if it has none. `summary` is the one in force, if
    `summary_seq` is not 0. `workspace` is a handle to what the tools act on; it cannot end anything. Agents
    of stateless calls have none.
    `cache_sample` is the last answer, for the cache watch. `has_untrusted` says whether untrusted content is
    in what the model sees. `has_heard` says that the log may tell of changes of memory, by a note or an edit.
    `measured` is the weight of the last request that was answered, and the tokens that the provider counted;
    `failed_at` the size in tokens at which the last compaction failed.
    """

    session_id: SessionId
    pinned: PinnedSpec
    credential: str
    transcript: Transcript
    revision: Revision = Revision(0, 0)
    reasoning: str = ""
    summary_seq: int = 0
    summary: Summary = Summary()
    measured: tuple[int, int] | None = None
    failed_at: int = 0
    has_heard: bool = False
    has_untrusted: bool = False
    workspace: ChatWorkspace | None = None
    cache_sample: CacheSample | None = None

    @property
    def size(self) -> int:
        """The bytes that the agent holds. A request refers to the same bytes and holds no copy of them."""
        return self.transcript.size + _CHUNK_OVERHEAD * len(self.transcript.chunks) + _OVERHEAD

    def absorb(self, entries: Iterable[Entry]) -> None:
        """Take over committed entries of the agent's epoch. Entries that the agent has already are skipped.
        Raises `StoreError` if entries are missing in between."""
        for entry in entries:
            if entry.seq <= self.revision.seq:
                continue
            if entry.seq != self.revision.seq + 1:
                raise StoreError(
                    f"The log of {self.session_id} has a gap after entry {self.revision.seq}.",
                    "Run `talaria doctor`.",
                )
            if isinstance(entry.body, ReasoningSet):
                self.reasoning = entry.body.effort
            elif (message := entry.message) is not None:
                self.transcript.append(message)
                self.has_heard = self.has_heard or tells_of_memory(entry)
                self.has_untrusted = self.has_untrusted or is_untrusted(message)
            self.revision = Revision(entry.epoch, entry.seq)

    def restart(self, pinned: PinnedSpec, wire: Wire) -> None:
        """Forget all messages, because the log shows others now, and use this spec from here on."""
        self.pinned = pinned
        self.transcript = Transcript(wire, pinned.spec)

    def release(self) -> Coroutine[Any, Any, None] | None:
        """Free the bytes and give the workspace handle back. The session and its workspace are not touched.

        Return a coroutine if the handle takes time to give back.
        """
        self.transcript.clear()
        handle, self.workspace = self.workspace, None
        return None if handle is None else handle.release()

    def __repr__(self) -> str:
        return f"<WarmAgent {self.session_id} at {self.revision}, {self.size} bytes>"


class AgentBuilder:
    """Builds warm agents from the log. Agents share specs and their prefix bytes."""

    def __init__(self, store: Store, models: Models, workspaces: ChatWorkspaces) -> None:
        self._store = store
        self._models = models
        self.workspaces = workspaces
        self._specs: BoundedDict[SpecId, PinnedSpec] = BoundedDict(_SPECS_KEPT)
        self._builds = asyncio.Semaphore(_BUILDS_AT_ONCE)

    async def build(
        self, session_id: SessionId, spec_id: SpecId, chat_key: ChatKey | None = None
    ) -> WarmAgent:
        """Build an agent from the part of the log that it shows.

        Raises `NoModel` if the spec's provider is not configured.

        With `chat_key` the agent gets a handle to the session's workspace, which the caller must release.
        """
        agent = await self.view(session_id, await self.pinned(spec_id))
        if chat_key is not None:  # last, so that a build which fails or is cancelled has no handle to forget
            agent.workspace = self.workspaces.open(session_id, chat_key)
        return agent

    async def view(self, session_id: SessionId, pinned: PinnedSpec) -> WarmAgent:
        """Build an agent for another spec than the session's, without a workspace. Waits while two agents are
        being built, so that many long sessions at once do not take several times their memory."""
        wire = self._models.wire(pinned.spec.provider)
        agent = WarmAgent(session_id, pinned, self.credential(pinned), Transcript(wire, pinned.spec))
        async with self._builds:
            await load_agent(agent, await self._store.shown_log(session_id))
        return agent

    async def catch_up(self, agent: WarmAgent) -> None:
        """Absorb what was appended since; the bytes that the agent has stay."""
        agent.absorb(await self._store.log(agent.session_id, agent.revision.seq))

    async def pinned(self, spec_id: SpecId) -> PinnedSpec:
        if (known := self._specs.get(spec_id)) is not None:
            self._specs.move_to_end(spec_id)
            return known
        pinned = await self._store.spec(spec_id)
        if pinned is None:
            action = Action(Do.NEW_SESSION, "Start a new session")
            raise StoreError(f"The stored spec {spec_id} is missing.", f"{action}.", action=action)
        self._specs[spec_id] = pinned
        return pinned

    def credential(self, pinned: PinnedSpec) -> str:
        """Return the current fingerprint of the provider's secrets. An agent with another one is rebuilt over
        the same prefix."""
        return self._models.credential(pinned.spec.provider)


async def load_agent(agent: WarmAgent, log: Sequence[Entry]) -> None:
    """Give an agent without messages what the model sees of the log, in short steps: encoding a long one
    takes a good part of a second."""
    done, shown_log = 0, ShownLog(log)
    for shown in shown_log.messages(can_recall=can_recall(agent.pinned.spec)):
        before = agent.transcript.size
        agent.transcript.append(shown.message)
        done += agent.transcript.size - before + _ENTRY_WORK
        if done > _SLICE_WORK:
            await asyncio.sleep(0)
            done = 0
    for entry in log:
        if isinstance(entry.body, ReasoningSet):
            agent.reasoning = entry.body.effort
    agent.has_heard = any(map(tells_of_memory, log))
    agent.has_untrusted = shown_log.has_untrusted()
    agent.summary_seq, agent.summary = shown_log.summary_seq, shown_log.summary
    if log:
        agent.revision = Revision(log[-1].epoch, log[-1].seq)


def can_recall(spec: AgentSpec) -> bool:
    return spec.may_use(RECALL_TOOL)
