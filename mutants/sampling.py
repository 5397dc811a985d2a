"""Random faults: which are drawn, how they are shown, and which of them make no difference."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from random import Random

import msgspec

from mutants.blocks import SOURCE, source_files
from mutants.faults import Fault, statements

EQUIVALENT = Path(__file__).parent / "equivalent.toml"


class Equivalent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A fault that no test can notice, and why. `line` becomes `becomes`, both without indentation."""

    path: str
    line: str
    becomes: str
    reason: str


def draw(count: int, seed: int | str, path: str = "") -> list[Fault]:
    """Draw statements at random, and one fault of each. The same source and seed give the same faults.

    A larger count gives the same faults and more.
    """
    random = Random(seed)
    root = (SOURCE / path.removeprefix("src/talaria").strip("/")).resolve()
    texts = {file: file.read_text() for file in source_files() if file == root or root in file.parents}
    found = [faults for file, text in texts.items() for faults in statements(file, text)]
    if not found:
        raise SystemExit(f"mutants: there is no statement to change in {root}")
    drawn: list[Fault] = []
    for faults in random.sample(found, len(found)):
        order = random.sample(faults, len(faults))
        fault = next((fault for fault in order if fault.is_code(texts[fault.path])), None)
        if fault is not None:
            drawn.append(fault)
        if len(drawn) >= count:
            break
    return drawn


def show(fault: Fault) -> str:
    """Return the fault as a diff."""
    text = fault.path.read_text()
    return show_change(f"{place(fault)}  {fault.kind}", text, fault.apply(text))


def show_change(title: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), title, "", lineterm="", n=2)
    return "\n".join(line for line in lines if not line.startswith("+++"))


def place(fault: Fault) -> str:
    return f"{fault.path.relative_to(SOURCE).as_posix()}:{fault.line}"


def listed_equivalents() -> list[Equivalent]:
    return [
        msgspec.convert(one, Equivalent) for one in tomllib.loads(EQUIVALENT.read_text()).get("fault", [])
    ]


def why_equivalent(fault: Fault) -> str:
    """Return the reason why no test can notice a fault, if it is listed, or an empty text."""
    wanted = (fault.path.relative_to(SOURCE).as_posix(), *fault.lines(fault.path.read_text()))
    listed = listed_equivalents()
    return next((one.reason for one in listed if (one.path, one.line, one.becomes) == wanted), "")
