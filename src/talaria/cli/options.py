"""How commands are declared and what each takes: `--home`, `--version`, its examples, the way to the home."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from talaria import __version__

if TYPE_CHECKING:
    from talaria.config.home import Home

Function = Callable[..., object]
F = TypeVar("F", bound=Function)


@dataclass
class Invocation:
    """What was said before and beside the command's own options."""

    home_option: str | None = None

    def home(self) -> Home:
        """Raises `ConfigError` when it cannot be resolved. Touches nothing on the disk."""
        from talaria.config.home import Home

        return Home.find(self.home_option, os.environ)

    def command_line(self, verb: str) -> str:
        """How a person would run another command on the same home."""
        import shlex

        from talaria.config.home import DEFAULT_HOME

        path = self.home().path
        if path == Path(DEFAULT_HOME).expanduser():
            return f"{program()} {verb}"
        return f"{program()} {verb} --home {shlex.quote(str(path))}"


def common(function: F) -> F:
    """Adds `--home` and `--version`; the home is found in the `Invocation`, which is the context's object."""
    home = click.option(
        "--home",
        metavar="PATH",
        expose_value=False,
        callback=_remember_home,
        help="The folder that holds everything (default: $TALARIA_HOME or ~/.talaria).",
    )
    version = click.version_option(__version__, prog_name="talaria", message="%(prog)s %(version)s")
    return home(version(function))


def program() -> str:
    """`talaria` when that is this program on the path, else the clone's `./dev`."""
    import shutil

    found = shutil.which("talaria")
    if found and Path(found).resolve().is_relative_to(Path(sys.prefix).resolve()):
        return "talaria"
    clone = Path(__file__).parents[3]
    if not (clone / "dev").is_file():
        return "python -m talaria"
    return "./dev" if Path.cwd() == clone else str(clone / "dev")


def spoken(text: str) -> str:
    """Texts name commands as `talaria VERB`, in backticks; here they become what can be typed."""
    return text.replace("`talaria ", f"`{program()} ") if "`talaria " in text else text


def _remember_home(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.ensure_object(Invocation).home_option = value


# -- commands and groups of them


def verb(name: str, *examples: str) -> Callable[[Function], click.Command]:
    """A command of its own. The function is given the `Invocation`; its options stand below."""
    declare = click.command(name, cls=_Command, epilog=_shown(examples))
    return lambda function: declare(common(click.pass_obj(function)))


def group(name: str, *examples: str) -> Callable[[Function], Group]:
    declare = click.group(name, cls=Group, epilog=_shown(examples), no_args_is_help=True)
    return lambda function: declare(common(function))


def _shown(examples: Collection[str]) -> str:
    lines = "".join(f"\n  {example}" for example in examples)
    return f"\b\nExample{'s' if len(examples) > 1 else ''}:{lines}"


class _Command(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """A negative number is a value and no option; every other unknown option is told."""
        ctx.ignore_unknown_options = any(arg[:1] == "-" and arg[1:2].isdigit() for arg in args)
        return super().parse_args(ctx, args)


class Group(click.Group):
    def verb(self, name: str, *examples: str) -> Callable[[Function], None]:
        """A command of this group, declared like one of its own."""
        return lambda function: self.add_command(verb(name, *examples)(function))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from talaria.core.suggest import nearest

            near = nearest(args[0], self.list_commands(ctx))
            guess = f" Did you mean `{ctx.command_path} {near}`?" if near else ""
            raise click.UsageError(f"There is no command `{ctx.command_path} {args[0]}`.{guess}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """Its commands are imported when they are used, so that `--help` and `--version` cost nothing.

    `commands` are names with their short help; each is `command` in the module of its name in `package`.
    """

    def __init__(self, *arguments: Any, package: str, commands: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._package = package
        self._short_help = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._short_help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._short_help:
            return super().get_command(ctx, cmd_name)
        command: click.Command = import_module(f"{self._package}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._short_help.items()))
