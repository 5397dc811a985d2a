"""The parts of a gateway that a command opens."""

from __future__ import annotations

from collections.abc import Mapping

from talaria.config.home import Home
from talaria.config.load import Loaded
from talaria.config.plugins import find_plugins
from talaria.core.redaction import SecretRegistry
from talaria.core.settings import Parts
from talaria.parts import PARTS


def parts_with_plugins(
    home: Home, loaded: Loaded, environ: Mapping[str, str], secrets: SecretRegistry
) -> Parts:
    """Return the parts of a gateway that starts now: with those of its plug-ins, which are loaded here.

    To be called when the log is open, and while no event loop is held up by it. Raises nothing for a plug-in
    that cannot be used: the log names it.
    """
    if not find_plugins(home):
        return PARTS
    from talaria.plugins.loading import load_plugins

    return load_plugins(home, loaded.settings.plugins, environ, secrets)
