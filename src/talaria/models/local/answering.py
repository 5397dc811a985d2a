"""The answer of a built-in model: find the kind of the request, then talk, call a tool, or refuse.

- Talk is a call without a word about tools. The tiny model says only what it is sure of (`certainty`).
- For a tool, the model fills in the arguments, limited by their schema. The tool runs as any other; its
  result comes back in the next model call of the turn.
- What no tool does, the program refuses in its own words. So a model does not promise what it cannot do.
- What a tool has changed or sent, the program tells in the tool's own words.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from functools import cache
from typing import Any, assert_never

import msgspec

from talaria.core.messages import AssistantMessage, TokenUsage, ToolCall
from talaria.core.specs import CallCut, Completion, ModelCall, ModelDelta, TextDelta
from talaria.models.failures import DECODE_ERRORS
from talaria.models.local.certainty import HeldAnswer, Repeats, RepetitionGuard
from talaria.models.local.local_chat import (
    SCORED_TALK,
    UNSEEN,
    LastRequest,
    OfferedTools,
    ToolStep,
    read_request,
)
from talaria.models.local.router import TOOL_OF, RequestKind, read_kind, router_call
from talaria.models.local.weights import DEFAULT_MODEL

# -- the words of a request, read without a model ---------------------------------------------------------
# The built-in models take "write a poem" for a file to be written. So these few kinds of words are looked
# for by the program, in the languages that the models speak best.


_MOST_READ = 700  # characters from the beginning of a request
_PICTURE = re.compile(  # one that the person points at
    r"\b(?:this|attached|dies\w*|angehängte\w*|cette|est[ae]|questa)\s(?:picture|pic|photo|image|screenshot|selfie"
    r"|bild|foto|imagen|immagine)\b",
    re.IGNORECASE,
)
_FILE = re.compile(
    r"\w\.[a-z]\w{0,4}\b|file|folder|\b(?:save|store|download)|datei|ordner|speicher|fichier|dossier|enregistr"
    r"|archivo|carpeta|guarda",
    re.IGNORECASE,
)
_NAME = re.compile(r"(?<![\w./@-])[\w-]{1,60}\.[a-z]{2,4}\b(?![\w/@-]|\.\w)")
_MAKE = (
    r"write|make|create|compose|draft|generate|invent|give|tell|schreib\w*|verfass\w*|dichte|erfinde|erstell\w*"
    r"|mach\w*|écri\w*|ecri\w*|rédige\w*|invente\w*|fais|escrib\w*|redacta\w*|inventa\w*|haz|scrivi\w*|crea"
)
_FOR = r"(?:up|me|us|mir|uns|moi|nous)"
_SOME = (
    r"(?:an?|some|another|one|two|three|four|five|six|seven|eight|nine|ten|\d{1,3}|eine?n?|une?|una|uno"
    r"|zwei|drei|deux|trois|dos|tres)"
)
_INVENTED = (
    r"poems?|haikus?|limericks?|sonnets?|ballads?|verses?|rhymes?|songs?|lyrics|stor(?:y|ies)|tales?|fables?"
    r"|jokes?|riddles?|letters?|e-?mails?|messages?|greetings?|invitations?|speech(?:es)?|toasts?|essays?"
    r"|dialogues?|slogans?|lullab(?:y|ies)"
    r"|gedichte?|reime?|lied(?:er)?|geschichten?|märchen|witze?|rätsel|briefe?|nachricht|rede"
    r"|poèmes?|chansons?|histoires?|contes?|blagues?|lettres?|discours|poemas?|canci(?:ón|ones)|cuentos?"
    r"|historias?|chistes?|cartas?|discurso|poesi[ae]|storia|lettera"
)
_OTHER = (
    r"articles?|paragraphs?|sentences?|texts?|words?|names?|ideas?|tips?|examples?|lists?|tables?|recipes?"
    r"|plans?|menus?|descriptions?|functions?|scripts?|programs?|code|class(?:es)?|quer(?:y|ies)|regex\w*"
    r"|loops?|snippets?"
    r"|aufsatz|absatz|sätze?|satz|namen|ideen|beispiele?|listen?|tabelle|rezepte?|funktion|skript"
    r"|phrases?|noms|listes?|recettes?|fonctions?|frases?|listas?|recetas?|funci(?:ón|ones)|ricetta"
)
# "Write me a short poem", not "write down my poem": a text that there is has to be looked up.
_WANTED = (
    rf"\b(?:{_MAKE})(?:\s{_FOR})*\s{_SOME}\s(?:[\w'-]{{1,30}}\s){{0,4}}?"
    rf"(?:(?P<invented>{_INVENTED})|{_OTHER})\b"
)


def asks_to_see(text: str) -> bool:
    """Return whether a request is about a picture: one that came with it, or one that did not."""
    return UNSEEN in text or _PICTURE.search(text) is not None


def names_file(text: str) -> bool:
    """Return whether a request has the name of a file, or a word for files."""
    return _FILE.search(text) is not None


def file_names(text: str) -> list[str]:
    """Return the names of files in a request, each once."""
    return list(dict.fromkeys(_NAME.findall(text[:_MOST_READ])))


def asks_for_text(text: str) -> bool:
    """Return whether a request wants a text or code as its answer, and names no file for it."""
    return _find_wanted(text) is not None


def asks_to_invent(text: str) -> bool:
    """Return whether the wanted text is free invention, such as a poem or a letter: it has no facts."""
    return (found := _find_wanted(text)) is not None and found["invented"] is not None


def _find_wanted(text: str) -> re.Match[str] | None:
    return None if names_file(text) else _wanted().search(" ".join(text[:_MOST_READ].split()))


@cache
def _wanted() -> re.Pattern[str]:
    """Compiled on first use: it takes ten milliseconds, and few gateways run a built-in model."""
    return re.compile(_WANTED, re.IGNORECASE)


# -- the answer of a built-in model: find the kind of the request, then talk, call a tool, or refuse ------


Sink = Callable[[ModelDelta], None]
Complete = Callable[[ModelCall, Sink], Awaitable[Completion]]

MAX_STEPS = 4  # tool calls for one request
_MOST_ASKED = 500  # characters of a request that are said again where it matters
_MOST_LINES = 60  # of a file from which the model picks the one to change
_LOOKS = frozenset(TOOL_OF[kind] for kind in (RequestKind.LIST, RequestKind.READ, RequestKind.SEARCH))
_AFTER_A_LOOK = (RequestKind.TALK, RequestKind.WRITE)

_PATH = "path is the name of the file"
_FIELDS = {
    "list_files": "path is the folder, or . for all of them",
    "read_file": _PATH,
    "search_files": "pattern is the one word to look for",
    "write_file": f"{_PATH}; content is the whole text of the file, without any remark about it",
    "send_file": _PATH,
    "edit_file": "change is what is done; line is the line that is replaced or deleted, as it is now; text "
    "is the new line",
}
_TEXT = {"type": "string"}
_TOO_LONG = "I can't do that: the text is too long for me. Ask for a shorter one."

_CAN = "What I can do: talk, and list, read, search, write, change and send the files of this chat."
_CANNOT = {
    RequestKind.REMEMBER: "I can't keep anything for other chats. In this chat I know what was said, and a "
    "file lasts: ask me to write it to notes.txt.",
    RequestKind.INTERNET: "I can't look that up: I have no internet, and know nothing about today's weather, "
    "news or prices.",
    RequestKind.CLOCK: "I can't do anything later: I have no timer and no calendar, so I can't remind you.",
    RequestKind.PEOPLE: "I can't reach anybody: I send no mail or messages, and I can't call, book or order.",
    RequestKind.MACHINE: "I can't do that: I run no programs or commands, delete or rename no files, use no "
    "devices, and make no pictures or sounds.",
}
_TALKS_ONLY = """\
I can't do that: I only talk. I can't read, write or send files, remember anything for later, remind you, \
look things up, send messages or run programs. """
_UNSURE = "I can't answer that reliably: I am a tiny model, and I am not sure of the answer. "
_DID_NOTHING = "\n\n(These are only words: nothing was opened, written, sent, looked up or remembered.)"
_CAN_ONLY_TALK = (
    "\n\n(I can't do more than talk: nothing was opened, written, sent, looked up or remembered.)"
)
_SEES_NOTHING = "I can't see pictures: I only read text. Tell me in words what is on it."
# docs/local-model.md tells with which requests these were chosen.
_BIAS = 1.0
_SURE_BIAS = 1.75  # for a model that sorts badly: only what surely needs more than words is refused
_NO_FILE_BIAS = 3.5  # for a tool that needs a file, where the request names none
_SURE_NO_FILE_BIAS = 2.2  # the same, for a model that sorts badly and can do none of them
_CHANGES = frozenset({RequestKind.WRITE, RequestKind.EDIT, RequestKind.SEND})


class LineChange(StrEnum):
    REPLACE = "replace a line"
    DELETE = "delete a line"
    ADD = "add at the end"


class Answering:
    """Answers one model call. `complete` makes a call of the model's process; `offer` returns a sentence
    about what can do more than a model without tools."""

    def __init__(self, call: ModelCall, complete: Complete, sink: Sink, offer: Callable[[], str]) -> None:
        self._call = call
        self._complete = complete
        self._sink = sink
        self._offer = offer
        self._usage = TokenUsage()
        self._tools = msgspec.json.decode(call.prefix.tools, type=OfferedTools).offered

    async def run(self) -> Completion:
        """Raises `ModelError`."""
        request = read_request(self._call.chunks)
        last = request.steps[-1] if request.steps else None
        if last is not None and (not last.is_ok or last.tool not in _LOOKS):
            return self._tell(request, last)
        if len(request.steps) >= MAX_STEPS:
            return await self._talk()
        if asks_to_see(request.text):
            return self._say(_SEES_NOTHING)
        kind = await self._find_kind(request)
        if kind is RequestKind.TALK:
            return await (self._talk() if request.steps else self._talk_alone(request))
        if (refusal := self._refusal(kind)) is not None:
            return self._say(refusal)
        return await (self._edit(last) if kind is RequestKind.EDIT else self._fill(TOOL_OF[kind]))

    async def _talk_alone(self, request: LastRequest) -> Completion:
        """Answer in words; if the request may need more than words, add that nothing was done.

        The question costs one token, because the process has read the request.
        """
        is_clear = (
            bool(request.attached)  # the model has the text that is meant
            or asks_for_text(request.text)
            or await self._ask_for_kind(request.words, 0.0) is RequestKind.TALK
        )
        is_judged = self._call.model == DEFAULT_MODEL and not asks_to_invent(request.text)
        completion = await (self._talk_if_sure(request) if is_judged else self._talk())
        if completion is None:
            return self._say(_UNSURE + self._offer())
        if is_clear or completion.stop != "stop":
            return completion
        note = _DID_NOTHING if self._tools else _CAN_ONLY_TALK
        self._sink(TextDelta(note))
        text = completion.message.text + note
        return msgspec.structs.replace(
            completion, message=msgspec.structs.replace(completion.message, text=text)
        )

    def _refusal(self, kind: RequestKind) -> str | None:
        """Return why no tool can do this; None if one can."""
        if not self._tools:
            return _TALKS_ONLY + self._offer()
        tool = TOOL_OF.get(kind)
        if tool is None:
            return f"{_CANNOT[kind]} {_CAN}"
        return None if tool in self._tools else f"I can't do that without {tool}. `/tools all` lets me."

    def _tell(self, request: LastRequest, last: ToolStep) -> Completion:
        """Tell what was done or failed, in the words of the tools. A new file is sent, so that the person
        gets it."""
        if not last.is_ok:
            return self._say(f"I can't do that. {last.text}")
        if last.tool == "write_file" and "send_file" in self._tools:
            return self._use("send_file", {"path": last.arguments.get("path", "")})
        steps = [step for step in request.steps if step.is_ok and step.tool not in _LOOKS]
        return self._say(" ".join(map(_told, steps)))

    async def _find_kind(self, request: LastRequest) -> RequestKind:
        kind = await self._ask_for_kind(request.words, _BIAS if self._tools else _SURE_BIAS)
        is_text = asks_for_text(request.text)
        if is_text and kind in TOOL_OF and kind is not RequestKind.SEND:
            return RequestKind.TALK
        if is_text or (kind in (_CHANGES if self._tools else TOOL_OF) and not names_file(request.text)):
            bias = _NO_FILE_BIAS if self._tools else _SURE_NO_FILE_BIAS
            kind = await self._ask_for_kind(request.words, bias)
        if TOOL_OF.get(kind) in (
            TOOL_OF.values() if request.is_piped else _LOOKS if request.attached else ()
        ):
            return RequestKind.TALK  # the model has the text that is meant
        if not request.steps or kind is RequestKind.EDIT:
            return kind
        done = "; ".join(
            f"{step.tool} {' '.join(map(str, step.arguments.values()))}" for step in request.steps
        )
        return await self._ask_for_kind(f"{request.words} (done: {done})", _BIAS, _AFTER_A_LOOK)

    async def _ask_for_kind(
        self, text: str, bias: float, allowed: Collection[RequestKind] = ()
    ) -> RequestKind:
        completion = await self._quietly(router_call(self._call, text, bias, allowed))
        return read_kind(completion.message.text)

    async def _talk_if_sure(self, request: LastRequest) -> Completion | None:
        """Return None if the model was not sure of its answer; then nothing of it was shown."""
        held = HeldAnswer(request.text, self._sink)
        completion = await self._talk(msgspec.structs.replace(self._call, sampling=SCORED_TALK), held)
        held.end()
        return None if held.is_unsure else completion

    async def _talk(self, call: ModelCall | None = None, sink: Sink | None = None) -> Completion:
        """Answer in words. An answer that repeats itself ends there."""
        guard = RepetitionGuard(sink or self._sink)
        try:
            completion = await self._complete(call or self._call, guard)
        except Repeats:
            message = AssistantMessage(guard.text, model=self._call.model)
            completion = Completion(message, TokenUsage(output=guard.pieces), "stop")
        self._usage += completion.usage
        if not completion.message.text.strip():
            return self._say("I can't answer that. Please say it in other words.")
        return msgspec.structs.replace(completion, usage=self._usage)

    # -- tools ----------------------------------------------------------------------------------------------

    async def _edit(self, last: ToolStep | None) -> Completion:
        """Read the file first; then let the model pick one of its lines."""
        if last is None or last.tool != "read_file":
            return await self._fill("read_file")
        text = last.text
        lines = pick_lines(text)
        line = {"enum": lines} if lines else _TEXT
        wanted = {"change": {"enum": [*LineChange]}, "line": line, "text": _TEXT}
        given = await self._arguments("edit_file", wanted)
        if given is None:
            return self._say(_TOO_LONG)
        old, new = find_replacement(text, LineChange(given["change"]), given["line"], given["text"])
        return self._use("edit_file", {"path": last.arguments.get("path", ""), "old": old, "new": new})

    async def _fill(self, tool: str) -> Completion:
        names = [part.partition(" ")[0] for part in _FIELDS[tool].split("; ")]
        properties: dict[str, Any] = dict.fromkeys(names, _TEXT)
        named = file_names(read_request(self._call.chunks).text)
        if named and _FIELDS[tool].startswith(_PATH):  # a small model spells a name anew
            properties["path"] = {"enum": named}
        arguments = await self._arguments(tool, properties)
        if arguments is None:
            return self._say(_TOO_LONG)
        if tool == "search_files":
            arguments["pattern"] = f"(?i){re.escape(arguments['pattern'])}"
        return self._use(tool, arguments)

    async def _arguments(self, tool: str, properties: dict[str, Any]) -> dict[str, str] | None:
        """Let the model fill in the arguments of a tool; the person's request is in the conversation.

        Return None if the answer was cut off.
        """
        asked = read_request(self._call.chunks).text[:_MOST_ASKED]
        note = f"[The program calls {tool} for: {asked}\nGive its arguments as JSON. {_FIELDS[tool]}]"
        schema = {
            "type": "object",
            "properties": properties,
            "required": [*properties],
            "additionalProperties": False,
        }
        limit = {"type": "json_schema", "json_schema": {"schema": schema}}
        call = msgspec.structs.replace(
            self._call,
            chunks=[*self._call.chunks, msgspec.json.encode({"role": "user", "content": note})],
            sampling=b'"temperature":0,"response_format":' + msgspec.json.encode(limit),
        )
        answer = await self._quietly(call)
        try:
            return msgspec.json.decode(answer.message.text, type=dict[str, str])
        except DECODE_ERRORS:
            return None

    def _use(self, tool: str, arguments: dict[str, Any]) -> Completion:
        call = ToolCall(f"call_{secrets.token_hex(12)}", tool, msgspec.json.encode(arguments).decode())
        message = AssistantMessage("", (call,), model=self._call.model)
        return self._made(message, "tool_calls")

    def _say(self, text: str) -> Completion:
        self._sink(TextDelta(text))
        return self._made(AssistantMessage(text, model=self._call.model), "stop")

    def _made(self, message: AssistantMessage, stop: str) -> Completion:
        return Completion(message, self._usage, stop, without_model=self._usage == TokenUsage())

    async def _quietly(self, call: ModelCall) -> Completion:
        """Make a call whose answer is not for the person."""

        def hide(delta: ModelDelta) -> None:
            if isinstance(delta, CallCut):
                self._sink(delta)

        completion = await self._complete(call, hide)
        self._usage += completion.usage
        return completion


def pick_lines(text: str) -> list[str]:
    """Return the lines of a file that occur once; none if the file is too long to pick one of them."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 4 * _MOST_LINES:  # to look for each of them in the text would hold up the loop
        return []
    lines = [line for line in lines if text.count(line) == 1]
    return lines if len(lines) <= _MOST_LINES else []


def find_replacement(text: str, change: LineChange, line: str, new: str) -> tuple[str, str]:
    """Return the passage of a file that is replaced, and what replaces it."""
    match change:
        case LineChange.REPLACE:
            return line, new
        case LineChange.DELETE:
            return (f"{line}\n" if f"{line}\n" in text else line), ""
        case LineChange.ADD:
            whole = text.rstrip("\n")
            last = whole.rpartition("\n")[2]
            end = last if whole.count(last) == 1 else whole
            return end, f"{end}\n{new}"
        case _:
            assert_never(change)


def _told(step: ToolStep) -> str:
    given = step.arguments
    match step.tool:
        case "send_file":
            return f"Here is {given.get('path')}."
        case "edit_file":
            return f"{step.text} “{given.get('old')}” became “{given.get('new')}”."
        case _:
            return step.text
