"""Running tool calls. Whatever happens, the model gets a result that it can act on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from talaria.access.egress import MAX_LINKS
from talaria.commands.command import ExtraCommand
from talaria.core.clock import Clock, SystemClock
from talaria.core.delegates import Delegate, Report, next_id
from talaria.core.errors import ToolError
from talaria.core.events import Event, ToolOutput
from talaria.core.files import result_name
from talaria.core.ids import SessionId, TurnId, asking_chat
from talaria.core.limits import BoundedDict
from talaria.core.messages import Content, File, Image, Part, Text, ToolCall, ToolOutcome, ToolResult
from talaria.core.questions import Decision, Question, QuestionDraft
from talaria.core.redaction import Redacted, Redactor, SecretRegistry
from talaria.core.specs import AgentSpec
from talaria.core.text import did_you_mean
from talaria.core.tools import TOOL_SEARCH, ToolSpec
from talaria.core.turns import Inbound, Turn
from talaria.core.units import format_size
from talaria.observe.metrics import Metrics, ServerReading
from talaria.tools.approvals import CallGate
from talaria.tools.delegate import DelegateTool, holder_of, no_delegates
from talaria.tools.function import SHORT_ARGUMENTS, Arguments, parse_arguments
from talaria.tools.settings import ToolSettings
from talaria.tools.tool import AskModel, CallScope, SessionTrust, Tool, ToolContext, ToolSource, no_model
from talaria.tools.tool_search import (
    SessionTools,
    ToolFinder,
    ToolOffer,
    ToolUsage,
    bind_offer,
    choose_shown,
    make_offer,
)
from talaria.tools.toolset import ToolSet, resolve
from talaria.tools.workers import ToolWorkers, TurnResources
from talaria.workspace.checkpoints.checkpoints import FolderCheckpoints
from talaria.workspace.folder import Folder
from talaria.workspace.reading import MAX_PICTURE_BYTES, MAX_SIDE, image_bytes, picture_part
from talaria.workspace.spill import Spill

if TYPE_CHECKING:
    from talaria.workspace.workspaces import ChatWorkspace


# -- the parts of a result that a model gets: texts, and a limited number of images and files -------------


MAX_IMAGES = 8
MAX_FILES = 20
_MAX_FILE_CHARS = 5000


def encodable(text: str) -> str:
    """Return `text` as it can be stored and sent: half surrogate pairs, as in odd file names, become `?`."""
    return text.encode(errors="replace").decode()


def checked_parts(parts: Iterable[Part]) -> list[Part]:
    """Return the parts as they can be stored and sent. Blocks.

    At most `MAX_IMAGES` images, with `MAX_PICTURE_BYTES` together, and `MAX_FILES` files are kept. An image
    is kept only if every provider takes it: one that is refused would be refused with every later request of
    its session. A note takes the place of all that is left out.
    """
    kept: list[Part] = []
    images = files = left_out = 0
    room = MAX_PICTURE_BYTES
    for part in parts:
        match part:
            case Text(text=text):
                kept.append(Text(encodable(text)))
            case Image():
                data = (image_bytes(part) if images < MAX_IMAGES else None) or b""
                picture = picture_part(data) if len(data) <= room else None
                if picture is None:
                    left_out += 1
                else:
                    images, room = images + 1, room - len(data)
                    kept.append(Image(picture.url, part.detail))
            case File(name=name, path=path, media_type=media_type, digest=digest):
                if files == MAX_FILES or len(name + path + media_type + (digest or "")) > _MAX_FILE_CHARS:
                    left_out += 1
                else:
                    files += 1
                    texts = (encodable(name), encodable(path), encodable(media_type))
                    kept.append(File(*texts, part.size, digest=encodable(digest) if digest else UNSET))
    if left_out:
        kinds = f"PNG, JPEG, GIF or WebP, {format_size(MAX_PICTURE_BYTES)}, {MAX_SIDE} pixels on each side"
        limits = f"A result may have {MAX_IMAGES} images ({kinds}) and {MAX_FILES} files."
        kept.append(Text(f"[{left_out} of its images and files cannot be shown. {limits}]"))
    return kept


# -- running tool calls -----------------------------------------------------------------------------------


MAX_OUTPUT_BYTES = 64 << 10
OUTPUT_CUT = "\n[More output is not shown while the call runs.]\n"
_SUBSETS_KEPT = 8
_SHOWN_NAME, _SHOWN_NAMES = 100, 200  # comparing names takes time for each
_EVENT_BYTES = 64  # charged for each event, so that single characters are bounded too

_log = logging.getLogger("talaria.tools")


TrustOf: TypeAlias = Callable[[Turn, Callable[[], bool]], SessionTrust]
"""Returns the trust of a turn. Its second argument says whether the model sees untrusted content."""


class ToolRunner:
    """The tools that this process has, and the limits of their calls. Shared by all turns.

    `tools` is the current set, with the built-in sources that are `enabled`. It changes when a source
    announces a change and when other sources are enabled. New sessions and `/reload` take the current set up;
    a session that exists keeps the specs that it was told, and a turn that runs keeps its tools.
    """

    def __init__(
        self,
        sources: Sequence[ToolSource],
        settings: ToolSettings,
        metrics: Metrics,
        workers: ToolWorkers | None = None,
        secrets: SecretRegistry | None = None,
        *,
        checkpoints: FolderCheckpoints | None = None,
        trust: TrustOf = lambda turn, has_untrusted: SessionTrust(),
        clock: Clock | None = None,
        usage: ToolUsage | None = None,
    ) -> None:
        """Raises `ConfigError`, as `resolve` does."""
        self._usage = usage or ToolUsage()
        self.checkpoints = checkpoints
        self._trust = trust
        self._clock = clock or SystemClock()
        self._workers = workers or ToolWorkers()
        self._secrets = secrets or SecretRegistry()
        self._sources = tuple(sources)
        self._with_section = tuple(each for each in sources if each.has_section)
        self._metrics = metrics
        self.use(settings)
        for source in self._sources:
            source.subscribe(lambda: self.use(self._settings))

    def use(self, settings: ToolSettings) -> None:
        """Use these settings, and the tools that the sources have now, for turns that begin from now on.
        Raises `ConfigError`; nothing changes then."""
        self.tools = resolve(self._sources, settings.enabled)
        self._settings = settings
        self.enabled = settings.enabled
        self._families = self.tools.families()
        self._counts_usage = any(not family.is_builtin for family in self._families)
        self._finder = ToolFinder(self.tools)
        self._bound: BoundedDict[tuple[str, tuple[str, ...] | None], SessionTools] = BoundedDict(
            _SUBSETS_KEPT
        )
        self._offer = lru_cache(maxsize=_SUBSETS_KEPT)(make_offer)

    def offer(self, tools: ToolSet) -> ToolOffer:
        """Return what a new session that may use these tools is told of them now. Cheap."""
        families = self._families if tools is self.tools else tools.families()
        return self._offer(tools, choose_shown(families, int(self._settings.search_above), self._usage.rank))

    def start(self) -> None:
        """Let sources start their servers, now that the gateway is ready."""
        for source in self._sources:
            source.start()

    def servers(self) -> dict[str, ServerReading]:
        """Return how the servers of all sources are now."""
        found = (source.servers() for source in self._sources)
        return {name: reading for servers in found for name, reading in servers.items()}

    def section(self) -> str:
        """Return what the prompt of a new session says about enabled sources, as of now. To be called before
        `tools` is read: a source may find by it that its tools have changed."""
        texts = [each.section() for each in self._with_section if each.name in self.enabled]
        return "\n\n".join(filter(None, texts))

    def commands(self) -> Iterator[ExtraCommand]:
        """Yield the commands of enabled sources, as of now."""
        for source in self._sources:
            if source.name in self.enabled:
                yield from source.commands()

    def bind(
        self,
        turn: Turn,
        spec: AgentSpec,
        workspace: ChatWorkspace | None,
        emit: Callable[[Event], None],
        ask_model: AskModel = no_model,
        *,
        has_untrusted: Callable[[], bool] = lambda: True,
    ) -> BoundTools | None:
        """Return the tools of a session's spec for one turn, acting on `workspace`; None without a workspace,
        since the tools of such a turn are its caller's. A tool that is not there any more is left out.
        `has_untrusted` says whether untrusted content is in what the model sees."""
        if workspace is None:
            return None
        self.section()  # lets a source notice that its tools have changed
        bound = self._bind(spec, turn.inbound.tools)
        gate = CallGate(
            turn.session_id,
            turn.id,
            turn.inbound.sender.id,
            self._settings,
            workspace,
            self._trust(turn, has_untrusted),
            self._clock,
            is_unattended=turn.inbound.is_unattended is True,
            chat_key=turn.chat_key,
            sender=turn.inbound.sender,
            order=turn.inbound.order,
        )
        return BoundTools(
            tools=bound.tools,
            changed=bound.changed,
            usage=self._usage if self._counts_usage else None,
            session_id=turn.session_id,
            turn_id=turn.id,
            inbound=turn.inbound,
            workspace=workspace,
            gate=gate,
            settings=self._settings,
            secrets=self._secrets,
            resources=self._workers.resources(turn.session_id),
            emit=emit,
            count=self._metrics.tool_called,
            checkpoints=self.checkpoints,
            ask_model=ask_model,
            model=f"{spec.provider}/{spec.model}",
        )

    def _bind(self, spec: AgentSpec, only: tuple[str, ...] | None) -> SessionTools:
        if only is None and spec.tools == self.tools.names:
            return SessionTools(self.tools)
        key = (spec.tools_fingerprint, only)
        if (known := self._bound.get(key)) is None:
            known = self._bound[key] = bind_offer(spec, self.tools, self._finder, only)
        self._bound.move_to_end(key)
        return known


def _error(call: ToolCall, error: ToolError) -> ToolResult:
    return ToolResult(call.id, call.name, f"Error: {error.info().sentence()}", ToolOutcome.ERROR)


class BoundTools(msgspec.Struct, frozen=True):
    """The tools of a session, bound to one turn of it. Implements `TurnTools`.

    A call of a tool that is not in `tools` is an error result. `emit` takes the events of the turn. `secrets`
    are taken out of results and output. `count` is told the name ("unknown" for a tool that is not in
    `tools`) and the outcome of each call. `gate` decides which calls need a person's word. `checkpoints`
    copies files around each call that may write them. `model` is the session's (provider/name). `changed`
    names tools that the session could find once and may not use as they are now. `usage` counts calls by the
    origins of their tools."""

    tools: ToolSet
    session_id: SessionId
    turn_id: TurnId
    inbound: Inbound
    workspace: ChatWorkspace
    gate: CallGate
    settings: ToolSettings
    secrets: SecretRegistry
    resources: TurnResources
    emit: Callable[[Event], None]
    count: Callable[[str, ToolOutcome], None]
    checkpoints: FolderCheckpoints | None = None
    ask_model: AskModel = no_model
    model: str = ""
    changed: frozenset[str] = frozenset()
    usage: ToolUsage | None = None

    def spec(self, name: str) -> ToolSpec | None:
        tool = self.tools.get(name)
        return tool.spec if tool else None

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Hold one of the slots for calls inside the block. Entering waits while this turn, or the process,
        runs as many calls as it may."""
        return self.resources.workers.slot(self.turn_id)

    async def question(self, call: ToolCall) -> QuestionDraft | None:
        """Return what to ask a person before the call may run; None if it may run unasked."""
        tool = self.tools.get(call.name)
        try:
            return None if tool is None else await self.gate.question(tool, call)
        except ToolError:
            return None  # as below
        except Exception:
            _log.exception("tool %s cannot say what to ask", call.name, extra=self._ids(call))
            return None  # running the call fails for the same reason

    async def hand_out(self, call: ToolCall, n: int, earlier: int) -> Sequence[Delegate] | ToolResult:
        """Return the delegates for which the call has to wait, or why there are none; see `TurnTools`."""
        tool = self.tools.get(call.name)
        try:
            if not isinstance(tool, DelegateTool):
                raise no_delegates(self.inbound) or self._unknown(call.name)
            arguments = parse_arguments(tool, call.arguments)
            ordered = tool.plan(arguments, self.inbound, self.tools, earlier)
        except ToolError as error:
            self.count(call.name, ToolOutcome.ERROR)
            return _error(call, error)
        is_tainted, now = await self.gate.trust.is_tainted(), self.gate.clock.now()
        return [
            Delegate(
                next_id(holder_of(self.turn_id, self.inbound), n, index),
                self.turn_id,
                n,
                call.id,
                msgspec.structs.replace(
                    task, model=task.model or ("" if task.agent else self.model), untrusted=is_tainted
                ),
                now,
                tool.ends_at(now, self.inbound),
                report=Report.OWED if arguments.get("background") else Report.RESULT,
            )
            for index, task in enumerate(ordered, 1)
        ]

    async def run(
        self, call: ToolCall, question: Question | None = None, delegates: Sequence[Delegate] = ()
    ) -> ToolResult:
        """Run `call` to its result. Raises nothing but `CancelledError`, when the turn is stopped.

        A call that is unknown, wrong, failing or late is a result with the outcome `error`, whose text tells
        the model what to do. Its text has at most `settings.max_result` bytes; the rest is kept in the chat's
        folder. Images and files are bounded by `checked_parts`.
        """
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        outcome, marks = ToolOutcome.OK, _Marks()
        try:
            content = await self._handle(call, question, marks, delegates)
        except ToolError as error:
            outcome, content = ToolOutcome.ERROR, _error(call, error).text
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling() > cancels:
                raise
            _log.exception("tool %s failed", call.name, extra=self._ids(call))
            outcome = ToolOutcome.ERROR
            content = f"Error: {call.name} failed for a reason inside the gateway; its log has the details."
        if task.cancelling() > cancels:
            raise asyncio.CancelledError  # the handler swallowed it
        self.count(call.name if call.name in self.tools else "unknown", outcome)
        if self.usage is not None and (origin := self.tools.origin(call.name)) and self.usage.add(origin):
            await self.resources.in_thread(self.usage.save)
        if isinstance(content, str):
            text = await self._capped(call, content, marks)
            return ToolResult(call.id, call.name, text, outcome, untrusted=marks.untrusted, links=marks.links)
        checked = [
            self._without_secrets(part) for part in await self.resources.in_thread(checked_parts, content)
        ]
        texts = "\n".join(part.text for part in checked if isinstance(part, Text))
        if (capped := await self._capped(call, texts, marks)) != texts:
            checked = [Text(capped), *(part for part in checked if not isinstance(part, Text))]
        result = ToolResult.of(call.id, call.name, tuple(checked), outcome)
        return msgspec.structs.replace(result, untrusted=marks.untrusted, links=marks.links)

    async def _handle(
        self, call: ToolCall, question: Question | None, marks: _Marks, delegates: Sequence[Delegate] = ()
    ) -> Content:
        tool = self.tools.get(call.name)
        if tool is None:
            raise self._unknown(call.name[:_SHOWN_NAME])
        decision = await self.gate.check(tool, call, question)
        if tool.spec.untrusted:
            marks.distrust()
        if len(call.arguments) <= SHORT_ARGUMENTS:
            arguments = parse_arguments(tool, call.arguments)
        else:
            arguments = await self.resources.in_thread(parse_arguments, tool, call.arguments)
        spec = tool.spec
        if not spec.uses_files:
            return await self._run_tool(tool, arguments, call, decision, marks, delegates=delegates)
        await self.workspace.claim()
        trust = self.gate.trust
        if spec.writes_files and (is_open_shell(spec, self.settings) or await trust.is_tainted()):
            await trust.taint_folder(call.name)
        try:
            async with self._covered(spec):
                return await self._run_tool(tool, arguments, call, decision, marks)
        finally:  # also if it failed: its error may repeat what it read
            if spec.reads_files and await trust.is_folder_tainted():
                marks.distrust()

    def _unknown(self, name: str) -> ToolError:
        if name in self.changed:
            return ToolError(
                f"The tool {name} is not what it was when this conversation began, and was not run.",
                "The person can send /reload; then search for it again.",
            )
        if TOOL_SEARCH in self.tools:
            return ToolError(f"There is no tool {name!r}.", f"{TOOL_SEARCH} finds the names that there are.")
        names = ", ".join(self.tools.names[:_SHOWN_NAMES]) or "none"
        hint = did_you_mean(name, self.tools.names[:_SHOWN_NAMES], f"There are: {names}.")
        return ToolError(f"There is no tool {name!r}.", hint)

    async def _run_tool(
        self,
        tool: Tool,
        arguments: Arguments,
        call: ToolCall,
        decision: Decision | None,
        marks: _Marks,
        *,
        delegates: Sequence[Delegate] = (),
    ) -> Content:
        limit = self.settings.call_timeout if tool.spec.timeout is None else tool.spec.timeout
        seconds = limit.total_seconds()
        loop = asyncio.get_running_loop()
        scope = CallScope(loop.time, seconds)
        redactor = self.secrets.redactor
        output = _Output(loop, lambda text: self.emit(ToolOutput(call.id, text)), redactor)
        context = ToolContext(
            self.session_id,
            self.turn_id,
            call.id,
            self.workspace,
            scope,
            output.write,
            self.resources,
            decision,
            redactor,
            self.gate.trust,
            marks.distrust,
            marks.offer_links,
            asking_chat(self.inbound.chat_key),
            self.inbound.sender,
            self.inbound.is_unattended is True,
            self.ask_model,
            delegates,
        )
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await tool.run(arguments, context)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ToolError(
                f"{call.name} did not come back within {seconds:g} seconds.",
                "It may have done a part of its work: look before you try again.",
            ) from None
        finally:
            scope.cancel()
            output.close()

    @asynccontextmanager
    async def _covered(self, spec: ToolSpec) -> AsyncIterator[None]:
        """Copy the files that a call inside the block may change, and record what it left, also after an
        error or a cancellation."""
        if self.checkpoints is None or not spec.writes_files:
            yield
            return
        await self.checkpoints.before_write(self.turn_id, self.workspace)
        try:
            yield
        finally:
            await self.record_write()

    async def record_write(self) -> None:
        """Record what a call left, also if the turn is being cancelled. A call that a kill ended is recorded
        when its turn goes on."""
        if self.checkpoints is not None:
            recording = asyncio.ensure_future(self.checkpoints.after_write(self.turn_id, self.workspace))
            try:
                await asyncio.shield(recording)
            except asyncio.CancelledError:
                await asyncio.wait([recording])
                raise

    def _ids(self, call: ToolCall) -> dict[str, str]:
        ids = {"turn_id": self.turn_id, "call_id": call.id}
        kind, _, owner = self.tools.origin(call.name).partition(":")
        return {**ids, "plugin": owner} if kind == "plugin" else ids

    def _without_secrets(self, part: Part) -> Part:
        """Return a file without secrets in its text and its names. Texts are redacted together."""
        if not isinstance(part, File):
            return part
        redact = self.secrets.redactor
        return msgspec.structs.replace(part, text=redact(part.text), name=redact(part.name))

    async def _may_save(self) -> bool:
        """Return whether a result may be kept in the chat's folder, because its files are on this machine."""
        try:
            await self.workspace.claim()
        except ToolError as error:
            _log.warning("a long result of %s is cut: %s", self.turn_id, error)
            return False
        return True

    async def _capped(self, call: ToolCall, text: str, marks: _Marks) -> str:
        """Return the text without secrets, cut to its limit. A long text is kept whole in the folder."""
        max_bytes, redact = self.settings.max_result, self.secrets.redactor
        if isinstance(text, Redacted) and text.redactor is redact:
            data = text.encode(errors="replace")
            if len(data) <= max_bytes:
                return data.decode()
        if len(text) * 4 <= max_bytes:
            return encodable(redact(text))
        open_folder = None
        if "read_file" in self.tools and await self._may_save():
            if marks.untrusted is True:
                await self.gate.trust.taint_folder(call.name)
            open_folder = partial(Folder, self.workspace.folder, self.resources.quota)
        name = result_name(call.name, self.turn_id, call.id)
        return await self.resources.in_thread(Spill(redact, max_bytes, open_folder, name).whole, text)


class _Marks:
    """The marks of a call's result."""

    untrusted: bool | UnsetType = UNSET
    links: tuple[str, ...] | UnsetType = UNSET

    def distrust(self) -> None:
        self.untrusted = True

    def offer_links(self, links: Sequence[str]) -> None:
        self.links = tuple(links[:MAX_LINKS])


def is_open_shell(spec: ToolSpec, settings: ToolSettings) -> bool:
    """Return whether a call runs a command that reaches the machine's network unseen, so that its output may
    come from anywhere. In a sandbox, connections are seen by the proxy, which taints the folder."""
    return spec.runs_commands and settings.sandbox not in ("auto", "bubblewrap", "landlock")


class _Output:
    """The output of one call while it runs, at most `MAX_OUTPUT_BYTES` in total.

    Pieces that come within one round of the event loop are one event. A secret is found although it comes in
    several pieces.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, show: Callable[[str], None], redactor: Redactor
    ) -> None:
        self._loop = loop
        self._show = show
        self._redactor = redactor
        self._stream = redactor.stream()
        self._lock = threading.Lock()
        self._room = MAX_OUTPUT_BYTES
        self._pieces: list[str] = []

    def write(self, text: str) -> None:
        """Safe in any thread. Ignored when the room is used up or the call is over."""
        with self._lock:
            if self._room <= 0:
                return
            if isinstance(text, Redacted) and text.redactor is self._redactor:
                text = self._stream.finish_text() + text
            else:
                text = self._stream.feed_text(text)
            if not text:
                return
            is_first = not self._pieces
            self._keep(text)
        if is_first:
            self._loop.call_soon_threadsafe(self._flush)

    def close(self) -> None:
        with self._lock:
            if self._room > 0 and (rest := self._stream.finish_text()):
                self._keep(rest)
            self._room = 0
        self._flush()

    def _keep(self, text: str) -> None:
        is_first = not self._pieces
        data = text[: self._room].encode(errors="replace")[: self._room]
        self._pieces.append(data.decode(errors="ignore"))
        self._room -= len(data) + (_EVENT_BYTES if is_first else 0)
        if self._room <= 0:
            self._pieces.append(OUTPUT_CUT)

    def _flush(self) -> None:
        with self._lock:
            text = "".join(self._pieces)
            self._pieces.clear()
        if text:
            self._show(text)
