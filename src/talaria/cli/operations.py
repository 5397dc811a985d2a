"""Operations on the command line: their verbs, and carrying them out with or without a running gateway."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec
from msgspec import UNSET, Meta

from talaria.access.authorizer import PairingAdmin
from talaria.access.callers import HOME_CALLER
from talaria.access.people import People
from talaria.channels.descriptor import find_address, pairing_channels
from talaria.cli.home_gateway import running_gateway
from talaria.cli.options import Group, Invocation, run_loop, verb
from talaria.cli.text import columns
from talaria.config.home import DEFAULT_HOME, Home
from talaria.config.load import load
from talaria.console.gateway_client import GatewayClient
from talaria.core.clock import SystemClock
from talaria.core.errors import Refused, TalariaError
from talaria.core.redaction import SecretRegistry
from talaria.core.text import clean_line, visible_json
from talaria.gateway import Records
from talaria.operations.operation import I, InputField, O, Operation, OperationCall
from talaria.operations.table import OPERATIONS, Operations
from talaria.parts import PARTS
from talaria.search.index import open_index
from talaria.store.home_lock import HomeLock
from talaria.store.in_memory import MemoryStore
from talaria.store.part import StoreScope, find_engine
from talaria.store.settings import is_file
from talaria.store.store import Store
from talaria.turns.lifecycle import Deletions, SessionLifecycle
from talaria.turns.sending import ChatSender
from talaria.turns.settings import TurnSettings
from talaria.workspace.places import ChatFolders
from talaria.workspace.workspaces import ChatWorkspaces

T = TypeVar("T")
_SHORT = 60  # characters of a cell
YES = click.Option(["--yes"], is_flag=True, help="Do not ask.")


@dataclass(frozen=True, slots=True)
class Carrier:
    """Carries out operations: by the running gateway, or on the records of a home. `missing` is the path of
    the database if the home has none; the records are empty then."""

    at: GatewayClient | Records
    home: Home
    missing: Path | None = None

    async def __call__(self, operation: Operation[Any, I, O], wanted: I) -> O:
        try:
            if isinstance(self.at, GatewayClient):
                return await self.at.carry_out(operation, wanted)
            return await operation.handle(self.at, OperationCall(HOME_CALLER), wanted)
        except TalariaError as error:
            raise self._explain(error) from error

    def _explain(self, error: TalariaError) -> TalariaError:
        """Return the error with what a person at the command line has to know beside it."""
        text, hint = error.user_text, error.hint
        if error.type == "not_found" and self.missing is not None:
            text = f"{text} There is no database {self.missing}."
            hint = f"{hint} No gateway has run there. Name another home with --home or TALARIA_HOME."
        elif error.type == "not_found" and self.home.path != Path(DEFAULT_HOME).expanduser():
            hint = f"{hint} This is about the home {self.home.path}."
        elif error.type == "busy" and not isinstance(self.at, GatewayClient):
            hint = "No gateway is running. Start `talaria serve`, let the turn finish, then try again."
        else:
            return error
        return Refused(error.type, text, hint.strip())


def ask(invocation: Invocation, operation: Operation[Records, I, O], wanted: I, *, make: bool = False) -> O:
    """Carry out one operation. With `make`, a home that has no database gets one."""
    return ask_each(invocation, lambda carry_out: carry_out(operation, wanted), make=make)


def ask_each(invocation: Invocation, use: Callable[[Carrier], Awaitable[T]], *, make: bool = False) -> T:
    """Carry out several operations, by the same gateway or on the same records."""

    async def run() -> T:
        async with open_carrier(invocation.home() if make else invocation.read_home(), make=make) as carrier:
            return await use(carrier)

    return run_loop(run())


@asynccontextmanager
async def open_carrier(home: Home, *, make: bool = False) -> AsyncIterator[Carrier]:
    """Give the running gateway, or else the records of the home, under its lock.

    With the records alone no turn is resumed and no model is called. A home without a database gets one with
    `make`, and has no records otherwise. Raises `StoreError` if the database cannot be opened.
    """
    async with running_gateway(home, os.environ) as client:
        if client is not None:
            yield Carrier(client, home)
            return
    settings = load(home.path, os.environ, PARTS).settings
    engine, database = find_engine(PARTS, settings.store.url), home.find_database(settings.store.url)
    if (loss := home.find_loss(settings.store.url)) is not None:
        raise loss
    if make:
        home.prepare()
    elif is_file(settings.store.url) and not database.exists():
        async with open_records(home, None) as records:
            yield Carrier(records, home, missing=database)
        return
    with HomeLock(home.path):
        async with (
            engine.open(StoreScope(home.database, SystemClock()), settings.of(engine)) as store,
            open_records(home, store) as records,
        ):
            yield Carrier(records, home)


@asynccontextmanager
async def open_records(home: Home, store: Store | None) -> AsyncIterator[Records]:
    """Give the records of a home that no gateway uses: none if it has no database."""
    settings, clock = load(home.path, os.environ, PARTS).settings, SystemClock()
    store = store or MemoryStore(clock)
    folders = ChatFolders(home.path, settings.agent.project, settings.store.shared)
    workspaces = ChatWorkspaces(home.path, folders=folders)
    sessions = SessionLifecycle(store, clock, workspaces, release=lambda session_id: None)
    sender = ChatSender(
        store,
        TurnSettings.of(settings.agent, settings.sessions, settings.model.reasoning, None),
        partial(find_address, PARTS, settings.of, settings.agent.name),
        folders,
        secrets=SecretRegistry(),
        clock=clock,
    )
    async with open_index(home.path, store.recall, clock) as index:
        try:
            yield Records(
                home=home,
                settings=settings,
                clock=clock,
                store=store,
                people=People(),
                sender=sender,
                sessions=sessions,
                deletions=Deletions(store, clock, sessions, folders, index.forget),
                search=index,
                workspaces=workspaces,
                pairing=PairingAdmin(store.pairings, pairing_channels(PARTS)),
            )
        finally:
            await sessions.drain()


# -- verbs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verb:
    """Additions of the command line to an operation. `prepare` may change the input, ask the person, or
    refuse; it gets the values of `options`, and `as_json`. `show` prints the answer. The command line does
    not have the fields in `without`. With `makes_home`, a home that has no database gets one."""

    prepare: Callable[[Invocation, Any, dict[str, Any]], Any] = lambda invocation, wanted, options: wanted
    show: Callable[[Invocation, Any, Any], None] = lambda invocation, wanted, answer: show_answer(answer)
    options: tuple[click.Option, ...] = ()
    without: frozenset[str] = field(default_factory=frozenset)
    makes_home: bool = False


def add_verbs(group: Group, verbs: Mapping[str, Verb], operations: Operations = OPERATIONS) -> None:
    """Add the verbs of a group's operations. Those that `verbs` does not name are all derived."""
    for operation in operations:
        if operation.group == group.name and operation.usage:
            group.add_command(make_verb(operation, verbs.get(operation.verb, Verb())))


def make_verb(operation: Operation[Any, Any, Any], added: Verb) -> click.Command:
    shown = [each for each in operation.fields if each.name not in added.without]

    def run(invocation: Invocation, as_json: bool, **values: Any) -> None:
        options = {option.name: values.pop(option.name) for option in added.options if option.name}
        options["as_json"] = as_json
        given = {name: value for name, value in values.items() if value is not None and value != ()}
        given |= {each.name: " ".join(given[each.name]) for each in shown if each.takes_words}
        wanted = added.prepare(invocation, operation.input(**given), options)
        answer = ask(invocation, operation, wanted, make=added.makes_home)
        if as_json:
            click.echo(visible_json(msgspec.json.format(msgspec.json.encode(answer))))
        else:
            added.show(invocation, wanted, answer)

    run.__doc__ = operation.help.replace("`", "")
    command = verb(operation.verb, *operation.usage)(run)
    as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print the answer as JSON.")
    command.params[:0] = [*map(_parameter, shown), *added.options, as_json]
    return command


def _parameter(field: InputField) -> click.Parameter:
    meta = field.kind.__metadata__[0] if get_origin(field.kind) is Annotated else Meta()
    kind = get_args(field.kind)[0] if get_origin(field.kind) is Annotated else field.kind
    is_list = get_origin(kind) in (list, tuple)
    named: dict[str, Any] = {"type": _click_type(kind, meta)}
    if field.argument:
        nargs = -1 if is_list or field.takes_words else 1
        return click.Argument([field.name], required=True, nargs=nargs, metavar=field.argument, **named)
    option = f"--{field.name.replace('_', '-')}"
    if kind is bool and field.default is UNSET:
        option = f"{option}/--no-{option[2:]}"
        named["default"] = None
    if kind is bool:
        named |= {"is_flag": True, "type": bool}
    if isinstance(field.default, int | float | str):
        named |= {"default": field.default, "show_default": kind is not bool and field.default != ""}
    return click.Option(
        [option, field.name],
        help=field.text,
        required=field.is_required,
        multiple=is_list,
        metavar=(meta.extra or {}).get("metavar"),
        **named,
    )


def _click_type(kind: Any, meta: Meta) -> Any:
    choices = (meta.extra_json_schema or {}).get("enum")
    if get_origin(kind) is Literal:
        choices = get_args(kind)
    elif isinstance(kind, type) and issubclass(kind, Enum):
        choices = [choice.value for choice in kind]
    if choices:
        return click.Choice(list(choices))
    if kind is int and (meta.ge is not None or meta.le is not None):
        return click.IntRange(_whole(meta.ge), _whole(meta.le))
    return kind if kind in (int, float, str) else None


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


# -- answers ----------------------------------------------------------------------------------------------


def show_answer(answer: Any) -> None:
    """Print an answer that has no form of its own: a list as a table, anything else as names and values."""
    found = msgspec.to_builtins(answer)
    if isinstance(items := found.get("items"), list | tuple):
        names = [name for name, value in (items[0] if items else {}).items() if not isinstance(value, dict)]
        rows = [tuple(name.upper() for name in names)]
        rows += [tuple(_cell(item.get(name)) for name in names) for item in items]
        click.echo(columns(rows) if items else "There is nothing to list.")
        return
    click.echo(columns([(name, _cell(value)) for name, value in found.items()]))


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    return clean_line("-" if value is None else str(value), _SHORT)
