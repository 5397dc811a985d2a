"""Reports about plug-ins: where each was found, what became of it, and what it brings."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from talaria.core.problems import Problem


class PluginState(StrEnum):
    LOADED = "loaded"
    LEFT_OUT = "left out"
    QUARANTINED = "quarantined"
    OFF = "off"


class PluginReport(msgspec.Struct, frozen=True):
    """A plug-in for people to read. `brings` are its tools, commands and so on, such as `tool forecast`.
    `problem` says why it is not in use, or what of it is not, and `hint` what to do."""

    name: str
    source: str
    state: PluginState
    brings: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""

    @classmethod
    def of(
        cls, name: str, source: str, state: PluginState, brings: tuple[str, ...], problem: Problem | None
    ) -> PluginReport:
        text, hint = ("", "") if problem is None else (problem.text, problem.hint)
        return cls(name, source, state, brings, text, hint)

    def sentence(self) -> str:
        return f"{self.problem} {self.hint}".strip()
