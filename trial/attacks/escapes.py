"""Hostile commands: their type, the surroundings that they aim at, and the choice of so many of them."""

from __future__ import annotations

import base64
import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from trial.attacks.bait import Listeners

SECONDS = 5


@dataclass(frozen=True)
class Surroundings:
    """The things around the sandbox that commands aim at.

    `files` have secrets, `folders` can be written by everybody. `victim` and `gateway` are processes. A
    command that finds out by itself that it got through prints `won`, which stands in no command: it is
    written backwards there. `marker` is in the names of all that commands make outside.
    """

    files: tuple[str, ...]
    folders: tuple[str, ...]
    listeners: Listeners
    addresses: tuple[str, ...]  # of this machine, beyond loopback
    victim: int
    gateway: int
    gateway_port: int
    home: str  # of the gateway
    folder: str  # of the chat
    marker: str
    won: str
    has_own_uid: bool  # nobody else runs processes under the user of the commands


@dataclass(frozen=True)
class Escape:
    """A hostile command: calls of tools. Those of one step run side by side, and a step waits for the one
    before it."""

    family: str
    steps: tuple[tuple[tuple[str, Mapping[str, Any]], ...], ...]

    def message(self) -> str:
        """Return the message that lets the scripted model make these calls."""
        steps = (
            " + ".join(f"call {name} {json.dumps(arguments)}" for name, arguments in step)
            for step in self.steps
        )
        return "".join(f"[[{step}]]" for step in steps) + "[[reply done]]"

    def text(self) -> str:
        """Return it in one line, for a report."""
        said = [arguments.get("command", name) for step in self.steps for name, arguments in step]
        shown = " / ".join(dict.fromkeys(map(str, said))).replace(f"{_BEGIN}\n", "")
        return f"{self.family}: {shown}"[:600]


def command(text: str, seconds: int = SECONDS) -> tuple[str, dict[str, Any]]:
    """Return a call of the terminal."""
    return "terminal", {"command": text, "timeout": seconds}


def python(text: str) -> str:
    """Return a command that runs a program in Python, with what most of the programs here need."""
    return f"python3 -I -S - <<'END'\n{_BEGIN}\n{text}\nEND"


_BEGIN = """\
import ctypes, errno, os, socket, sys, signal, struct, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    filled = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *filled)
    return result if result >= 0 else -ctypes.get_errno()
def let_in(result):
    return result not in (-errno.EPERM, -errno.EACCES, -errno.ENOSYS)"""


Family = Callable[[Surroundings], Iterator[str | Escape]]
_FAMILIES: dict[str, Family] = {}


def family(name: str) -> Callable[[Family], Family]:
    """Register a family: a function that yields the texts of commands, or whole escapes."""

    def register(made: Family) -> Family:
        _FAMILIES[name] = made
        return made

    return register


def family_names() -> list[str]:
    _load()
    return [*_FAMILIES]


def _load() -> None:
    from trial.attacks import escapes_files, escapes_gateway, escapes_network, escapes_system  # noqa: F401, PLC0415


@dataclass
class Chooser:
    """Chooses commands: more of a family that knows more, and at least one of each."""

    surroundings: Surroundings
    seed: int
    only: tuple[str, ...] = ()
    known: dict[str, list[str | Escape]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _load()
        for name, made in _FAMILIES.items():
            if not self.only or name in self.only:
                self.known[name] = [*made(self.surroundings)]

    def choose(self, count: int) -> list[Escape]:
        """Return so many different commands. If the families know fewer, some come again in another dress."""
        random = Random(self.seed)
        total = sum(math.sqrt(len(made)) for made in self.known.values())
        chosen: list[Escape] = []
        for name, made in self.known.items():
            share = max(1, round(count * math.sqrt(len(made)) / total))
            picked = random.sample(made, min(share, len(made)))
            chosen += [self._dressed(name, each, random, n) for n, each in enumerate(picked)]
        names = [*self.known]
        while len(chosen) < count:
            name = random.choice(names)
            chosen.append(self._dressed(name, random.choice(self.known[name]), random, 1))
        random.shuffle(chosen)
        return self._with_every_family(chosen, count)

    def _with_every_family(self, chosen: Sequence[Escape], count: int) -> list[Escape]:
        """Put one command of each family first, so that none is cut off."""
        first = {each.family: n for n, each in enumerate(chosen)}
        rest = [each for n, each in enumerate(chosen) if first[each.family] != n]
        return [*(chosen[n] for n in first.values()), *rest][: max(count, len(first))]

    def _dressed(self, name: str, made: str | Escape, random: Random, n: int) -> Escape:
        if isinstance(made, Escape):
            return made
        dress = random.choice(_DRESSES) if n % 2 else _DRESSES[0]
        return Escape(name, ((command(dress(made)),),))


def _encoded(text: str) -> str:
    return f'eval "$(echo {base64.b64encode(text.encode()).decode()} | base64 -d)"'


# Ways to say the same thing. The sandbox must not care.
_DRESSES: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: f"sh -c {shlex.quote(text)}",
    lambda text: f"{{ {text}\n}} & wait",
    lambda text: f"setsid -w sh -c {shlex.quote(text)}",
    lambda text: f"env -i PATH=$PATH sh -c {shlex.quote(text)}",
    _encoded,
    lambda text: f"trap {shlex.quote(text)} EXIT; true",
    lambda text: f"cd $TMPDIR && cat >s.sh <<'SCRIPT'\n{text}\nSCRIPT\nsh ./s.sh",
    lambda text: f"find . -maxdepth 0 -exec sh -c {shlex.quote(text)} ';'",
    lambda text: f"nohup timeout 4 sh -c {shlex.quote(text)} 2>&1",
    lambda text: f"cd / && {{ {text}\n}}",
    lambda text: f"exec sh -c {shlex.quote(text)}",
)
