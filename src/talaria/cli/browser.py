"""`talaria browser`: logs the browser of a session in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from talaria.cli.operations import Verb, add_verbs
from talaria.cli.options import Invocation, group
from talaria.core.text import clean_line
from talaria.operations.browser import AddedCookies, CookiesBody

_SHOWN = 5


@group("browser", "talaria browser login work --file cookies.txt")
def command() -> None:
    """Log the browser of a session in, with cookies of your own browser."""


def _read(invocation: Invocation, wanted: CookiesBody, options: dict[str, Any]) -> CookiesBody:
    path: Path = options["file"]
    return msgspec.structs.replace(wanted, cookies=path.read_text(errors="replace"))


def _show(invocation: Invocation, wanted: CookiesBody, answer: AddedCookies) -> None:
    more = f" and {len(answer.sites) - _SHOWN} more sites" if len(answer.sites) > _SHOWN else ""
    sites = ", ".join(clean_line(site, 100) for site in answer.sites[:_SHOWN])
    click.echo(f"Added {answer.cookies} cookies of {sites}{more} to the browser of {wanted.x}.")


FILE = click.Option(
    ["--file"],
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with cookies: a cookies.txt, or JSON, as extensions of browsers export them.",
)
add_verbs(
    command,
    {"login": Verb(prepare=_read, show=_show, options=(FILE,), without=frozenset({"cookies"}))},
)
