"""The variables of commands: those that `[tools] env` names, and none of the gateway's own."""

from __future__ import annotations

from collections.abc import Mapping

from talaria.core.setting_marks import referenced_variable
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
