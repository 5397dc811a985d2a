"""What counts as lost, doubled, marked and out of order in a chat."""

from __future__ import annotations

import pytest

from talaria.channels.telegram.outlet import REPEATED
from talaria.testing.promises import Asked, Kind, Verdict, judge
from talaria.testing.telegram_platform import ShownMessage

TOLD = "This message was tried 3 times, and it is not tried again."
MARKED = f"{REPEATED}\n\n{TOLD}"


def chat(*texts: str) -> list[ShownMessage]:
    return [ShownMessage(n, text, by_bot=True) for n, text in enumerate(texts, 1)]


def asked(*kinds: Kind) -> list[Asked]:
    return [Asked(f"m{n}", kind) for n, kind in enumerate(kinds, 1)]


@pytest.mark.parametrize(
    ("kinds", "texts", "verdict"),
    [
        ([Kind.TEXT], ["You said: m1"], Verdict(1, 1)),
        ([Kind.TEXT], [], Verdict(1, 0, lost=("m1",))),
        ([Kind.TEXT], ["You said: m1 ▌"], Verdict(1, 0, previews=1, lost=("m1",))),
        ([Kind.TEXT], ["You said: m17"], Verdict(1, 0, lost=("m1",))),
        ([Kind.TEXT], [TOLD], Verdict(1, 0, told=1)),
        ([Kind.TEXT, Kind.TEXT], [TOLD], Verdict(2, 0, told=1, lost=("m2",))),
        ([Kind.TEXT, Kind.TEXT], [TOLD, MARKED], Verdict(2, 0, told=1, resent=1, lost=("m2",))),
        ([Kind.TEXT, Kind.TEXT], [MARKED, TOLD], Verdict(2, 0, told=2, resent=1)),
        ([Kind.TEXT], ["You said: m1", f"{REPEATED}\n\nYou said: m1"], Verdict(1, 1, resent=1)),
        ([Kind.TEXT], ["You said: m1", "You said: m1"], Verdict(1, 1, unmarked=("m1",))),
        ([Kind.TEXT, Kind.TOOL], ["m2", "m1"], Verdict(2, 2, disordered=("m2 before m1",))),
        ([Kind.TEXT, Kind.STEER], ["m2"], Verdict(2, 1)),
        ([Kind.TEXT, Kind.STOP], ["Stopped."], Verdict(1, 0)),
        ([Kind.TEXT, Kind.TEXT, Kind.STOP], [], Verdict(2, 0, lost=("m2",))),
    ],
)
def test_the_verdict(kinds: list[Kind], texts: list[str], verdict: Verdict) -> None:
    found = judge(asked(*kinds), chat(*texts))
    assert found == verdict
    assert found.is_kept == (not (verdict.lost or verdict.unmarked or verdict.disordered))


def test_what_people_write_is_no_answer() -> None:
    assert judge(asked(Kind.TEXT), [ShownMessage(1, "m1", by_bot=False)]).lost == ("m1",)


def test_verdicts_add_up() -> None:
    one, other = Verdict(2, 1, lost=("m2",)), Verdict(3, 3, 0, 1, 2, unmarked=("m9",))
    assert one + other == Verdict(5, 4, 0, 1, 2, ("m2",), ("m9",))
