"""Starts the webhooks of a gateway, and starts them again when their settings change."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from talaria.access.settings import WebhookSettings
from talaria.channels.hooks.hook import Hook
from talaria.channels.hooks.part import HOOKS_PATH, find_secret, reserved_names
from talaria.core.ids import ChatAddress, ChatKey
from talaria.core.redaction import Secret
from talaria.core.turns import ReplyPlace
from talaria.gateway import Gateway

_log = logging.getLogger("talaria.webhooks")


def open_hooks(gateway: Gateway, settings: Mapping[str, WebhookSettings]) -> None:
    """Register the webhooks of these settings, and no others. One that cannot start says why in the log."""
    running = {path: hook for path, hook in gateway.webhooks.items() if isinstance(hook, Hook)}
    reserved = reserved_names(gateway.parts)
    for path in running:
        del gateway.webhooks[path]
    for name, each in settings.items():
        path, secret = f"{HOOKS_PATH}{name}", find_secret(each, gateway.environ)
        known = running.get(path)
        if known is not None and known.settings == each:
            gateway.webhooks[path] = known
            continue
        if name in reserved:
            _log.error("the webhook %s does not start: a channel has its name", name)
            continue
        try:
            place = partial(_find_place, gateway, each.deliver_to)
            gateway.webhooks[path] = Hook(name, each, secret, gateway, place)
        except ValueError as error:
            _log.error("the webhook %s does not start: %s", name, error)
            continue
        gateway.secrets.add([Secret(f"webhooks.{name}.secret", secret)])


def _find_place(gateway: Gateway, deliver_to: str) -> ReplyPlace | None:
    """Return where the answers of a webhook go. Raises `BadRequest` if nothing can be sent there."""
    if not deliver_to:
        return None
    key = ChatKey(deliver_to)
    return ReplyPlace(key, gateway.sender.find_address(ChatAddress.parse(key)))
