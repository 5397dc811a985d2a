"""`talaria model`: list, fetch and remove the weights of built-in models."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from talaria.cli.options import Invocation, confirm, group, run_loop
from talaria.cli.text import columns
from talaria.config.load import load
from talaria.core.errors import ConfigError
from talaria.models.local.downloads import YES_VARIABLE, choose_built_in, default_weights, is_yes
from talaria.models.local.fetch import fetch
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    MANIFEST,
    FetchProgress,
    FetchStage,
    Weights,
    WeightsCache,
    find_weights,
    megabytes,
    size_of,
)
from talaria.parts import PARTS

_STEP = 0.1  # of the whole: a line for each, where there is no terminal
EXAMPLES = (
    "talaria model list",
    "talaria model pull",
    "talaria model pull qwen2.5-coder-1.5b --yes",
    "talaria model remove smollm2-135m",
    "talaria model remove --all",
)


@group("model", *EXAMPLES)
def command() -> None:
    """List, download and remove built-in models. All of your homes share them."""


@command.verb("list", *EXAMPLES)
def _list(invocation: Invocation) -> None:
    """The built-in models, and which are on this machine."""
    cache = WeightsCache.find(os.environ)
    used = _in_use(invocation, cache)
    head = ("", "MODEL", "SIZE", "LICENCE", "HERE", "")
    click.echo(columns([head, *(_row(weights, cache, is_used=weights is used) for weights in MANIFEST)]))
    star = "" if used is None else "* answers by default here. "
    click.echo(f"\n{star}Kept in {cache.folder} (TALARIA_CACHE names another folder).")


@command.verb("pull", *EXAMPLES)
@click.argument("name", default=DEFAULT_MODEL)
@click.option("--yes", is_flag=True, help="Do not ask.")
def _pull(invocation: Invocation, name: str, yes: bool) -> None:
    """Fetch a model's weights. A download that was interrupted continues."""
    weights, cache = find_weights(name), WeightsCache.find(os.environ)
    if cache.has(weights):
        click.echo(f"{name} is here already: {cache.path(weights)}")
        return
    left = weights.size - size_of(cache.partial(weights))
    click.echo(f"{name}: {megabytes(left)} MB to fetch ({weights.licence}), into {cache.folder}")
    confirm("Fetch it?", yes=yes or is_yes(os.environ, YES_VARIABLE), default=True)
    with _progress_printer() as report:
        path = run_loop(fetch(weights, cache, os.environ, report))
    click.echo(f"{name} is here, verified against its published SHA-256: {path}")


@command.verb("remove", *EXAMPLES)
@click.argument("name", required=False)
@click.option("--all", "is_all", is_flag=True, help="Delete the weights of all models, and their folder.")
def _remove(invocation: Invocation, name: str | None, is_all: bool) -> None:
    """Delete a model's weights, also those of an unfinished download."""
    if is_all is (name is not None):
        raise click.UsageError("Name a model, or say --all.")
    cache = WeightsCache.find(os.environ)
    for weights in MANIFEST if name is None else (find_weights(name),):
        with cache.locked(weights) as is_ours:
            if not is_ours:
                raise ConfigError(
                    f"Another process fetches {weights.name} now.", "Stop it first, or wait for it."
                )
            freed = cache.remove(weights)
        if freed:
            click.echo(f"{weights.name}: {megabytes(freed)} MB freed.")
        elif not is_all:
            click.echo(f"{weights.name} was not on this machine.")
    if is_all:
        shutil.rmtree(cache.folder, ignore_errors=True)
        click.echo(f"{cache.folder} is deleted.")


def _in_use(invocation: Invocation, cache: WeightsCache) -> Weights | None:
    with suppress(ConfigError):
        settings = load(invocation.home().path, os.environ, PARTS).settings
        return default_weights(settings.model, choose_built_in(cache))
    return None


def _row(weights: Weights, cache: WeightsCache, *, is_used: bool) -> tuple[str, ...]:
    part = size_of(cache.partial(weights))
    here = "yes" if cache.has(weights) else f"{100 * part // weights.size} %" if part else "no"
    mark = "*" if is_used else ""
    return (mark, weights.name, f"{megabytes(weights.size)} MB", weights.licence, here, weights.about)


@contextmanager
def _progress_printer() -> Iterator[Callable[[FetchProgress], None]]:
    """Yield a function that prints progress: one moving line on a terminal, elsewhere a line each tenth."""
    is_terminal, shown = sys.stdout.isatty(), 0.0

    def report(progress: FetchProgress) -> None:
        nonlocal shown
        share = progress.done / progress.total
        if is_terminal:
            click.echo(f"\r\033[K  {progress.line()}", nl=False)
        elif progress.stage is FetchStage.FETCHING and share >= shown + _STEP:
            shown = share
            click.echo(progress.line())

    try:
        yield report
    finally:
        if is_terminal:
            click.echo("\r\033[K", nl=False)
