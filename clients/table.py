"""The clients, the features, and the table of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clients import installation
from clients.installation import SCRIPTS
from clients.servers import Servers

SECONDS = 1200

FEATURES: Mapping[str, str] = {
    "plain": "an answer",
    "streamed": "a streamed answer",
    "tool loop": "a tool of the caller, its call and its result",
    "streamed tool loop": "the same, streamed",
    "structured": "structured output",
    "hand-off": "one agent hands over to another",
    "images": "an image as a `data:` URL",
    "session": "the agent behind `X-Talaria-Session`",
    "chain": "`previous_response_id`",
    "401": "a wrong token",
    "404": "an unknown model; the known ones are in the message",
    "429": "a provider's rate limit with `Retry-After`",
    "too long": "`context_length_exceeded`",
    "usage": "token counts",
    "cancel": "a client that leaves cancels its call",
    "files": "files that the agent sent",
    "embeddings": "vectors of a provider",
}


@dataclass(frozen=True, slots=True)
class Client:
    """A client and its script. `environment` is a Python environment, one of node that begins with "node", or
    one that ends with "coders", for programs of node that a script of Python runs. `more` follows the
    addresses on the command line."""

    name: str
    environment: str
    script: str
    more: tuple[str, ...] = ()

    def command(self) -> list[str] | None:
        """Return the command that checks the client, or None if it is not installed."""
        script = SCRIPTS / self.script
        if self.environment.endswith("coders"):
            is_there = installation.node(self.environment) is not None
            return [sys.executable, str(script), *self.more] if is_there else None
        if self.environment.startswith("node"):
            if (node := installation.node(self.environment)) is None:
                return None
            return [node, str(_beside_modules(self.environment, script)), *self.more]
        python = installation.python_of(self.environment)
        return None if python is None else [str(python), str(script), *self.more]


CLIENTS = (
    Client("openai-python", "current", "openai_python.py"),
    Client("openai-node", "node", "openai_node.mjs"),
    Client("langchain + langgraph", "current", "langchain.py"),
    Client("pydantic-ai", "current", "pydantic_agents.py"),
    Client("openai-agents", "current", "openai_agents.py"),
    Client("litellm", "aider", "litellm_client.py"),
    Client("instructor", "older", "instructor_client.py"),
    Client("llm", "current", "llm_client.py"),
    Client("aider", "aider", "aider_client.py"),
    Client("AI SDK, openai", "node", "ai_sdk.mjs", ("@ai-sdk/openai",)),
    Client("AI SDK, compatible", "node", "ai_sdk.mjs", ("@ai-sdk/openai-compatible",)),
    Client("@openai/agents", "node-agents", "openai_agents_node.mjs"),
    Client("LangChain.js + LangGraph.js", "node-agents", "langchain_node.mjs"),
    *(
        Client(name, {"crewai": "crews", "dspy": "dspy"}.get(name, "frameworks"), "frameworks.py", (name,))
        for name in (
            "llama-index",
            "haystack",
            "dspy",
            "crewai",
            "smolagents",
            "agno",
            "semantic-kernel",
            "autogen",
            "agent-framework",
            "strands",
        )
    ),
    Client("Codex", "coders", "coders.py", ("codex",)),
    Client("Claude Code", "coders", "coders.py", ("claude",)),
    Client("qwen-code", "more-coders", "coders.py", ("qwen",)),
    Client("opencode", "more-coders", "coders.py", ("opencode",)),
)


def _beside_modules(environment: str, script: Path) -> Path:
    """Copy the scripts of node to its modules, where it looks for them."""
    place = installation.folder() / environment / "scripts"
    place.mkdir(exist_ok=True)
    for each in SCRIPTS.glob("*.mjs"):
        (place / each.name).write_bytes(each.read_bytes())
    return place / script.name


@dataclass(slots=True)
class Report:
    """What a client did. `cells` has "ok", "–" or "✗" by feature; `notes` says why, for the last two."""

    client: Client
    versions: dict[str, str] = field(default_factory=dict)
    cells: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return bool(self.cells) and "✗" not in self.cells.values()

    def add(self, line: str) -> None:
        told = json.loads(line)
        if versions := told.get("versions"):
            self.versions = versions
            return
        feature = told["feature"]
        if "cannot" in told:
            self.cells[feature], self.notes[feature] = "–", told["cannot"]
        else:
            self.cells[feature] = "ok" if told["ok"] else "✗"
            if not told["ok"]:
                self.notes[feature] = told["why"]


def check(
    client: Client, command: list[str], servers: Servers, features: Sequence[str] = tuple(FEATURES)
) -> Report:
    """Run the script of a client. A feature that it does not tell about has failed."""
    report = Report(client)
    words = [*command[:2], servers.url, servers.token, servers.model_url, *command[2:]]
    env = {**os.environ, "TALARIA_CLIENT_FEATURES": ",".join(features)}
    env["TALARIA_CODERS"] = str(installation.folder() / client.environment)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False, env=env)
        said, errors = done.stdout, done.stderr
    except subprocess.TimeoutExpired as slow:
        said, errors = str(slow.stdout or b"", "utf-8"), f"no end after {SECONDS} s"
    for line in said.splitlines():
        if line.startswith("{"):
            report.add(line)
    for feature in features:
        if feature not in report.cells:
            report.cells[feature] = "✗"
            report.notes[feature] = errors.strip().rpartition("\n")[2] or "the script told nothing"
    return report


def markdown(reports: list[Report], made_by: str) -> str:
    """Return the features, the table, the versions, and the reasons of what a client cannot do."""
    lines = [f"- **{feature}**: {meaning}" for feature, meaning in FEATURES.items()]
    lines += ["", f"| | {' | '.join(FEATURES)} |", f"|---|{':-:|' * len(FEATURES)}"]
    for report in reports:
        cells = " | ".join(report.cells[feature] for feature in FEATURES)
        lines.append(f"| **{report.client.name}** | {cells} |")
    lines += ["", f"Made by `./dev clients --docs` with {made_by}.", ""]
    lines += ["| client | versions | – because it |", "|---|---|---|"]
    for report in reports:
        versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        reasons: dict[str, list[str]] = {}
        for feature, note in report.notes.items():
            reasons.setdefault(note, []).append(feature)
        why = "; ".join(f"{note} ({', '.join(features)})" for note, features in reasons.items())
        lines.append(f"| {report.client.name} | {versions} | {why} |")
    return "\n".join(lines) + "\n"
