"""A group whose commands are imported when they are used, so that `--help` and `--version` cost nothing."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, NoReturn

import click


class LazyGroup(click.Group):
    """`commands` are names with their short help; each is `command` in the module of its name in `package`,
    or in the one that `modules` names for it.

    `later` are commands of a version to come: they say so, and no help lists them.
    """

    def __init__(
        self,
        *arguments: Any,
        package: str,
        commands: Mapping[str, str],
        later: Collection[str],
        modules: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._package = package
        self._modules = dict(modules or {})
        self._short_help = dict(commands)
        self._later = frozenset(later)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._short_help)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self._later:
            return not_yet(cmd_name)
        if cmd_name not in self._short_help:
            return None
        module = self._modules.get(cmd_name, cmd_name)
        command: click.Command = import_module(f"{self._package}.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._short_help.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise unknown(ctx, name, self._short_help)
        return super().resolve_command(ctx, args)


class PlainGroup(click.Group):
    """A group of few commands in one module, with the same words for unknown and coming ones."""

    def __init__(self, *arguments: Any, later: Collection[str] = (), **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._later = frozenset(later)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return not_yet(cmd_name) if cmd_name in self._later else super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown(ctx, args[0], self.commands)
        return super().resolve_command(ctx, args)


def unknown(ctx: click.Context, name: str, known: Collection[str]) -> click.UsageError:
    near = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean `{ctx.command_path} {near[0]}`?" if near else ""
    return click.UsageError(f"There is no command `{ctx.command_path} {name}`.{guess}", ctx)


def not_yet(name: str) -> click.Command:
    """Takes any arguments, `--help` too, and has one answer."""

    def refuse(arguments: tuple[str, ...]) -> NoReturn:
        context = click.get_current_context()
        raise click.UsageError(f"`{context.command_path}` is not in this version yet.", context.parent)

    return click.Command(
        name,
        callback=refuse,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
        hidden=True,
    )
