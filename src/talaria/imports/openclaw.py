"""openclaw as a source: its configuration, jobs, memory, and the people it knows."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from talaria.core.errors import BadRequest
from talaria.core.jobs import NOWHERE
from talaria.core.memory import MemoryPage
from talaria.core.turns import Sender
from talaria.imports.item import ImportItem
from talaria.imports.jobs import FoundJob, SourceJob, cron, every, find_receiver, known_zone, once, plan_job
from talaria.imports.logs import SourceLog, chat_of, moment, plain_chat
from talaria.imports.openclaw_sessions import PROGRAM, plan_sessions
from talaria.imports.settings import FoundModels, channel_secrets
from talaria.imports.source import (
    SourceFormat,
    SourceHome,
    clean_text,
    listed,
    open_home,
    read_json,
    table,
    text_of,
)
from talaria.imports.target import NOT_READ, UNKNOWN_MODEL, FoundSettings, Planned, Target
from talaria.memory.pages import facts

FORMAT: Final = SourceFormat(PROGRAM, "openclaw.json agents state", "", "~/.openclaw")
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?(?:\*/|\Z))|(?P<comma>,)"""
    r"""|(?P<text>"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|'[^'\\]*(?:\\.[^'\\]*)*(?:'|\\?\Z))"""
    r"""|(?P<number>[+-]?\.?\d[\w.]*)|(?P<word>[A-Za-z_$][\w$]*)|(?P<rest>.)""",
    re.DOTALL,
)
_APIS: Final = {
    "openai-completions": "openai-chat",
    "openai-responses": "openai-responses",
    "anthropic-messages": "anthropic-messages",
}
_READ: Final = ("models", "agents", "mcp", "channels", "$include")
_TEXTS: Final = ("SOUL.md", "AGENTS.md", "IDENTITY.md", "TOOLS.md", "BOOT.md", "BOOTSTRAP.md", "HEARTBEAT.md")
_STATE: Final = "state/openclaw.sqlite"
_OLDER: Final = " of an older openclaw. Update openclaw, start it once, and import again."


@contextmanager
def open_openclaw(path: Path) -> Iterator[OpenclawSource]:
    """Open a state folder for reading. Raises `BadRequest` for anything else."""
    with open_home(path, FORMAT) as home, ExitStack() as opened:
        agents = sorted(each.name for each in (home.path / "agents").glob("*") if each.is_dir())
        found = {}
        for agent in agents:
            name = f"agents/{agent}/agent/openclaw-agent.sqlite"
            if (database := opened.enter_context(home.open_database(name))) is not None:
                found[agent] = database
        state = opened.enter_context(home.open_database(_STATE))
        yield OpenclawSource(home, state, agents, found)


class OpenclawSource:
    title = PROGRAM
    pause = "openclaw cron disable ID"
    stop = "openclaw gateway stop"

    def __init__(
        self,
        home: SourceHome,
        state: sqlite3.Connection | None,
        agents: Iterable[str],
        databases: Mapping[str, sqlite3.Connection],
    ) -> None:
        self.home = home
        self._state = state
        self._agents = agents
        self._databases = databases
        self._config = self._read_config()
        defaults = table(table(self._config.get("agents")).get("defaults"))
        place = Path(clean_text(defaults.get("workspace")) or home.path / "workspace")
        try:
            place = place.expanduser()  # raises RuntimeError for a person who is not here
            (home.path / place).exists()
        except (OSError, RuntimeError) as error:
            home.note("workspace", f"It cannot be read: {error}.")
            place = home.path / "workspace"
        self._workspace = msgspec.structs.replace(home, source=place, path=home.path / place)

    def is_running(self) -> bool:
        """Return False: nothing in the state folder tells it for certain."""
        return False

    def sessions(self, target: Target) -> Iterator[tuple[ImportItem, SourceLog | None]]:
        """Yield the sessions of all agents. Of those in the plain chat the newest is the current one."""
        found: list[tuple[ImportItem, SourceLog | None]] = []
        for agent in self._agents:
            database = self._databases.get(agent)
            tables = {row["name"] for row in self.home.rows(database, "sqlite_master", "name")}
            if database is not None and {"session_windows", "transcript_events"} <= tables:
                found += plan_sessions(self.home, database, agent, target)
            elif (self.home.path / "agents" / agent / "sessions").is_dir():
                self.home.note(f"agents/{agent}/sessions", f"It has sessions{_OLDER}")
        plain = [
            log for _, log in found if log is not None and log.chat_key == plain_chat(target.agent, PROGRAM)
        ]
        newest = max(plain, key=lambda log: (log.updated_at, log.id), default=None)
        for item, log in found:
            is_other = log in plain and log is not newest
            yield item, msgspec.structs.replace(log, is_current=False) if log and is_other else log

    async def jobs(self, target: Target) -> list[Planned]:
        rows = [*self.home.rows(self._state, "cron_jobs", "job_id name job_json")]
        if not rows and (self.home.path / "cron/jobs.json").exists():
            self.home.note("cron/jobs.json", f"It has jobs{_OLDER}")
        planned = []
        for row in rows:
            job = table(read_json(text_of(row["job_json"])))
            name = text_of(job.get("name") or row.get("name"))
            key = SourceJob(PROGRAM, PROGRAM, text_of(row["job_id"]), text_of(job.get("createdAtMs")), name)
            planned.append(await plan_job(target, key, partial(_read_job, target, job)))
        return planned

    def facts(self) -> Iterator[tuple[MemoryPage, str]]:
        """The pages are Markdown: each line that says something is a fact. A page with directives has
        explanations of openclaw around them."""
        for page in MemoryPage:
            text = clean_text(self._workspace.text(page.value))
            directives = re.search(r"^## Directives$(.*?)(?:^## |\Z)", text, re.DOTALL | re.MULTILINE)
            if directives is not None:
                text = "\n".join(line for line in directives[1].splitlines() if line.startswith("- "))
            for line in facts(re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)):
                if not line.endswith("..."):
                    yield page, " ".join(line.split())

    def skill_roots(self) -> Iterable[tuple[SourceHome, Path]]:
        return (self.home, self.home.path / "skills"), (self._workspace, self._workspace.path / "skills")

    def came_along(self, skill: Path) -> bool:
        """Its own skills are not in the state folder."""
        return False

    def people(self) -> Iterator[tuple[str, str, str]]:
        """Approved senders, and the lists in the configuration. Pending requests are not read."""
        for row in self.home.rows(self._state, "channel_pairing_allow_entries", "channel_key entry"):
            yield text_of(row["channel_key"]), _person(text_of(row["entry"])), ""
        for path in sorted((self.home.path / "credentials").glob("*-allowFrom.json")):
            known = self.home.json(f"credentials/{path.name}")
            for user in listed(table(known).get("allowFrom") or known):
                yield path.name.split("-")[0], _person(text_of(user)), ""
        for channel, given in table(self._config.get("channels")).items():
            for place in (given, *table(table(given).get("accounts")).values()):
                for user in listed(table(place).get("allowFrom")):
                    yield str(channel), _person(text_of(user)), ""

    def side_files(self) -> dict[str, str]:
        found = {}
        for name in _TEXTS:
            if (self._workspace.path / name).is_file():
                found[f"workspace/{name}"] = (
                    "Copy your own parts into agent.prompt. The rest is about openclaw."
                )
        for path in sorted((self._workspace.path / "memory").glob("*")):
            found[f"workspace/memory/{path.name}"] = "Only MEMORY.md and USER.md are imported from memory."
        for path in sorted(self.home.path.glob("workspace-*")):
            found[path.name] = "Only the workspace of the agent main is imported."
        for name in ("exec-approvals.json", "secrets.json", "mcp-oauth", "credentials/whatsapp"):
            if (self.home.path / name).exists():
                found[name] = "Approvals and logins are not imported: decide and log in again here."
        return found

    def settings(self) -> FoundSettings:
        config, found = self._config, FoundSettings()
        environ = self.home.environ()

        def known(value: object, name: str) -> str:
            return found.resolve(value, name, environ)

        defaults = table(table(config.get("agents")).get("defaults"))
        models = FoundModels(found)
        chosen = defaults.get("model")
        names = [text_of(table(chosen).get("primary") or chosen)]
        names += map(text_of, listed(table(chosen).get("fallbacks")))
        resolved = [self._model(models, each, known, found) for each in names if each]
        if resolved and resolved[0] is not None:
            main = resolved[0]
            if fallback := [each for each in resolved[1:] if each is not None]:
                main["fallback"] = fallback
            found.values["model",] = main
        if zone := known_zone(defaults.get("userTimezone")):
            found.values["agent", "timezone"] = zone
        for provider, key in self._profiles():
            models.add_key(provider, key)
        found.add_servers(table(config.get("mcp")).get("servers"), environ)
        channels = table(config.get("channels"))
        tokens = {
            f"{channel.upper()}_{name}": known(
                table(channels.get(channel)).get(key), f"channels.{channel}.{key}"
            )
            for channel, key, name in (
                *(("telegram", "botToken", "BOT_TOKEN"), ("discord", "token", "BOT_TOKEN")),
                *(("slack", "botToken", "BOT_TOKEN"), ("slack", "appToken", "APP_TOKEN")),
            )
        }
        found.secrets.update(channel_secrets(tokens))
        if "$include" in config:
            found.left["$include"] = "Included files are not read."
        for name in config:
            if name not in _READ:
                found.left[str(name)] = NOT_READ
        return found

    def _model(
        self, models: FoundModels, name: str, known: Any, found: FoundSettings
    ) -> dict[str, Any] | None:
        provider, _, model = name.partition("/")
        given = table(table(table(self._config.get("models")).get("providers")).get(provider))
        key = known(given.get("apiKey"), f"models.providers.{provider}.apiKey")
        api = _APIS.get(text_of(given.get("api")), "")
        added = models.add(provider, model, text_of(given.get("baseUrl")), key, api)
        if added is None or (given.get("api") and not api):
            found.left[f"model {clean_text(name)}"] = UNKNOWN_MODEL
            return None
        return added

    def _profiles(self) -> Iterator[tuple[str, str]]:
        """Yield the providers with their keys. Logins are left out: two programs must not share one."""
        for database in self._databases.values():
            for row in self.home.rows(database, "auth_profile_store", "store_json"):
                profiles = table(read_json(text_of(row["store_json"]))).get("profiles")
                for profile in map(table, table(profiles).values()):
                    if profile.get("type") == "api_key" and isinstance(profile.get("key"), str):
                        yield text_of(profile.get("provider")).lower(), profile["key"]

    def _read_config(self) -> Mapping[str, Any]:
        text = self.home.text("openclaw.json")
        value = None if text is None else read_json(_as_json(text))
        if text is not None and not isinstance(value, dict):
            self.home.note("openclaw.json", "It is not valid JSON5, so no setting is read from it.")
        return table(value)


def _as_json(text: str) -> str:
    """Return JSON5 as JSON: without comments and last commas, with quotes around all names and texts."""
    pieces: list[str] = []
    comma = False
    for match in _TOKEN.finditer(text):
        piece = match[0]
        if match.lastgroup == "space":
            continue
        if match.lastgroup == "comma":
            comma = True
            continue
        if comma and piece[0] not in "}]":
            pieces.append(",")
        comma = False
        if match.lastgroup == "text" and piece[0] == "'":
            piece = '"' + piece[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        elif match.lastgroup == "word" and piece not in ("true", "false", "null"):
            piece = f'"{piece}"'
        pieces.append(piece)
    return "".join(pieces)


def _person(entry: str) -> str:
    """Return the id of an entry such as `telegram:7`."""
    return re.sub(r"^(?:telegram|tg|discord|slack|user):", "", entry.strip())


def _read_job(target: Target, job: Mapping[str, Any]) -> FoundJob:
    payload, schedule, delivery = (table(job.get(name)) for name in ("payload", "schedule", "delivery"))
    if payload.get("kind") not in ("systemEvent", "agentTurn"):
        raise BadRequest(
            f"It runs {text_of(payload.get('kind'))[:40]!r} without a model.", "Write it as a job anew."
        )
    text, zone = text_of(payload.get("text") or payload.get("message")), known_zone(schedule.get("tz"))
    ignored = ("model", "fallbacks", "thinking", "toolsAllow", "timeoutSeconds")
    notes = [f"Its {name} is not imported." for name in ignored if payload.get(name)]
    if job.get("enabled") is False:
        notes.append("It is disabled in openclaw too.")
    match schedule.get("kind"):
        case "cron":
            found: Any = cron(schedule.get("expr"))
        case "every":
            period, since = schedule.get("everyMs"), schedule.get("anchorMs") or job.get("createdAtMs")
            now = target.store.clock.now()
            found = every(period // 1000 if isinstance(period, int) else period, moment(since, now, 1000))
        case "at":
            found = once(schedule.get("at"), "UTC", target)
        case kind:
            raise BadRequest(f"Its schedule is of the unknown kind {text_of(kind)[:40]!r}.")
    to, chat = NOWHERE, plain_chat(target.agent, PROGRAM)
    if delivery.get("mode") == "announce":
        place, channel = text_of(delivery.get("to")), text_of(delivery.get("channel"))
        kind = "dm" if channel == "telegram" and not place.startswith("-") else "group"
        origin = {"platform": channel, "chat_id": place, "thread_id": delivery.get("threadId")}
        key = chat_of(target.agent, target.channels, {**origin, "chat_type": kind})
        to = find_receiver(target, key, f"{channel} {place}".strip() or "last", notes)
    return FoundJob(text, found, zone, to, chat, Sender("owner", is_operator=True), tuple(notes))
