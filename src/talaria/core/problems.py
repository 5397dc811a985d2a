"""Problems as values: what is wrong, why, how bad it is, and what to do; and the commands that fix them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

import msgspec


class Severity(StrEnum):
    OK = "ok"  # nothing is wrong
    WARN = "warn"
    PROBLEM = "problem"


class Do(StrEnum):
    """The kind of an action, which says what its member `what` is."""

    # On the gateway's machine.
    RUN = "run"  # a command line, in which `talaria` stands for this program on this home
    SET_KEY = "set_key"  # a setting, which gets `value`; a person has to find a value if that is empty
    UNSET_KEY = "unset_key"  # a setting
    MOVE_KEY = "move_key"  # an unknown setting, whose value belongs to the setting `value`
    SET_VARIABLE = "set_variable"  # an environment variable of the gateway
    SET_UP = "set_up"  # the provider of the model
    CLOSE_FILE = "close_file"  # a file that other users can read

    # In a chat.
    USE_MODEL = "use_model"  # which one in words, such as "choose another model"
    USE_LOCAL_MODEL = "use_local_model"
    NEW_SESSION = "new_session"  # in words, such as "Start a new one"
    SHORTER = "shorter"  # a conversation that is too long
    NEW_BUDGET = "new_budget"  # of a new session
    ANSWER_AGAIN = "answer_again"
    STOP_TURN = "stop_turn"
    RESUME = "resume"  # the id of a session
    LIST_SESSIONS = "list_sessions"

    UNKNOWN = "unknown"  # written by a newer version

    @classmethod
    def _missing_(cls, value: object) -> Do:
        return cls.UNKNOWN


_IN_CHAT: Mapping[Do, str] = {
    Do.USE_MODEL: "{} with /model",
    Do.USE_LOCAL_MODEL: "Send `/model local`",
    Do.NEW_SESSION: "{} with /new",
    Do.SHORTER: "Start a new conversation with /new",
    Do.NEW_BUDGET: "Send /new for a session with a budget of its own",
    Do.ANSWER_AGAIN: "Ask to continue from there, or send /retry for a new answer",
    Do.STOP_TURN: "send /stop",
    Do.RESUME: "Send `/resume {}` to the chat first, or write",
    Do.LIST_SESSIONS: "/sessions lists the sessions of a chat.",
}


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer to a problem, for a person. Each surface words it: `talaria doctor` as a command line, the
    API for its callers, `talaria ask` with options. Its text is the words for a chat, which hints contain."""

    do: Do
    what: str = ""
    value: str = ""

    def __str__(self) -> str:
        return _IN_CHAT.get(self.do, "{}").format(self.what)

    def worded(self, words: Mapping[Do, str]) -> str:
        """Return the action in the words of another surface, in which `{}` stands for `what`. Like the words
        for a chat, which an action has that the surface does not know, they may begin a sentence or not."""
        chat = str(self)
        if self.do not in words:
            return chat
        text = words[self.do].format(self.what)
        return text[:1].lower() + text[1:] if chat[:1].islower() else text


class Problem(msgspec.Struct, frozen=True):
    """`text` says what is wrong and why, `hint` what to do, and `action` the same for a program. `subject` is
    a word or two. A statement that all is well has the severity `OK`."""

    text: str
    hint: str = ""
    action: Action | None = None
    severity: Severity = Severity.PROBLEM
    subject: str = ""

    @property
    def command(self) -> str:
        """The command line to run. Empty if there is none, or another action."""
        return self.action.what if self.action is not None and self.action.do is Do.RUN else ""

    def sentence(self) -> str:
        return f"{self.text} {self.hint}".strip()


def ok(subject: str, text: str, hint: str = "", action: Action | str = "") -> Problem:
    return Problem(text, hint, run(action), Severity.OK, subject)


def warn(subject: str, text: str, hint: str = "", action: Action | str | None = "") -> Problem:
    return Problem(text, hint, run(action), Severity.WARN, subject)


def problem(subject: str, text: str, hint: str = "", action: Action | str | None = "") -> Problem:
    return Problem(text, hint, run(action), Severity.PROBLEM, subject)


def run(command: Action | str | None) -> Action | None:
    """Return the action to run a command line; None for an empty one. An action is returned as it is."""
    return Action(Do.RUN, command) if command and isinstance(command, str) else command or None


# -- command lines ----------------------------------------------------------------------------------------


def install_command(*packages: str) -> str:
    """Return the command that installs packages into the environment that this program runs in."""
    if (Path(sys.prefix) / "pipx_metadata.json").is_file():
        return shell("pipx", "inject", "talaria-gateway", *packages)
    if find_spec("pip") is None:  # as in the environments that uv makes
        return shell("uv", "pip", "install", "--python", sys.executable, *packages)
    return shell(sys.executable, "-m", "pip", "install", *packages)


def end_command(pid: object) -> str:
    """Return the command that ends a process of Talaria. Empty if the pid belongs to another program here, as
    the pid of a gateway in a container does."""
    try:
        is_ours = b"talaria" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        is_ours = not Path("/proc/self").exists()  # this system does not show it
    return f"kill {pid}" if is_ours else ""


def close_command(path: Path, home: Path) -> str:
    """Return the command that closes a file to other users. Empty if the path or a link leads outside of the
    home: others may need that file."""
    is_inside = path.resolve().is_relative_to(home.resolve())
    return shell("chmod", "600", path) if is_inside else ""


def type_key(variable: str) -> str:
    """Return the command that reads a key without showing it, so that it is not in the shell's history."""
    return f"read -rs {variable} && export {variable}"


def shell(*words: str | Path) -> str:
    """Return a command line, quoted where needed."""
    return shlex.join(map(str, words))
