"""The ledger of a scripted model: what a provider would bill, whatever usage it reports."""

from __future__ import annotations

import re
from collections import defaultdict

import msgspec

from talaria.core.spending import Price, most
from talaria.testing.script import ScriptedAnswer, ScriptedFault

BYTES_PER_TOKEN = 4
_TAG = re.compile(r"#([\w-]+)\s*\Z")


class Bill(msgspec.Struct):
    """The calls of one payer. Input is billed when a request has arrived, output as it is sent. A request
    that is answered with an error status costs nothing."""

    calls: int = 0
    input_bytes: int = 0
    output_bytes: int = 0

    def cost(self, price: Price) -> int:
        """Return the cost in nanodollars at four bytes for a token."""
        return most(-(-self.input_bytes // BYTES_PER_TOKEN), -(-self.output_bytes // BYTES_PER_TOKEN), price)


class Bills:
    """The bills by payer. The payer is the tag at the end of a request's last user message: `hello #ada`."""

    def __init__(self) -> None:
        self.by_payer: defaultdict[str, Bill] = defaultdict(Bill)

    def open(self, user: str, body_bytes: int, answer: ScriptedAnswer) -> Bill:
        """Bill the input of a request and return the bill of its payer."""
        found = _TAG.search(user)
        bill = self.by_payer[found[1] if found else ""]
        if answer.fault is not ScriptedFault.STATUS:
            bill.calls += 1
            bill.input_bytes += body_bytes
        return bill


def output_bytes(answer: ScriptedAnswer) -> int:
    """Return the bytes of the output that a stream of this answer sends, up to its fault."""
    texts = [*([answer.thought] if answer.thought else []), *answer.pieces()]
    match answer.fault:
        case (
            ScriptedFault.STATUS
            | ScriptedFault.HANG
            | ScriptedFault.MALFORMED
            | ScriptedFault.ERROR_IN_STREAM
        ):
            texts = []
        case ScriptedFault.CUT:
            texts = texts[: answer.cut_after]
        case _:
            texts += [call.arguments for call in answer.calls]
    return sum(len(text.encode()) for text in texts)
