"""hermes-agent as a source: its home, its settings, its memory, and the people it knows."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from talaria.core.memory import MemoryPage
from talaria.imports.hermes_jobs import plan_jobs
from talaria.imports.hermes_sessions import plan_sessions
from talaria.imports.item import ImportItem
from talaria.imports.jobs import known_zone
from talaria.imports.logs import SourceLog
from talaria.imports.settings import FoundModels, channel_secrets
from talaria.imports.source import (
    SourceFormat,
    SourceHome,
    clean_text,
    is_running,
    listed,
    open_home,
    plain,
    table,
    text_of,
)
from talaria.imports.target import NOT_READ, REFERENCE, UNKNOWN_MODEL, FoundSettings, Planned, Target
from talaria.models.settings import PRESETS

FORMAT: Final = SourceFormat(
    "hermes-agent",
    "state.db config.yaml .env",
    "state.db config.yaml .env SOUL.md AGENTS.md memories/ skills/ cron/jobs.json pairing/ "
    "platforms/pairing/ sessions/sessions.json",
    "~/.hermes, ~/.hermes/profiles/NAME or a zip of `hermes backup`",
)
_INDEX: Final = (
    "CREATE INDEX IF NOT EXISTS talaria_rows ON messages (session_id, id)"  # not every release has one
)
_SEPARATOR: Final = "§"
_ALLOWED: Final = re.compile(r"([A-Z0-9_]+?)_ALLOWED_USERS")
_DEFAULT_SOUL: Final = "You are Hermes Agent, an intelligent AI assistant created by Nous Research"
_KEYS: Final = {"KIMI_API_KEY": "moonshot"} | {
    preset.api_key_env: name for name, preset in PRESETS.items() if preset.api_key_env
}
_READ: Final = "model fallback_model fallback_providers custom_providers providers timezone mcp_servers"
_SIDE: Final = {
    "auth.json": "Log in again here: two programs must not use the same login.",
    "gateway.json": "It is an older form of config.yaml.",
    "profiles": "Import each profile by its own folder.",
    "memory_store.db": "Only MEMORY.md and USER.md are imported from memory.",
    "webhook_subscriptions.json": "Create webhooks here anew: see docs/webhooks.md.",
}
_KNOWN: Final = (
    *("state.db", "state.db-wal", "state.db-shm", "state.db-journal", "config.yaml", ".env", "SOUL.md"),
    *("AGENTS.md", "memories", "skills", "cron", "pairing", "platforms", "sessions"),
)
_MACHINE: Final = re.compile(
    r".*(?:\.pid|\.lock|_cache|\.log)|gateway_state\.json|processes\.json|logs|checkpoints|backups|"
    r"state-snapshots|hermes-agent|cache|bin|node|audio|image|sandboxes|desktop|\..*"
)


@contextmanager
def open_hermes(path: Path) -> Iterator[HermesSource]:
    """Open a home, a profile or a backup for reading. Raises `BadRequest` for anything else."""
    with open_home(path, FORMAT) as home, home.open_database("state.db", _INDEX) as database:
        yield HermesSource(home, database)


class HermesSource:
    title = "hermes-agent"
    pause = "hermes cron pause ID"
    stop = "hermes gateway stop"

    def __init__(self, home: SourceHome, database: sqlite3.Connection | None) -> None:
        self.home = home
        self.database = database
        self._config = self._read_config()

    def is_running(self) -> bool:
        known = self.home.json("gateway.pid") if "gateway.pid" in self.home.names else None
        return is_running(table(known).get("pid") if isinstance(known, dict) else known)

    def sessions(self, target: Target) -> Iterator[tuple[ImportItem, SourceLog | None]]:
        if self.database is not None:
            yield from plan_sessions(self.home, self.database, target.agent, target.channels)

    async def jobs(self, target: Target) -> list[Planned]:
        return await plan_jobs(self.home, self._config, target)

    def facts(self) -> Iterator[tuple[MemoryPage, str]]:
        for page in MemoryPage:
            text = clean_text(self.home.text(f"memories/{page}"))
            for entry in text.split(f"\n{_SEPARATOR}\n"):
                if (line := " ".join(entry.split())) and line != _SEPARATOR:
                    yield page, line

    def skill_roots(self) -> Iterable[tuple[SourceHome, Path]]:
        return ((self.home, self.home.path / "skills"),)

    def came_along(self, skill: Path) -> bool:
        """The manifest has the hash of each skill as it was installed. Older ones have names only."""
        lines = (self.home.text("skills/.bundled_manifest") or "").splitlines()
        known = {name.strip(): digest.strip() for name, _, digest in (line.partition(":") for line in lines)}
        digest = known.get(skill.name)
        return digest is not None and digest in ("", _digest(skill))

    def people(self) -> Iterator[tuple[str, str, str]]:
        """Pending requests are not read."""
        for folder in ("pairing", "platforms/pairing"):
            for path in sorted((self.home.path / folder).glob("*-approved.json")):
                known = table(self.home.json(f"{folder}/{path.name}"))
                for user, about in known.items():
                    name = text_of(table(about).get("user_name"))
                    yield path.name.removesuffix("-approved.json"), user, name
        for name, value in self.home.environ().items():
            if match := _ALLOWED.fullmatch(name):
                for user in value.split(","):
                    if user.strip():
                        yield match[1].lower(), user.strip(), ""

    def side_files(self) -> dict[str, str]:
        found = {name: _SIDE[name] for name in sorted(self.home.names) if name in _SIDE}
        for name in sorted(self.home.names.difference(_KNOWN, found)):
            if not _MACHINE.fullmatch(name):
                found[name] = "It is not imported."
        for path in sorted((self.home.path / "memories").glob("*.md")):
            if path.name not in set(MemoryPage):
                found[f"memories/{path.name}"] = "Only MEMORY.md and USER.md are imported from memory."
        if (self.home.path / "cron" / "output").is_dir():
            found["cron/output"] = "Earlier results of jobs are not imported."
        return found

    def settings(self) -> FoundSettings:
        config, found = self._config, FoundSettings()
        self._add_models(found)
        if zone := known_zone(config.get("timezone")):
            found.values["agent", "timezone"] = zone
        self._add_prompt(found)
        environ = self.home.environ()
        found.add_servers(config.get("mcp_servers"), environ)
        for variable, provider in _KEYS.items():
            if key := environ.get(variable):
                FoundModels(found).add_key(provider, key)
        tokens = {
            f"{name.upper()}_BOT_TOKEN": found.resolve(
                table(own).get("token"), f"platforms.{name}.token", environ
            )
            for name, own in table(config.get("platforms")).items()
        }
        found.secrets.update(channel_secrets({**tokens, **environ}))
        used = {*_KEYS, *REFERENCE.findall(str(config))}
        used.update(variable for secret in found.secrets.values() for variable in secret.values)
        for name in (*config, *(f".env.{name}" for name in environ if not _ALLOWED.fullmatch(name))):
            if str(name).removeprefix(".env.") not in {*_READ.split(), *used} and not str(name).startswith(
                "_"
            ):
                found.left[str(name)] = NOT_READ
        if "GATEWAY_ALLOW_ALL_USERS" in environ:
            found.left[".env.GATEWAY_ALLOW_ALL_USERS"] = "Decide here who may write: see docs/access.md."
        return found

    def _add_models(self, found: FoundSettings) -> None:
        config, models, environ = self._config, FoundModels(found), self.home.environ()
        custom = [table(each) for each in listed(config.get("custom_providers"))]
        named = {text_of(each.get("name")).lower(): each for each in custom}
        named |= {str(name).lower(): table(each) for name, each in table(config.get("providers")).items()}

        def add(given: Mapping[str, Any], name: object) -> dict[str, Any] | None:
            provider = found.resolve(given.get("provider"), "provider", environ)
            own = named.get(provider.lower().removeprefix("custom:"), {})

            def known(field: str) -> str:
                label = f"{provider}.{field}" if provider else field
                return found.resolve(given.get(field) or own.get(field), label, environ)

            key = known("api_key") or environ.get(text_of(own.get("key_env")), "")
            return models.add(provider, found.resolve(name, "model", environ), known("base_url"), key)

        model = config.get("model")
        given = {"default": model} if isinstance(model, str) else table(model)
        main = add(given, given.get("default") or given.get("model"))
        if main is not None:
            found.values["model",] = main
        elif model:
            found.left["model"] = UNKNOWN_MODEL
        known = config.get("fallback_providers") or config.get("fallback_model") or []
        for index, each in enumerate(known if isinstance(known, list) else [known]):
            fallback = add(table(each), table(each).get("model"))
            if main is None or fallback is None:
                found.left[f"fallback {index + 1}"] = UNKNOWN_MODEL
            else:
                main.setdefault("fallback", []).append(fallback)

    def _add_prompt(self, found: FoundSettings) -> None:
        texts = {name: clean_text(self.home.text(name)).strip() for name in ("SOUL.md", "AGENTS.md")}
        own = [text for text in texts.values() if text and not text.startswith(_DEFAULT_SOUL)]
        if own:
            found.values["agent", "prompt"] = "\n\n".join(own)
        if texts["SOUL.md"].startswith(_DEFAULT_SOUL):
            found.left["SOUL.md"] = "It is the text that comes with hermes-agent."

    def _read_config(self) -> Mapping[str, Any]:
        import yaml  # noqa: PLC0415 - only for an import

        text = self.home.text("config.yaml")
        try:
            # Not the loader in C, which a deep file crashes.
            return table(plain(yaml.load(text, yaml.SafeLoader)) if text else {})
        except (yaml.YAMLError, RecursionError, ValueError) as error:
            why = (str(error).splitlines() or ["damaged"])[0]
            self.home.note("config.yaml", f"It is not valid YAML ({why}), so no setting is read from it.")
            return {}


def _digest(folder: Path) -> str:
    """Return the hash of a skill's folder as the manifest has it."""
    found = hashlib.md5(usedforsecurity=False)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(str(path.relative_to(folder)).encode())
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    found.update(piece)
    return found.hexdigest()
