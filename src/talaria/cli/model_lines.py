"""The lines about the model in the start banner, and the moving line of a download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from talaria.cli.options import Invocation
from talaria.core.clock import Clock
from talaria.core.errors import NoModel
from talaria.core.program import spoken
from talaria.gateway import Gateway
from talaria.models.catalog import ModelChoice
from talaria.models.discovery import DetectedProvider
from talaria.models.local.downloads import WeightsDownloads
from talaria.models.local.local_endpoint import WeightsMissing
from talaria.models.local.weights import (
    DEFAULT_MODEL,
    FetchProgress,
    FetchStage,
    describe_model,
    find_weights,
    megabytes,
)
from talaria.models.settings import LOCAL

_MOVE_SECONDS = 0.5


def answers_built_in(gateway: Gateway) -> bool:
    """Return whether the built-in model is the default, so that a better one may be offered."""
    try:
        return gateway.catalog.default().provider == LOCAL and LOCAL not in gateway.settings.providers
    except NoModel:
        return False


def model_lines(gateway: Gateway, found: Sequence[DetectedProvider], invocation: Invocation) -> list[str]:
    """Return one line for a chosen model; for the built-in one its state, and what there is instead."""
    try:
        choice = gateway.catalog.default()
        gateway.providers.wire(choice.provider)
    except NoModel as error:
        return [invocation.spoken(f"{error.user_text} {error.hint}")]
    if not answers_built_in(gateway):
        return [str(choice)]
    lines = [f"built-in {choice.model}: {_state(gateway, choice)}"]
    if (refusal := gateway.local.refusal(choice.model)) is None:
        lines.append(describe_model(choice.model))
    elif isinstance(refusal, WeightsMissing):
        name = "" if choice.model == DEFAULT_MODEL else f" {choice.model}"
        lines.append(f"get it: {invocation.command_line('model pull')}{name}")
    else:
        lines.append(invocation.spoken(refusal.hint))
    offer = f"(found: {', '.join(map(str, found))})" if found else "(sets a real one)"
    return [*lines, f"or: {invocation.command_line('setup')}   {offer}"]


def _state(gateway: Gateway, choice: ModelChoice) -> str:
    if (refusal := gateway.local.refusal(choice.model)) is not None:
        is_fetchable = isinstance(refusal, WeightsMissing)
        size = megabytes(find_weights(choice.model).size)
        return f"not here yet ({size} MB)" if is_fetchable else spoken(refusal.user_text)
    progress = gateway.local.downloads.progress
    if progress is None or progress.stage is FetchStage.HERE:
        return "ready"
    return f"{progress.line()}   (--no-model skips this)"


async def show_progress(downloads: WeightsDownloads, clock: Clock, out: TextIO) -> None:
    """Show the download on a terminal until it ends; the log says how. The cursor stays at the start of the
    line, so that a log line overwrites it."""
    while downloads.is_any:
        out.write(f"\r\033[K  {_moving(downloads.progress)}\r")
        out.flush()
        await clock.sleep(_MOVE_SECONDS)
    out.write("\r\033[K")
    out.flush()


def _moving(progress: FetchProgress | None) -> str:
    return "" if progress is None else f"{progress.model}: {progress.line()}"
