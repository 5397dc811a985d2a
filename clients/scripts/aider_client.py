"""aider: the command, once for each check."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from checks import *

_folder = tempfile.TemporaryDirectory(prefix="talaria-aider-")  # is deleted at the end
FOLDER = Path(_folder.name)
AIDER = [
    sys.executable, "-m", "aider", "--no-git", "--no-check-update", "--analytics-disable", "--no-pretty",
    "--yes-always", "--no-show-model-warnings", "--map-tokens", "0", "--openai-api-base", BASE,
    "--no-gitignore", "--edit-format", "ask",
]  # fmt: skip
SETTINGS = FOLDER / "settings.yml"
SETTINGS.write_text(
    "- name: openai/main\n  extra_params:\n    extra_headers:\n"
    + "".join(f"      {name}: {value}\n" for name, value in SESSION.items())
)


def aider(text: str, *more: str, key: str = TOKEN, model: str = "openai/main") -> str:
    """Return what the command prints."""
    words = [*AIDER, "--openai-api-key", key, "--model", model, "--message", text, *more]
    said = subprocess.run(
        words, cwd=FOLDER, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return said.stdout + said.stderr


def echo(text: str) -> str:
    return f"[[reply {text}]]"


@check("plain")
def plain() -> None:
    assert "hello from here" in aider(echo("hello from here"), "--no-stream")


@check("streamed")
def streamed() -> None:
    assert SPOKEN in aider(WORDS)


cannot("edits files by texts, without tools", "tool loop", "streamed tool loop", "structured")
cannot("has no agents", "hand-off")
cannot("sends pictures only to models of its own list", "images")


@check("session")
def session() -> None:
    assert "one" in aider(echo("one"), "--model-settings-file", str(SETTINGS))
    assert get(f"/api/sessions/{SESSION['X-Talaria-Session']}")["id"]


cannot("speaks chat completions", "chain")


@check("401")
def wrong_key() -> None:
    assert "AuthenticationError" in aider("hi", key=WRONG_KEY)


@check("404")
def unknown_model() -> None:
    said = aider("hi", model=f"openai/{UNKNOWN}")
    assert "NotFoundError" in said
    assert "scripted/scripted" in said


@check("429")
def rate_limit() -> None:
    said = aider(f"[[first 1 status 429]][[retry-after 1]]{echo('then this')}")  # it waits and asks again
    assert "RateLimitError" in said
    assert "then this" in said


@check("too long")
def too_long() -> None:
    assert "possibly exhausted context window" in aider(TOO_LONG)


@check("usage")
def usage() -> None:
    assert "Tokens: 9 sent, 3 received" in aider(USED, "--no-stream")  # it estimates those of a stream


@check("cancel")
def cancel() -> None:
    before = cancelled()
    recorded()
    words = [*AIDER, "--openai-api-key", TOKEN, "--model", "openai/main", "--message", ENDLESS]
    with subprocess.Popen(words, cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until_asked()
        process.send_signal(signal.SIGINT)
        until_cancelled(before)
        process.terminate()


cannot("shows the text only", "files")
cannot("has no embeddings", "embeddings")
run("aider-chat", "litellm")
