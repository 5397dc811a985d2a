"""What some servers want of chat completions that others do not: by the name of the model, wherever it runs.

- DeepSeek, Kimi and MiMo refuse, while they think, a call of tools without the thoughts that led to it. A
  call that another model made, or that was made without thinking, gets a blank one.
- MiMo refuses a call of tools without any text.
- OpenAI's reasoning models take `max_completion_tokens`, and refuse the older `max_tokens`, which is the one
  that most other servers know.
"""

from __future__ import annotations

import re

import msgspec

from talaria.core.messages import AssistantMessage, Reasoning

CHAT = "openai-chat"
_WANTS_THOUGHTS = re.compile(r"deepseek|kimi|mimo", re.IGNORECASE)
_WANTS_TEXT = re.compile(r"mimo", re.IGNORECASE)
_NEWER_LIMIT = re.compile(r"(?:gpt-5|o[134])(?:[-.]|$)")
_BLANK = Reasoning("reasoning_content", "", '" "')


def as_wanted(message: AssistantMessage, api: str, model: str) -> AssistantMessage:
    """The message as this model wants it back; itself for most."""
    if not message.tool_calls or api != CHAT or message.interrupted:
        return message
    if not message.reasoning and _WANTS_THOUGHTS.search(model):
        message = msgspec.structs.replace(message, reasoning=(_BLANK,))
    if not message.text and _WANTS_TEXT.search(model):
        message = msgspec.structs.replace(message, text=" ")
    return message


def limit_member(model: str) -> bytes:
    """The name under which this model takes the longest answer that is wanted."""
    return b"max_completion_tokens" if _NEWER_LIMIT.match(model) else b"max_tokens"
