"""Lost, duplicated, marked and misplaced replies in the report on a chat."""

from __future__ import annotations

import pytest

from talaria.channels.live_message import REPEATED
from talaria.channels.reception import CORRECTS
from talaria.testing.simulated_users import DeliveryReport, MessageKind, SimulatedMessage, check_chat
from talaria.testing.telegram_platform import ShownMessage

TOLD = "This message was tried 3 times, and it is not tried again."
MARKED = f"{REPEATED}\n\n{TOLD}"


def chat(*texts: str) -> list[ShownMessage]:
    return [ShownMessage(n, text, by_bot=True) for n, text in enumerate(texts, 1)]


def asked(*kinds: MessageKind) -> list[SimulatedMessage]:
    return [SimulatedMessage(f"m{n}", kind) for n, kind in enumerate(kinds, 1)]


@pytest.mark.parametrize(
    ("kinds", "texts", "report"),
    [
        ([MessageKind.TEXT], ["You said: m1"], DeliveryReport(1, 1)),
        ([MessageKind.TEXT], [], DeliveryReport(1, 0, lost=("m1",))),
        ([MessageKind.TEXT], ["You said: m1 ▌"], DeliveryReport(1, 0, previews=1, lost=("m1",))),
        ([MessageKind.TEXT], ["You said: m17"], DeliveryReport(1, 0, lost=("m1",))),
        ([MessageKind.TEXT], [TOLD], DeliveryReport(1, 0, given_up=1)),
        ([MessageKind.TEXT, MessageKind.TEXT], [TOLD], DeliveryReport(2, 0, given_up=1, lost=("m2",))),
        (
            [MessageKind.TEXT, MessageKind.TEXT],
            [TOLD, MARKED],
            DeliveryReport(2, 0, given_up=1, resent=1, lost=("m2",)),
        ),
        ([MessageKind.TEXT, MessageKind.TEXT], [MARKED, TOLD], DeliveryReport(2, 0, given_up=2, resent=1)),
        ([MessageKind.TEXT], ["You said: m1", f"{REPEATED}\n\nYou said: m1"], DeliveryReport(1, 1, resent=1)),
        ([MessageKind.TEXT], ["You said: m1", "You said: m1"], DeliveryReport(1, 1, duplicated=("m1",))),
        (
            [MessageKind.TEXT, MessageKind.TOOL],
            ["m2", "m1"],
            DeliveryReport(2, 2, out_of_order=("m2 before m1",)),
        ),
        ([MessageKind.TEXT, MessageKind.STEER], ["m2"], DeliveryReport(2, 1)),
        ([MessageKind.TEXT, MessageKind.STOP], ["Stopped."], DeliveryReport(1, 0)),
        ([MessageKind.TEXT, MessageKind.TEXT, MessageKind.STOP], [], DeliveryReport(2, 0, lost=("m2",))),
    ],
)
def test_the_verdict(kinds: list[MessageKind], texts: list[str], report: DeliveryReport) -> None:
    found = check_chat(asked(*kinds), chat(*texts))
    assert found == report
    assert found.is_good == (not (report.lost or report.duplicated or report.out_of_order))


def test_an_edit_answers_for_the_message_whose_text_it_replaced() -> None:
    first, second, edit = asked(MessageKind.TEXT, MessageKind.TEXT, MessageKind.EDIT)
    edit = SimulatedMessage(edit.name, edit.kind, first.name)
    assert check_chat([first, second, edit], chat("m3", "m2")) == DeliveryReport(3, 3)
    assert check_chat([first, second, edit], chat("m1", "m2", "m3")) == DeliveryReport(3, 3)
    assert check_chat([first, second, edit], chat("m2", "m3")).out_of_order == ("m2 before m3",)
    assert check_chat([first, second, edit], chat("m2")).lost == ("m1", "m3")
    stop = SimulatedMessage("m4", MessageKind.STOP)
    late = check_chat([first, stop, second, edit], chat("m2", f"{CORRECTS}\nm3"))
    assert late.is_good, "the message was stopped, and its edit came too late"
    assert late.answered == 2


def test_what_people_write_is_no_answer() -> None:
    assert check_chat(asked(MessageKind.TEXT), [ShownMessage(1, "m1", by_bot=False)]).lost == ("m1",)


def test_verdicts_add_up() -> None:
    one, other = DeliveryReport(2, 1, lost=("m2",)), DeliveryReport(3, 3, 0, 1, 2, duplicated=("m9",))
    assert one + other == DeliveryReport(5, 4, 0, 1, 2, ("m2",), ("m9",))
