"""The build hook: writes the version into what is built. Runs in the environment of the build only."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class VersionFile(BuildHookInterface[Any]):
    """Adds `talaria/VERSION` to wheels and sdists. An editable installation has none: it asks git."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        package = "src/talaria" if self.target_name == "sdist" else "talaria"
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "VERSION"
        file.write_text(f"{self.metadata.version}\n")
        file.chmod(0o644)
        build_data["force_include"][str(file)] = f"{package}/VERSION"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
