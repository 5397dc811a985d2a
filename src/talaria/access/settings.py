"""`[budgets]`, `[people.NAME]`, `[webhooks.NAME]`, and the type of a channel's `allowed` list: ids that stay
with a person, never user names."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final, Literal

import msgspec

from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.settings import Check, Mark, Unset, matching, variable_name
from talaria.core.spending import from_usd
from talaria.core.text import check_template
from talaria.core.units import Size

# For platforms with numeric user ids: `allowed: UserNumbers = ()`.
UserNumbers = Annotated[
    tuple[Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)], ...],
    msgspec.Meta(
        description="a list of people's numeric ids, such as [123456789] (a @username can be abandoned and "
        "taken by someone else, and a negative number is a group, not a person; "
        "`talaria pair list` shows the ids of people who asked)"
    ),
]

PersonName = Annotated[
    str,
    Check(
        matching(
            "[a-z0-9][a-z0-9_-]{0,63}",
            "a name of 1 to 64 small letters, digits, underscores or dashes, or owner for yourself",
        )
    ),
]

_IDENTITY: Final = re.compile(r"[a-z0-9_-]{1,32}:[^\s\x00-\x1f]{1,100}")


def identities(ids: tuple[str, ...]) -> str | None:
    """A rule for a list of identities."""
    if all(map(_IDENTITY.fullmatch, ids)):
        return None
    return 'a list of a channel and an id each, "CHANNEL:123456789" or "http:token:NAME"'


Unknown = Literal["pair", "ignore"]
"""The setting `unknown` of a chat platform: unknown senders receive a pairing code, or no answer."""


class PersonSettings(msgspec.Struct, frozen=True):
    """`ids` are the identities of one person."""

    ids: Annotated[tuple[str, ...], Check(identities)] = ()


Dollars = Annotated[
    float, msgspec.Meta(ge=0, le=1_000_000_000, description="a number of dollars, 0 for no cap")
]


_RUN_USD: Final = Unset("for models with a known price", "0.5")


class BudgetSettings(msgspec.Struct, frozen=True):
    """A cap of 0 is no cap. `per_job_run_usd` holds for a run of a job with all its tries; if it is not set,
    runs on models without a known price have no cap. `assumed_output` is the number of output tokens that is
    reserved for a call to a model whose limit is not known."""

    per_day_usd: Dollars = 0.0
    per_session_usd: Dollars = 0.0
    per_user_daily_usd: Dollars = 0.0
    per_job_run_usd: Annotated[Dollars | None, _RUN_USD] = None
    assumed_output: Annotated[int, msgspec.Meta(ge=1)] = 32_768

    @property
    def caps(self) -> str:
        """The caps of people's calls in words; empty if there is none."""
        caps = {
            "a day": self.per_day_usd,
            "a session": self.per_session_usd,
            "a user and day": self.per_user_daily_usd,
        }
        return ", ".join(f"${cap:g} {of}" for of, cap in caps.items() if cap)

    @property
    def run_cap(self) -> int:
        """The cap of a run in nanodollars."""
        return from_usd(float(_RUN_USD.value) if self.per_job_run_usd is None else self.per_job_run_usd)


HookName = Annotated[
    str, Check(matching("[A-Za-z0-9][A-Za-z0-9_-]{0,63}", "1 to 64 letters, digits, underscores or dashes"))
]
HOOK_PLACES: Final = ("event", "id", "hook")


def hook_template(text: str) -> str | None:
    """A rule for the prompt of a webhook."""
    return check_template(text, HOOK_PLACES) if text.strip() else "what the agent is to do"


def chat_or_nothing(key: str) -> str | None:
    """A rule for the key of a chat."""
    try:
        if key:
            ChatAddress.parse(ChatKey(key))
    except ValueError:
        return "the key of a chat, agent:NAME:CHANNEL:KIND:CHAT (`talaria sessions list` shows them)"
    return None


class WebhookSettings(msgspec.Struct, frozen=True):
    """A webhook: `POST /hooks/NAME`. Without a secret it does not start.

    `prompt` is what the agent gets, with places that the call fills. `tools` are the only ones that it may
    call. The answer goes to the chat `deliver_to`, else it stays in the session. A body that came before is a
    repeat for `repeat_after`, with a token for five minutes at most, unless the caller signs an id.
    """

    signature: Literal["github", "standard", "hmac-sha256", "stripe", "token"] = "hmac-sha256"
    secret: Annotated[str, Mark.SECRET] = ""
    secret_env: Annotated[str, Mark.SECRET_VARIABLE, Check(variable_name)] = ""
    prompt: Annotated[str, Check(hook_template)] = "This came in. Say in a few sentences what it is:\n{body}"
    deliver_to: Annotated[str, Check(chat_or_nothing)] = ""
    tools: tuple[str, ...] = ("read_file", "list_files", "search_files")
    model: str = ""
    session: Literal["new", "same"] = "new"
    max_body: Size = Size(1 << 20)
    rate: Annotated[int, msgspec.Meta(ge=1, le=6000, description="calls in a minute, 1 to 6000")] = 60
    repeat_after: timedelta = timedelta(days=30)
