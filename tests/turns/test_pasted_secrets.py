"""Secrets of the gateway in messages that people and programs send."""

from __future__ import annotations

from pathlib import Path

from support.rig import inbound, start
from talaria.core.messages import SystemMessage, Text, UserMessage
from talaria.core.redaction import Secret, SecretRegistry
from talaria.core.turns import Sender
from talaria.models.known import Abilities
from talaria.store.store import Store
from talaria.turns.histories import SentExchange
from talaria.turns.intake import StatelessCall

KEY = "sk-Q7rT2vX9bL4mN8pW3zK6yH1c"
SECRETS = SecretRegistry([Secret("KEY", KEY)])


async def test_a_pasted_secret_reaches_neither_log_nor_model(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, secrets=SECRETS) as rig:
        turn = await rig.say(f"My key is {KEY}.")
        assert turn.reply == "You said: My key is [secret KEY]."
        entries = [*await store.log(turn.session_id, 0)]
        call = StatelessCall(Sender("me"), (SystemMessage(KEY), UserMessage((Text(KEY),))))
        stateless = await rig.turns.wait(await rig.turns.call(call))
        assert stateless.reply == "You said: [secret KEY]"
        entries += await store.log(stateless.session_id, 0)
    assert KEY not in repr(entries) + repr(turn) + repr(stateless)
    assert KEY.encode() not in b"".join(rig.model.bodies)


async def test_a_front_ends_chat_goes_on_after_a_pasted_secret(store: Store, tmp_path: Path) -> None:
    async with start(store, tmp_path, secrets=SECRETS) as rig:
        first = await rig.say(f"My key is {KEY}.")
        sent = [SentExchange(UserMessage((Text(f"My key is {KEY}."),)), first.reply)]
        second = await rig.turns.wait(await rig.turns.submit(inbound("And now?", "one"), history=sent))
    assert second.session_id == first.session_id


async def test_a_long_message_is_searched_too(store: Store, tmp_path: Path) -> None:
    large = {"scripted/scripted": Abilities(context=200_000)}
    async with start(store, tmp_path, secrets=SECRETS, abilities=large) as rig:
        turn = await rig.say("x " * 40_000 + KEY)
    assert KEY not in str(turn.inbound.text)
    assert turn.inbound.text.endswith("[secret KEY]")
