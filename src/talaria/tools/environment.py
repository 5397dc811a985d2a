"""The variables of commands: those that `[tools] env` names, and none of the gateway's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from talaria.core.gateway_part import Examination
from talaria.core.problems import Problem, shell, warn
from talaria.core.setting_marks import Mark, holds_secret, referenced_variable
from talaria.tools.settings import ToolSettings


def command_environ(settings: ToolSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a command gets from `[tools] env`. `environ` is the gateway's environment.

    A value `${NAME}` stands for the gateway's variable NAME; without that variable the command gets none.
    """
    found = {}
    for name, value in settings.env.items():
        variable = referenced_variable(value)
        if not variable:
            found[name] = value
        elif variable in environ:
            found[name] = environ[variable]
    return found


async def examine_environment(examination: Examination[ToolSettings]) -> AsyncIterator[Problem]:
    """Warn of values that stand in config.toml. The check of the configuration reports unset variables."""
    for name, value in examination.settings.env.items():
        if holds_secret(value, (Mark.COMMAND_VALUE,)):
            yield warn(
                "tools",
                f"The value of tools.env.{name} stands in config.toml, where backups and editors find it.",
                f"Set {name} for the gateway instead, and refer to it:",
                shell("talaria", "config", "set", f"tools.env.{name}", f"${{{name}}}"),
            )
