"""What the ledger is told of each way in which a send can end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from channels.telegram.line import way_back
from talaria.channels.live_message import REPEATED
from talaria.channels.telegram.outlet import TelegramOutlet
from talaria.core.delivery import (
    Button,
    DeliveryDelayed,
    DeliveryError,
    DeliveryRefused,
    DeliveryUnknown,
    OutgoingFile,
    OutgoingMessage,
)
from talaria.testing.telegram_server import FaultKind, TelegramFault, TelegramServer

SEND = OutgoingMessage("7::", "text", "nonce")


@pytest.fixture
async def outlet(server: TelegramServer) -> AsyncIterator[TelegramOutlet]:
    async with way_back(server) as outlet:
        yield outlet


@pytest.mark.parametrize(
    ("fault", "of_send", "of_edit"),
    [
        (TelegramFault(FaultKind.STATUS, status=429), DeliveryDelayed, DeliveryDelayed),
        (TelegramFault(FaultKind.STATUS, status=401), DeliveryDelayed, DeliveryDelayed),
        (TelegramFault(FaultKind.STATUS, status=403), DeliveryRefused, DeliveryRefused),
        (TelegramFault(FaultKind.STATUS, status=400), DeliveryRefused, DeliveryRefused),
        (TelegramFault(FaultKind.STATUS, status=500), DeliveryUnknown, DeliveryDelayed),
        (TelegramFault(FaultKind.HTML), DeliveryUnknown, DeliveryDelayed),
        (TelegramFault(FaultKind.CUT_BEFORE), DeliveryUnknown, DeliveryUnknown),
        (TelegramFault(FaultKind.CUT_AFTER), DeliveryUnknown, DeliveryUnknown),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, TelegramFault) else "",
)
@pytest.mark.parametrize("is_edit", [False, True])
async def test_each_failure_says_what_is_known(
    server: TelegramServer,
    outlet: TelegramOutlet,
    fault: TelegramFault,
    of_send: type[DeliveryError],
    of_edit: type[DeliveryError],
    is_edit: bool,
) -> None:
    first = await outlet.deliver(SEND)
    method = "editMessageText" if is_edit else "sendMessage"
    server.fail(method, TelegramFault(fault.kind, status=fault.status))
    with pytest.raises(of_edit if is_edit else of_send) as error:
        await outlet.deliver(OutgoingMessage("7::", "other", "nonce", edits=first if is_edit else None))
    assert server.token not in str(error.value)
    assert server.token not in repr(error.value)


async def test_a_server_that_cannot_be_reached_took_nothing() -> None:
    nowhere = TelegramServer(port=1, token="123:secret-token")
    async with way_back(nowhere) as outlet:
        with pytest.raises(DeliveryDelayed) as error:
            await outlet.deliver(SEND)
        assert "secret" not in repr((error.value, error.value.__cause__))


async def test_the_wait_that_telegram_asks_for_is_handed_on(
    server: TelegramServer, outlet: TelegramOutlet
) -> None:
    body = {"ok": False, "error_code": 429, "description": "x", "parameters": {"retry_after": 17}}
    server.fail("sendMessage", TelegramFault(FaultKind.STATUS, status=429, body=body))
    with pytest.raises(DeliveryDelayed) as error:
        await outlet.deliver(SEND)
    assert error.value.retry_after == 17


async def test_an_edit_of_nothing_new_is_done_and_one_of_nothing_there_is_a_send(
    server: TelegramServer, outlet: TelegramOutlet
) -> None:
    first = await outlet.deliver(SEND)
    assert await outlet.deliver(OutgoingMessage("7::", "text", "nonce", edits=first)) == first
    second = await outlet.deliver(OutgoingMessage("7::", "text", "nonce", edits="99"))
    assert second not in ("99", first)
    assert server.platform.chats[7].replies == ["text", "text"]


@pytest.mark.parametrize("address", ["", "x", "7", "7:8:9:10"])
async def test_what_is_no_address_is_refused(outlet: TelegramOutlet, address: str) -> None:
    with pytest.raises(DeliveryRefused):
        await outlet.deliver(OutgoingMessage(address, "text", "nonce"))


async def test_a_repeat_says_so(server: TelegramServer, outlet: TelegramOutlet) -> None:
    await outlet.deliver(OutgoingMessage("7::", "text", "nonce", is_repeat=True))
    assert server.platform.chats[7].replies == [f"{REPEATED}\n\ntext"]


async def test_files_go_out_as_photos_voices_or_documents_with_a_caption_that_fits(
    server: TelegramServer, outlet: TelegramOutlet
) -> None:
    for name in ("a.png", "b.txt", "c.ogg"):
        await outlet.deliver(OutgoingMessage("7::", "c" * 2000, "nonce", file=OutgoingFile(name, b"data")))
    photo, document, voice = server.platform.chats[7].messages.values()
    assert "voice" in voice.raw
    assert (photo.file, photo.file_name, "photo" in photo.raw) == (b"data", "a.png", True)
    assert (document.file_name, "document" in document.raw) == ("b.txt", True)
    assert len(photo.text) == 1024


async def test_buttons_carry_their_command_or_their_place(
    server: TelegramServer, outlet: TelegramOutlet
) -> None:
    buttons = (Button("Yes", "/approve 1"), Button("x" * 80, "x" * 80), Button("#", "#1"))
    await outlet.deliver(OutgoingMessage("7::", "choose", "nonce", buttons=buttons))
    (shown,) = server.platform.chats[7].messages.values()
    assert [data for _, data in shown.buttons] == ["/approve 1", "#1", "#2"]
