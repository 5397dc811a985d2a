"""Programs that write code: the command, once for each check. The last argument says which."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from checks import *

NAME = sys.argv[-1]
IS_CODEX = NAME == "codex"
PACKAGE = {
    "codex": "@openai/codex",
    "claude": "@anthropic-ai/claude-code",
    "qwen": "@qwen-code/qwen-code",
    "opencode": "opencode-ai",
}[NAME]
SHELL = {"codex": "exec_command", "claude": "Bash", "qwen": "run_shell_command", "opencode": "bash"}[NAME]
MODULES = Path(os.environ["TALARIA_CODERS"]) / "node_modules"
COMMAND = MODULES / ".bin" / NAME
_folder = tempfile.TemporaryDirectory(prefix="talaria-coder-", dir=Path.home())  # Codex refuses /tmp
FOLDER = Path(_folder.name)
IGNORE = {**SESSION, "X-Talaria-Tools": "ignore"}


def words(
    text: str, model: str, *more: str, key: str = TOKEN, headers: dict[str, str] | None = None
) -> list[str]:
    """Return the command line for a message, and write the settings of the program."""
    if NAME == "claude":
        return [str(COMMAND), "-p", text, "--output-format", "json", "--allowedTools", "Bash", *more]
    if NAME == "qwen":
        request = {"customHeaders": headers or {}, "maxRetries": 0}
        settings = {
            "security": {"auth": {"selectedType": "openai"}},
            "model": {"generationConfig": request},
            "privacy": {"usageStatisticsEnabled": False},
            "memory": dict.fromkeys(("enableManagedAutoMemory", "enableManagedAutoDream"), False),
        }
        (FOLDER / ".qwen").mkdir(exist_ok=True)
        (FOLDER / ".qwen/settings.json").write_text(json.dumps(settings))
        return [str(COMMAND), "--yolo", "--model", model, "--output-format", "json", *more, text]
    if NAME == "opencode":
        place = {"baseURL": BASE, "apiKey": key, "headers": headers or {}}
        names = {name: {"name": name, "attachment": True} for name in ("main", UNKNOWN)}
        for each in names.values():
            each["modalities"] = {"input": ["text", "image"], "output": ["text"]}
        provider = {"npm": "@ai-sdk/openai-compatible", "options": place, "models": names}
        settings = {"provider": {"talaria": provider}, "autoupdate": False, "small_model": "talaria/main"}
        (FOLDER / "opencode.json").write_text(json.dumps(settings))
        return [str(COMMAND), "run", text, "--auto", "--format", "json", "--model", f"talaria/{model}", *more]
    told = {"X-Talaria-Tools": "functions", **(headers or {})}
    named = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in told.items())
    (FOLDER / "config.toml").write_text(
        f'''model = "{model}"
model_provider = "talaria"
[model_providers.talaria]
name = "Talaria"
base_url = "{BASE}"
env_key = "TALARIA_TOKEN"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
http_headers = {{ {named} }}
'''
    )
    free = ("--skip-git-repo-check", "--sandbox", "danger-full-access", "--json")
    return [str(COMMAND), "exec", *free, *more, text]


def environ(key: str, model: str, headers: dict[str, str] | None) -> dict[str, str]:
    told = "\n".join(f"{name}: {value}" for name, value in (headers or {}).items())
    return {
        **os.environ,
        "HOME": str(FOLDER),
        "PWD": str(FOLDER),
        "TMPDIR": str(FOLDER),
        "CLAUDE_CODE_TMPDIR": str(FOLDER),
        "CODEX_HOME": str(FOLDER),
        "TALARIA_TOKEN": key,
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_AUTH_TOKEN": key,
        "ANTHROPIC_MODEL": model,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": model,
        "ANTHROPIC_CUSTOM_HEADERS": told,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "IS_SANDBOX": "1",
        "OPENAI_API_KEY": key,
        "OPENAI_BASE_URL": BASE,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def ask(
    text: str, *more: str, key: str = TOKEN, model: str = "main", headers: dict[str, str] | None = None
) -> str:
    """Return what the command prints."""
    command = words(text, model, *more, key=key, headers=headers)
    if NAME == "opencode":  # it would put backslashes before quotes
        command.remove(text)
    said = subprocess.run(
        command,
        cwd=FOLDER,
        env=environ(key, model, headers),
        capture_output=True,
        text=True,
        input=text if NAME == "opencode" else "",
        check=False,
    )
    return said.stdout + said.stderr


def shell(command: str) -> str:
    """Return the mark that lets the model call the command's own shell."""
    arguments: dict[str, object] = {"command": command, "description": "x"}
    if IS_CODEX:
        arguments = {"cmd": command}
    elif NAME == "qwen":
        arguments |= {"is_background": False}
    return f"[[call {SHELL} {json.dumps(arguments)}]]"


@check("plain")
def plain() -> None:
    assert "hello from here" in ask("[[reply hello from here]]")


@check("streamed")
def streamed() -> None:
    assert SPOKEN in ask(WORDS)


@check("tool loop")
def tool_loop() -> None:
    recorded()
    assert "all done" in ask(f"{shell('echo made-$((40 + 2))')}[[reply all done]]")
    assert "made-42" in recorded()


@check("streamed tool loop")
def streamed_tool_loop() -> None:
    recorded()
    steps = "".join(shell(f"echo step-$(({n} + {n}))") for n in (1, 2))
    assert "all done" in ask(f"[[think why]]{steps}[[chunks 3]][[reply all done]]")
    last = recorded()
    assert "step-2" in last
    assert "step-4" in last


if IS_CODEX:

    @check("structured")
    def structured() -> None:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
        (FOLDER / "schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))
        recorded()
        assert "Rome" in ask(CITY, "--output-schema", str(FOLDER / "schema.json"))
        assert "json_schema" in recorded()

else:
    cannot("has its own form of it", "structured")


if NAME in ("codex", "opencode"):

    @check("images")
    def images() -> None:
        (FOLDER / "dot.png").write_bytes(base64.b64decode(PNG))
        recorded()
        ask("[[reply seen]]", f"--image={FOLDER}/dot.png" if IS_CODEX else f"--file={FOLDER}/dot.png")
        assert "data:image/" in recorded()

else:
    cannot("sends pictures of files that its tool reads", "images")

cannot("keeps its agents to itself", "hand-off")


if NAME in ("qwen", "opencode"):
    cannot("sends a token limit, which a session refuses", "session")
else:

    @check("session")
    def session() -> None:
        assert "one" in ask("[[reply one]]", headers=IGNORE)
        assert get(f"/api/sessions/{SESSION['X-Talaria-Session']}")["id"]


cannot("keeps its conversation itself", "chain")


@check("401")
def wrong_key() -> None:
    said = ask("hi", key=WRONG_KEY)
    assert "401" in said
    assert "wrong" in said


@check("404")
def unknown_model() -> None:
    said = ask("hi", model=UNKNOWN)
    assert "scripted/scripted" in said or "may not exist" in said


@check("429")
def rate_limit() -> None:
    assert "429" in ask(LIMITED)


@check("too long")
def too_long() -> None:
    said = ask(TOO_LONG).lower()
    assert "context" in said or "too long" in said


@check("usage")
def usage() -> None:
    said = ask(USED)
    ways = {"opencode": ('"input":5', '"output":1')}.get(NAME, ('"input_tokens":', '"output_tokens":3'))
    assert all(way in said for way in ways), said
    if NAME != "opencode":  # cached ones are counted apart
        assert any(f'"input_tokens":{count},' in said for count in (9, 5)), said


@check("cancel")
def cancel() -> None:
    before = cancelled()
    recorded()
    with subprocess.Popen(
        words(ENDLESS, "main"),
        cwd=FOLDER,
        env=environ(TOKEN, "main", None),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        until_asked()
        if NAME in ("qwen", "opencode"):  # a process beside it has the connection
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGINT)
        until_cancelled(before)
        process.terminate()


cannot("shows the text only", "files")
cannot("has no embeddings", "embeddings")
run(**{PACKAGE: json.loads((MODULES / PACKAGE / "package.json").read_text())["version"]})
