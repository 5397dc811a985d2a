"""Operations on sessions: list, read, search, end and delete them, and choose their project folder."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from talaria.access.callers import CHANNEL, HOME_CALLER, TOKEN, ApiCaller
from talaria.commands.command import ExtraCommand
from talaria.core.access import EVERYTHING, Reach
from talaria.core.errors import BadRequest, LeaseHeld, NotFound, Refused, ToolError
from talaria.core.files import SentPage
from talaria.core.ids import SESSION_PREFIX, ChatAddress, ChatKey, SessionId, is_session_name
from talaria.core.ledger import EntryPage
from talaria.core.problems import Action, Do
from talaria.core.sessions import Mark, Session, shorten_title
from talaria.core.text import clean_line
from talaria.core.views import view_of
from talaria.gateway import Gateway, Records
from talaria.operations.operation import ALL, CHAT, OPERATE, OperationCall, PageQuery, argument, operation
from talaria.search.index import FoundEntry, SearchPage
from talaria.search.words import terms
from talaria.turns.feed import RecordChange, RecordEvent
from talaria.turns.slash import CommandSpec

_MAX_QUERY: Final = 1000  # characters
_MAX_FOUND: Final = 100
_MOST_SEQ: Final = 2**53 - 1  # the largest whole number that every JSON reader keeps
_UNKNOWN: Final = ("not_found",)
SessionName = Annotated[str, argument("Session name or id.", "NAME_OR_ID")]


# -- inputs -----------------------------------------------------------------------------------------------


class SessionKey(msgspec.Struct, frozen=True):
    x: SessionName


class FilesQuery(PageQuery, frozen=True, kw_only=True):
    x: SessionName


class EntriesQuery(FilesQuery, frozen=True, kw_only=True):
    before: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=_MOST_SEQ,
                description="Return the last entries before this number, oldest first. `next` is then the "
                "`before` of the page with older entries.",
            ),
        ]
        | UnsetType
    ) = UNSET
    turns: Annotated[bool, Meta(description="Add the turns of these entries, with cost and questions.")] = (
        False
    )


class TitleBody(msgspec.Struct, frozen=True, kw_only=True):
    x: SessionName
    title: Annotated[str, Meta(min_length=1, max_length=200, description="The new title.")]


ListedMark = Annotated[
    Literal["pinned", "archived"], Meta(description="Only sessions with this mark. Default: all.")
]


class SessionsQuery(PageQuery, frozen=True, kw_only=True):
    mark: ListedMark | UnsetType = UNSET


class MarkBody(msgspec.Struct, frozen=True, kw_only=True):
    x: SessionName
    mark: Annotated[Mark, Meta(description="`pinned`, `archived`, or empty for neither. Default: empty.")] = (
        ""
    )


class SearchQuery(msgspec.Struct, frozen=True):
    q: Annotated[
        str,
        argument(
            "Search words, a question, or an exact phrase in double quotes.",
            "WORDS…",
            min_length=1,
            max_length=_MAX_QUERY,
        ),
    ]
    limit: Annotated[int, Meta(ge=1, le=_MAX_FOUND, description="Maximum number of hits to return.")] = 20
    after: Annotated[
        str, Meta(max_length=200, description="Cursor: the `next` value of the previous page.")
    ] = ""


class ProjectBody(msgspec.Struct, frozen=True, kw_only=True):
    x: SessionName
    folder: Annotated[
        str, Meta(description="Folder on the gateway's machine. If empty, the chat uses its own folder.")
    ] = ""


# -- answers ----------------------------------------------------------------------------------------------


class SessionView(msgspec.Struct, frozen=True):
    """A session. `name` identifies it in paths; only sessions in the caller's own chats have one. `model` is
    null in lists. `mark` is `pinned`, `archived` or empty."""

    id: SessionId
    name: str | None
    chat_key: ChatKey
    title: str
    created_at: float
    updated_at: float
    revision: str
    ended_at: float | None
    model: str | None = None
    mark: Mark = ""

    @classmethod
    def of(cls, session: Session, model: str | None = None, caller: ApiCaller = HOME_CALLER) -> SessionView:
        name, revision = caller.name_of(session.chat_key), str(session.revision)
        return view_of(cls, session, name=name, revision=revision, model=model)


class SessionList(msgspec.Struct, frozen=True):
    items: tuple[SessionView, ...]
    next: str | None


class FoundView(msgspec.Struct, frozen=True):
    """A log entry that matches a search. `seq` is its number in the session's log. `excerpt` is the text
    around the matching words. `speaker` is the sender's name, `assistant`, or a tool name. `name` identifies
    the session in paths, as in lists."""

    session_id: SessionId
    seq: int
    title: str
    excerpt: str
    at: float
    speaker: str
    name: str | None
    chat_key: ChatKey

    @classmethod
    def of(cls, hit: FoundEntry, caller: ApiCaller) -> FoundView:
        return view_of(cls, hit, name=caller.name_of(hit.chat_key))


class FoundList(msgspec.Struct, frozen=True):
    """Search hits, best first. `is_complete` is false while older conversations are still being indexed."""

    items: tuple[FoundView, ...]
    next: str | None
    is_complete: bool


def _found_list(page: SearchPage, query: str, caller: ApiCaller) -> FoundList:
    """Return the hits whose excerpts contain a word of the query. The index also finds entries near such
    words, which helps a model but confuses a person."""
    wanted = frozenset(terms(query))
    found = (hit for hit in page.hits if not wanted.isdisjoint(terms(hit.excerpt)))
    return FoundList(tuple(FoundView.of(hit, caller) for hit in found), page.next, page.is_complete)


class CommandView(msgspec.Struct, frozen=True):
    """A slash command. `origin` is empty for built-in ones; else it says whose it is, such as
    `plugin:weather`."""

    name: str
    arguments: str
    help: str
    origin: str

    @classmethod
    def of(cls, command: CommandSpec | ExtraCommand) -> CommandView:
        return view_of(cls, command, origin=getattr(command, "origin", ""))


class SessionOptions(msgspec.Struct, frozen=True):
    """`context_tokens` is the size of the last request, as the provider counted it; null if none did. The
    window is null if the session has no model yet."""

    commands: tuple[CommandView, ...]
    context_tokens: int | None = None
    context_window: int | None = None


class ProjectView(msgspec.Struct, frozen=True):
    """The folder that a chat now works in."""

    chat_key: ChatKey
    folder: str


class DeletedSession(msgspec.Struct, frozen=True):
    id: SessionId
    chat_key: ChatKey
    deleted: bool = True


# -- finding ----------------------------------------------------------------------------------------------


class SessionLookup:
    """Finds the session or chat that a name or an id means to a caller."""

    def __init__(self, records: Records) -> None:
        self._store = records.store
        self._agent_name = records.settings.agent.name
        self._shared = HOME_CALLER.chat_key(self._agent_name, "")

    async def session(self, x: str, call: OperationCall) -> Session:
        """Return the session with this id, or the current session of the caller's chat with this name.

        Raises `NotFound`, also for a chat that the caller may not see, and `BadRequest` for a text that is
        neither.
        """
        if x.startswith(SESSION_PREFIX):
            found = await self._store.session(SessionId(x))
        else:
            found = await self._store.current_session(self._key(x, call.caller))
        if found is None or not call.sees(found.chat_key):
            raise NotFound(f"There is no session {x}.", "`talaria sessions list` lists them.")
        return found

    async def chat(self, x: str, call: OperationCall) -> ChatKey:
        """Return the chat for a message to X. A chat with a name need not exist yet.

        Raises `Refused` for the id of a session that is not the current one of its chat, and what `session`
        raises.
        """
        if not x.startswith(SESSION_PREFIX):
            return self._key(x, call.caller)
        session = await self.session(x, call)
        current = await self._store.current_session(session.chat_key)
        if current is None or current.id != session.id:
            action = Action(Do.RESUME, x)
            raise Refused(
                "not_current",
                f"{x} is not the current session of its chat.",
                f"{action} to the chat by its name.",
                action=action,
            )
        return session.chat_key

    async def model(self, x: str, call: OperationCall) -> str | None:
        """Return the model of the session X as provider/name; None if there is no such session yet."""
        try:
            return await self.model_of(await self.session(x, call))
        except NotFound:
            return None

    async def model_of(self, session: Session) -> str | None:
        pinned = await self._store.spec(session.spec_id) if session.spec_id else None
        return f"{pinned.spec.provider}/{pinned.spec.model}" if pinned else None

    def _key(self, name: str, caller: ApiCaller) -> ChatKey:
        if not is_session_name(name):
            raise BadRequest(
                f"{name!r} is not a valid session name.",
                "A name has 1 to 128 of the characters A-Z a-z 0-9 . _ - and does not start with ses_.",
            )
        if caller.owner:
            return caller.chat_key(self._agent_name, name)
        return ChatKey(self._shared + name)  # a name has no character that a key would have to quote


# -- handlers ---------------------------------------------------------------------------------------------


@operation(
    "sessions.list",
    "GET /api/sessions",
    ALL,
    usage=("talaria sessions list --limit 100",),
    tool="list_sessions",
)
async def list_sessions(records: Records, call: OperationCall, wanted: SessionsQuery) -> SessionList:
    """List sessions, most recently used first."""
    within = call.caller.prefix(records.settings.agent.name)
    mark: Mark = "" if wanted.mark is UNSET else wanted.mark
    page = await records.store.sessions(wanted.page, within, mark)
    items = tuple(SessionView.of(session, caller=call.caller) for session in page.items)
    return SessionList(items, page.next)


@operation("sessions.show", "GET /api/sessions/{x}", ALL, audit="session.read", errors=_UNKNOWN)
async def show_session(records: Records, call: OperationCall, wanted: SessionKey) -> SessionView:
    """Show a session with its model."""
    lookup = SessionLookup(records)
    session = await lookup.session(wanted.x, call)
    return SessionView.of(session, await lookup.model_of(session), call.caller)


@operation("sessions.entries", "GET /api/sessions/{x}/entries", ALL, audit="session.read", errors=_UNKNOWN)
async def read_entries(records: Records, call: OperationCall, wanted: EntriesQuery) -> EntryPage:
    """Read the entries of a session's log, oldest first."""
    session = await SessionLookup(records).session(wanted.x, call)
    store = records.store
    if wanted.before is not UNSET:
        page = await store.entries_before(session.id, wanted.before, wanted.limit)
    else:
        page = await store.entries(session.id, wanted.page)
    if not wanted.turns:
        return page
    turns = dict.fromkeys(entry.turn_id for entry in page.entries if entry.turn_id is not None)
    since = page.entries[0].at if page.entries else math.inf
    # Commands after the last entry belong to the page that ends the log.
    is_end = page.next is None if wanted.before is UNSET else wanted.before > session.revision.seq
    until = page.entries[-1].at if page.entries and not is_end else math.inf
    return msgspec.structs.replace(page, turns=await store.turn_sums(session.id, tuple(turns), since, until))


@operation("sessions.files", "GET /api/sessions/{x}/files", ALL, audit="session.read", errors=_UNKNOWN)
async def list_sent_files(records: Records, call: OperationCall, wanted: FilesQuery) -> SentPage:
    """List the files that the agent sent in a session, oldest first."""
    session = await SessionLookup(records).session(wanted.x, call)
    return await records.store.sent_files(session.id, wanted.page)


@operation(
    "sessions.delete",
    "DELETE /api/sessions/{x}",
    CHAT,
    audit="session.delete",
    errors=("not_found", "busy", "draining"),
    usage=("talaria sessions delete work", "talaria sessions delete ses_01m7gjqa04zern --yes"),
)
async def delete_session(records: Records, call: OperationCall, wanted: SessionKey) -> DeletedSession:
    """Permanently delete a session with its history. This deletes its log, turns, saved results and copies of
    sent files. The chat's own files and the spending records are kept. The call fails while the session has
    an unfinished turn."""
    session = await SessionLookup(records).session(wanted.x, call)
    call.about = call.about or session.id  # audited in any case
    try:
        await records.deletions.delete(session.id)
    except LeaseHeld:
        raise _busy(session.id) from None
    return DeletedSession(session.id, session.chat_key)


@operation(
    "sessions.end",
    "POST /api/sessions/{x}/end",
    CHAT,
    audit="session.end",
    errors=("not_found", "busy"),
    usage=("talaria sessions end terminal",),
)
async def end_session(records: Records, call: OperationCall, wanted: SessionKey) -> SessionView:
    """End a session. Its history is kept."""
    session = await SessionLookup(records).session(wanted.x, call)
    if session.ended_at is None:
        try:
            session = await records.sessions.end(session.id)
        except LeaseHeld:
            raise _busy(session.id) from None
    return SessionView.of(session, caller=call.caller)


@operation(
    "sessions.rename",
    "PATCH /api/sessions/{x}",
    CHAT,
    audit="session.rename",
    errors=("not_found", "head_moved"),
    example='{"title": "Trip to Lisbon"}',
)
async def rename_session(records: Records, call: OperationCall, wanted: TitleBody) -> SessionView:
    """Give a session another title. Titles that a model writes do not replace it."""
    session = await SessionLookup(records).session(wanted.x, call)
    title = shorten_title(clean_line(wanted.title, 200))
    if not title:
        raise BadRequest("The title is empty.", "Write at least one visible character.")
    if not await records.store.retitle(session.id, session.title, title):
        raise Refused("head_moved", "The title was changed meanwhile.", "Read the session again.")
    _tell(records, session, "session.titled", title)
    return SessionView.of(msgspec.structs.replace(session, title=title), caller=call.caller)


@operation(
    "sessions.mark",
    "POST /api/sessions/{x}/mark",
    CHAT,
    audit="session.mark",
    errors=_UNKNOWN,
    example='{"mark": "pinned"}',
    usage=("talaria sessions mark work --mark pinned", "talaria sessions mark work"),
)
async def mark_session(records: Records, call: OperationCall, wanted: MarkBody) -> SessionView:
    """Pin a session to the top of the list, or archive it. Its conversation continues as before."""
    session = await SessionLookup(records).session(wanted.x, call)
    await records.store.mark(session.id, wanted.mark)
    _tell(records, session, "session.marked")
    return SessionView.of(msgspec.structs.replace(session, mark=wanted.mark), caller=call.caller)


def _tell(records: Records, session: Session, what: RecordEvent, title: str = "") -> None:
    if records.sessions.feed is not None:
        now = records.store.clock.now()
        records.sessions.feed.note(RecordChange(what, session.id, session.chat_key, now, title=title))


@operation("sessions.options", "GET /api/sessions/{x}/options", ALL, errors=_UNKNOWN)
async def show_options(gateway: Gateway, call: OperationCall, wanted: SessionKey) -> SessionOptions:
    """Show the commands that a chat takes, and how full its model's window is."""
    agents = gateway.turns.agents
    commands = tuple(map(CommandView.of, agents.commands.all()))
    try:
        session = await SessionLookup(gateway).session(wanted.x, call)
    except NotFound:
        if wanted.x.startswith(SESSION_PREFIX):
            raise
        return SessionOptions(commands)  # a chat with a name need not exist yet
    if session.spec_id is None:
        return SessionOptions(commands)
    pinned = await agents.builder.pinned(session.spec_id)
    used = await gateway.store.last_input(session.id)
    return SessionOptions(commands, used, agents.compaction.limits(pinned.spec).window)


def _busy(session_id: SessionId) -> Refused:
    return Refused(
        "busy",
        f"{session_id} has an unfinished turn.",
        "Wait until the turn has finished, or cancel it. If no gateway is running, start one: it resumes the "
        "turn.",
    )


@operation(
    "sessions.search",
    "GET /api/search",
    ALL,
    audit="session.read",
    usage=("talaria sessions search tomato soup", "talaria sessions search '\"due on Friday\"'"),
    tool="search_sessions",
)
async def search_sessions(records: Records, call: OperationCall, wanted: SearchQuery) -> FoundList:
    """Search the messages of all sessions, best hits first."""
    if not wanted.q.strip():
        raise BadRequest("The search query is empty.", 'Enter words to search for, or a "phrase in quotes".')
    reach = _reach(records, call.caller)
    page = await records.search.search(wanted.q, reach, wanted.limit, wanted.after or None)
    seen = tuple(hit for hit in page.hits if call.sees(hit.chat_key))
    return _found_list(msgspec.structs.replace(page, hits=seen), wanted.q, call.caller)


def _reach(records: Records, caller: ApiCaller) -> Reach:
    """A caller finds what it may also read: every chat, or with the role `chat` those of its token."""
    if not caller.owner:
        return EVERYTHING
    return Reach((ChatAddress(records.settings.agent.name, CHANNEL, TOKEN, caller.owner).key(),))


@operation(
    "sessions.project",
    "POST /api/sessions/{x}/project",
    OPERATE,
    audit="session.project",
    errors=("not_found", "not_current"),
    example='{"folder": "/home/ann/site"}',
    max_body=16 << 10,
)
async def use_project(records: Records, call: OperationCall, wanted: ProjectBody) -> ProjectView:
    """Let a chat work in a project folder. Without `folder`, the chat returns to its own folder."""
    chat = await SessionLookup(records).chat(wanted.x, call)
    try:
        await records.workspaces.claim(chat, is_tied=True)  # the folder is of this machine
    except ToolError as error:
        raise BadRequest(error.user_text, "Choose it at the gateway that has the chat's files.") from error
    folder = await asyncio.to_thread(records.folders.choose, chat, wanted.folder)
    return ProjectView(chat, str(folder))


SESSION_OPERATIONS: Final = (
    search_sessions,
    list_sessions,
    show_session,
    delete_session,
    read_entries,
    list_sent_files,
    end_session,
    rename_session,
    mark_session,
    show_options,
    use_project,
)
