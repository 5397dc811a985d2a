"""`talaria config`: where the configuration is."""

from __future__ import annotations

import click

from talaria.cli.lazy import PlainGroup
from talaria.cli.options import Invocation, common


@click.group(
    "config",
    cls=PlainGroup,
    later=("get", "set", "edit"),
    no_args_is_help=True,
    epilog="\b\nExample:\n  $EDITOR $(talaria config path)",
)
@common
def command() -> None:
    """Show where the configuration is."""


@command.command("path", epilog="\b\nExample:\n  talaria config path")
@common
@click.pass_obj
def show_path(invocation: Invocation) -> None:
    """Print the path of config.toml, whether it exists or not."""
    click.echo(invocation.home().config)
