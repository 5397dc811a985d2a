"""How commands are declared: their common options, their help and examples, and their event loop."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from talaria.core.program import program, typed

if TYPE_CHECKING:
    from talaria.config.home import Home

Function = Callable[..., object]
F = TypeVar("F", bound=Function)
T = TypeVar("T")
_IN_HELP = re.compile(r"(?<![\w./-])talaria (?=[a-z\[])")


@dataclass
class Invocation:
    """A run of the program, with the options that all commands have."""

    home_option: str | None = None

    def home(self) -> Home:
        """Return the home. If `--home` names a folder that does not exist, the user is asked in a terminal
        whether it is to be made.

        Raises `ConfigError` if it cannot be resolved, is missing or cannot be made, and `UntrustedHome`.
        """
        home = self.any_home()
        if self.home_option is not None and not home.path.exists():
            _make_named(home)
        return home

    def read_home(self) -> Home:
        """Return the home for a command that reads it: one that TALARIA_HOME names has to exist too.

        Raises what `home` raises.
        """
        home = self.home()
        if os.environ.get("TALARIA_HOME") and not home.path.exists():
            _make_named(home)
        return home

    def any_home(self) -> Home:
        """Return the home, whether it exists or not. Raises `ConfigError` and `UntrustedHome`."""
        from talaria.config.home import check_trusted

        home = self.find_home()
        check_trusted(home)
        return home

    def find_home(self) -> Home:
        """Return the home, whoever controls it. Reads no files. Raises `ConfigError`."""
        from talaria.config.home import Home

        return Home.find(self.home_option, os.environ)

    def command_line(self, verb: str) -> str:
        """Return the command line that runs another command on the same home."""
        from talaria.config.home import DEFAULT_HOME

        path = self.find_home().path
        is_default = path == Path(DEFAULT_HOME).expanduser()
        return f"{program()} {verb}{'' if is_default else _option(path)}"

    def spoken(self, text: str) -> str:
        """Return the text with commands in backticks as they are typed here, with the `--home` that was given
        to this command."""
        home = "" if self.home_option is None else _option(self.home_option)
        return typed(text, lambda verb: f"{program()} {verb}{home}") if "`" in text else text


def _make_named(home: Home) -> None:
    """Make a home that was named by hand, once the user agrees: a mistyped path would be an empty home."""
    import shlex

    from talaria.core.errors import ConfigError

    what = f"The home {home.path} does not exist."
    if sys.stdin.isatty() and sys.stderr.isatty():
        if not click.confirm(f"{what} Make a new one there?", default=True, err=True):
            raise ConfigError(f"{what} None was made.", "Name another with --home, or leave --home out.")
        home.prepare()
        return
    make = f"mkdir -p -m 700 {shlex.quote(str(home.path))}"
    raise ConfigError(what, f"Is the path mistyped? A new home is made by: {make}")


def _option(home: Path | str) -> str:
    import shlex

    return f" --home {shlex.quote(str(home))}"


def common(function: F) -> F:
    """Add `--home` and `--version` to a command. The home goes to the `Invocation` in the click context."""
    home = click.option(
        "--home",
        metavar="PATH",
        expose_value=False,
        callback=_remember_home,
        help="The folder that holds everything (default: $TALARIA_HOME or ~/.talaria).",
    )
    version = click.option(
        "--version",
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_show_version,
        help="Show the version and exit.",
    )
    return home(version(function))


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop if there is one. Ctrl-C cancels it, then raises
    KeyboardInterrupt."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def confirm(question: str, *, yes: bool, default: bool = False, abort: bool = True) -> bool:
    """Return whether the person agrees; without asking if `yes`. With `abort`, a no ends the command.

    Raises `UsageError` if there is no terminal to ask on.
    """
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("Cannot ask for confirmation without a terminal. If this is right, add --yes.")
    return yes or click.confirm(question, default=default, abort=abort)


def _remember_home(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Invocation).home_option = value


def _show_version(context: click.Context, option: click.Parameter, is_given: bool) -> None:
    if is_given and not context.resilient_parsing:
        from talaria.core.program import this_version

        click.echo(f"talaria {this_version()}")
        context.exit()


# -- commands and groups of them


def verb(name: str, *examples: str) -> Callable[[Function], click.Command]:
    """Declare a top-level command. The function gets the `Invocation` and the values of its options."""
    declare = click.command(name, cls=VerbCommand, epilog=_shown(examples))
    return lambda function: declare(common(click.pass_obj(function)))


def group(name: str, *examples: str) -> Callable[[Function], Group]:
    declare = click.group(name, cls=Group, epilog=_shown(examples), no_args_is_help=True)
    return lambda function: declare(common(function))


def _as_typed(help_text: str) -> str:
    """Return a command's help with the program's name as it is typed here."""
    return _IN_HELP.sub(f"{program()} ", help_text)


def _shown(examples: Collection[str]) -> str:
    lines = "".join(f"\n  {example}" for example in examples)
    return f"\b\nExample{'s' if len(examples) > 1 else ''}:{lines}"


class VerbCommand(click.Command):
    def get_help(self, ctx: click.Context) -> str:
        return _as_typed(super().get_help(ctx))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take negative numbers as values. Other unknown options are errors."""
        ctx.ignore_unknown_options = any(arg[:1] == "-" and arg[1:2].isdigit() for arg in args)
        return super().parse_args(ctx, args)


class Group(click.Group):
    def get_help(self, ctx: click.Context) -> str:
        return _as_typed(super().get_help(ctx))

    def verb(self, name: str, *examples: str) -> Callable[[Function], None]:
        """Declare a command of this group."""
        return lambda function: self.add_command(verb(name, *examples)(function))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from talaria.core.text import nearest

            near = nearest(args[0], self.list_commands(ctx), likeness=0.65)
            guess = f" Did you mean `{ctx.command_path} {near}`?" if near else ""
            raise click.UsageError(f"There is no command `{ctx.command_path} {args[0]}`.{guess}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that imports a command when it is used, so that `--help` and `--version` are fast.

    `verbs` are the names with their short help. Each is the object `command` in the module of its name in
    `package`.
    """

    def __init__(self, *arguments: Any, package: str, verbs: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._package = package
        self._short_help = verbs

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._short_help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._short_help:
            return super().get_command(ctx, cmd_name)
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"{self._package}.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._short_help.items()))
