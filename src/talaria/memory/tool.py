"""The built-in memory provider: pages in files, and the tool `memory` that edits and shortens them."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

import msgspec

from talaria.access.people import People, place_of
from talaria.core.clock import Clock
from talaria.core.errors import TalariaError, ToolError
from talaria.core.limits import BoundedDict
from talaria.core.memory import (
    FAMILY,
    AddFact,
    EditOrigin,
    ForgetFact,
    MemoryEdit,
    MemoryPage,
    MemoryPlace,
    PageContent,
    ReplaceFact,
    WritePage,
)
from talaria.core.redaction import Redactor, SecretRegistry
from talaria.core.slots import FairThreads
from talaria.core.tools import ToolSpec
from talaria.memory.memory_files import MemoryFiles
from talaria.memory.pages import (
    Edited,
    FactChanges,
    PageFull,
    apply_edit,
    body,
    fact_line,
    shown,
    split,
    words_of,
)
from talaria.tools.function import Arguments, FunctionTool, parameters, text
from talaria.tools.tool import BuiltinSource, MemoryProvider, Tool, ToolContext

_THREADS: Final = 2  # for edits of people; calls of the tool have threads of their own
_PROMPTS_KEPT: Final = 1024
_CUT: Final = "[The rest of this page is not shown: it is too long.]"

MEMORY_SPEC: Final = ToolSpec(
    name="memory",
    description=(
        "Your memory over all conversations with this person or group. Add what will matter later: lasting "
        "facts, preferences, decisions; not what the conversation itself holds, and no passwords. New "
        "conversations begin with it. USER.md is about the person, MEMORY.md is for everything else."
    ),
    parameters=parameters(
        {
            "action": {
                "type": "string",
                "enum": ["read", "add", "replace", "forget"],
                "description": "`replace` and `forget` need `old`.",
            },
            "text": text("The fact, in one sentence that can be understood alone."),
            "old": text("The old fact, or words that only it has."),
            "page": {
                "type": "string",
                "enum": [page.value for page in MemoryPage],
                "description": "Default: MEMORY.md.",
            },
        },
        required=["action"],
    ),
    idempotent=True,
    reaches_out=True,
    uses_files=False,
)


class FileMemory(MemoryProvider, BuiltinSource):
    name = FAMILY

    def __init__(self, files: MemoryFiles, people: People, clock: Clock, secrets: SecretRegistry) -> None:
        self._files = files
        self._people = people
        self._clock = clock
        self._secrets = secrets
        self._prompts: BoundedDict[MemoryPlace, tuple[tuple[PageContent, ...], Redactor, str]] = BoundedDict(
            _PROMPTS_KEPT
        )
        self._threads = FairThreads("talaria-memory", lambda: _THREADS)

    def close(self) -> None:
        self._threads.close()

    def tools(self) -> tuple[Tool, ...]:
        return (
            FunctionTool(
                MEMORY_SPEC, self._run, reads=lambda arguments: bool(arguments.get("action") == "read")
            ),
        )

    def prompt(self, place: MemoryPlace) -> str:
        pages, redact = self._files.pages(place), self._secrets.redactor
        known = self._prompts.get(place)
        if known is None or known[0] is not pages or known[1] is not redact:
            sections = [_section(content) for content in pages if body(content.text)]
            known = (pages, redact, redact("\n\n".join(sections)))
            self._prompts[place] = known
        return known[2]

    async def pages(self, place: MemoryPlace) -> tuple[PageContent, ...]:
        pages = await self._threads.run(place, self._files.pages, place)
        return tuple(
            msgspec.structs.replace(content, text=self._secrets(body(content.text))) for content in pages
        )

    async def edit(self, place: MemoryPlace, edit: MemoryEdit, origin: EditOrigin) -> str:
        return await self._threads.run(place, self._edit, place, edit, origin)

    # -- the tool -------------------------------------------------------------------------------------------

    async def _run(self, arguments: Arguments, context: ToolContext) -> str:
        place = place_of(self._people, context.chat_key)
        if arguments["action"] == "read":
            return await context.resources.in_thread(self._read, place)
        edit = _parse(arguments)
        key = f"{context.turn_id}:{context.call_id}"
        origin = EditOrigin(key, context.session_id, self._clock.now())
        try:
            return await context.resources.in_thread(self._edit, place, edit, origin)
        except PageFull as full:
            return await self._shorten(place, edit, origin, full, context)

    async def _shorten(
        self, place: MemoryPlace, edit: MemoryEdit, origin: EditOrigin, full: PageFull, context: ToolContext
    ) -> str:
        """Let a model write the page anew, with the edit, in fewer words. The page before is kept. Raises
        `ToolError` if the page stays as it is."""
        page = edit.page
        try:
            answer = await context.ask_model(instructions(page), shown(full.wanted), MAX_OUTPUT)
            shorter = read_answer(answer, page, full.wanted, origin)
        except TalariaError as error:
            raise ToolError(f"{full.user_text} It was not shortened: {error.user_text}", full.hint) from error
        written = WritePage(page, shorter, full.digest)
        told = await context.resources.in_thread(self._edit, place, written, origin)
        sizes = f"from {len(full.wanted.encode())} to {len(shorter.encode())} bytes"
        return f"{page} was full, and was shortened {sizes}. The page before is kept in `earlier/`. {told}"

    def _read(self, place: MemoryPlace) -> str:
        pages = self._files.pages(place)
        return "\n\n".join(
            f"## {content.page} ({content.size} of {content.page.max_bytes} bytes)\n"
            f"{content.trouble or body(content.text) or 'Empty.'}"
            for content in pages
        )

    def _edit(self, place: MemoryPlace, edit: MemoryEdit, origin: EditOrigin) -> str:
        """Carry out the edit. Blocks."""
        if not isinstance(edit, ForgetFact):
            edit = msgspec.structs.replace(edit, text=self._secrets(edit.text))
        apply = partial(apply_edit, edit=edit, origin=origin)
        edited = self._files.change(place, edit.page, apply, keeps=isinstance(edit, WritePage))
        return _describe(edit, edited)


def _parse(arguments: Arguments) -> MemoryEdit:
    action, page = arguments["action"], MemoryPage(arguments.get("page", MemoryPage.MEMORY))
    needed = {"add": ("text",), "replace": ("old", "text"), "forget": ("old",)}[action]
    if missing := [name for name in needed if not str(arguments.get(name, "")).strip()]:
        raise ToolError(f"{action} needs {' and '.join(missing)}.")
    match action:
        case "add":
            return AddFact(page, arguments["text"])
        case "replace":
            return ReplaceFact(page, arguments["old"], arguments["text"])
        case _:
            return ForgetFact(page, arguments["old"])


def _section(content: PageContent) -> str:
    page = shown(content.text)
    data = page.encode()
    if len(data) > content.page.max_bytes:
        page = f"{data[: content.page.max_bytes].decode(errors='ignore')}\n{_CUT}"
    return f"## {content.page}\n{page}"


def _describe(edit: MemoryEdit, edited: Edited) -> str:
    if edited.is_repeated:
        return f"{edit.page} has this change already: it was made before the gateway was restarted."
    changes = FactChanges(edited.added, edited.removed)
    if not edited.added and not edited.removed:
        return f"{edit.page} says so already."
    return f"{edit.page} was changed:\n{changes.describe()}"


# -- shortening a full memory page by a model: what is asked, and what is taken of ------------------------

MAX_OUTPUT: Final = 4096  # tokens
_WANTED: Final = 0.6  # of the page
_MOST: Final = 0.8
_LEAST: Final = 0.15  # less than that has lost too much
_DATE: Final = re.compile(r" \((\d{4}-\d\d-\d\d)\)$")


def instructions(page: MemoryPage) -> str:
    return (
        "It is the memory of an assistant, a list of facts with their dates, and it is too long. Write it "
        f"again in at most {int(page.max_bytes * _WANTED)} bytes. Keep every fact that may still matter, and "
        "its date; join facts that belong together; leave out repetitions, and what a later fact has "
        "overtaken. Write one fact on each line, as `- FACT (DATE)`, in the language of the facts, and "
        "nothing else."
    )


def read_answer(answer: str, page: MemoryPage, wanted: str, origin: EditOrigin) -> str:
    """Return the shortened page. Facts that the answer has in the same words keep their origin. `wanted` is
    the page that was too long. Raises `ToolError` if the answer is no such list, too long, or much too
    short."""
    lines = [line.strip() for line in answer.strip().splitlines() if line.strip()]
    if not lines or not all(line.startswith("- ") for line in lines):
        raise ToolError("The model did not answer with a list of facts.")
    known = {words_of(line): line for line in split(wanted)[0]}
    written = []
    for line in lines:
        words = _DATE.sub("", words_of(line))
        date = _DATE.search(line)
        written.append(known.get(words) or fact_line(words, origin, date[1] if date else ""))
    text = "\n".join(written)
    size = len(text.encode())
    if size > page.max_bytes * _MOST:
        raise ToolError(f"The model's shorter text has {size} bytes, which is too long.")
    if size < page.max_bytes * _LEAST:
        raise ToolError(f"The model's shorter text has only {size} bytes, so facts would be lost.")
    return text
