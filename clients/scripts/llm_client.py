"""llm, Simon Willison's command line and library, with models from `extra-openai-models.yaml`."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_folder = tempfile.TemporaryDirectory(prefix="talaria-llm-")  # is deleted at the end
FOLDER = _folder.name
os.environ |= {"LLM_USER_PATH": FOLDER, "LLM_LOAD_PLUGINS": ""}

import llm
import openai
from checks import *
from pydantic import BaseModel

MODEL = """
- model_id: {id}
  model_name: {name}
  api_base: {base}
  api_key_name: talaria
  supports_tools: true
  supports_schema: true
  vision: true
"""


def write_models() -> None:
    models = [
        MODEL.format(id="talaria", name="main", base=BASE),
        MODEL.format(id="unknown", name=UNKNOWN, base=BASE),
        MODEL.format(id="session", name="main", base=BASE)
        + "  headers:\n"
        + "".join(f"    {name}: {value}\n" for name, value in SESSION.items()),
    ]
    Path(FOLDER, "extra-openai-models.yaml").write_text("".join(models))
    Path(FOLDER, "keys.json").write_text(json.dumps({"talaria": TOKEN}))


write_models()
LLM = [str(Path(sys.executable).parent / "llm"), "-m", "talaria"]


class City(BaseModel):
    name: str


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"sunny in {city}"


def ask(text: str, model: str = "talaria", **more: Any) -> Any:
    said = llm.get_model(model).prompt(text, **{"stream": False, **more})
    said.text()
    return said


def shell(*words: str) -> str:
    """Run the command `llm`."""
    return subprocess.run([*LLM, *words], capture_output=True, text=True, check=True).stdout.strip()


@check("plain")
def plain() -> None:
    assert ask("hi").text() == "You said: hi"
    assert shell("hi") == "You said: hi"


@check("streamed")
def streamed() -> None:
    pieces = list(llm.get_model("talaria").prompt(WORDS, stream=True))
    assert "".join(pieces) == SPOKEN


@check("tool loop")
def tool_loop() -> None:
    assert llm.get_model("talaria").chain(LOOP, tools=[weather], stream=False).text() == SUNNY


@check("streamed tool loop")
def streamed_tool_loop() -> None:
    assert "".join(llm.get_model("talaria").chain(LOOP, tools=[weather])) == SUNNY


@check("structured")
def structured() -> None:
    assert City.model_validate_json(ask(CITY, schema=City).text()) == City(name="Rome")


cannot("has no agents", "hand-off")


@check("images")
def images() -> None:
    recorded()
    ask("look", attachments=[llm.Attachment(content=base64.b64decode(PNG), type="image/png")])
    assert PNG in recorded()


@check("session")
def session() -> None:
    for _ in range(2):
        ask("hi", "session")
    assert ask("[[history]]", "session").text() == "6"


cannot("speaks chat completions to other servers", "chain")


@check("401")
def wrong_key() -> None:
    raises(openai.AuthenticationError, lambda: ask("hi", key=WRONG_KEY))


@check("404")
def unknown_model() -> None:
    assert "scripted/scripted" in str(raises(openai.NotFoundError, lambda: ask("hi", "unknown")))


@check("429")
def rate_limit() -> None:
    error = raises(openai.RateLimitError, lambda: ask("[[status 429]][[retry-after 1]]"))
    assert error.response.headers["retry-after"] == "1"  # it waits and asks again twice


@check("too long")
def too_long() -> None:
    assert raises(openai.BadRequestError, lambda: ask(TOO_LONG)).code == "context_length_exceeded"


@check("usage")
def usage() -> None:
    used = ask(USED).usage()
    assert (used.input, used.output) == (9, 3)


@check("cancel")
def cancel() -> None:
    before = cancelled()
    recorded()
    with subprocess.Popen([*LLM, ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        until_asked()
        process.send_signal(signal.SIGINT)
    until_cancelled(before)


@check("files")
def files() -> None:
    assert ask(SEND, "session").response_json["files"][0]["name"] == "a.txt"


cannot("has no embeddings of other servers", "embeddings")
run("llm", "openai")
