"""Cursors of the store's pages: opaque to callers, and a broken one is the caller's mistake."""

from __future__ import annotations

from talaria.core.errors import BadRequest
from talaria.core.ledger import Page
from talaria.core.sessions import Session


def check_limit(page: Page) -> int:
    if page.limit < 1:
        raise BadRequest(f"A page cannot have {page.limit} items.", "Ask for at least one.")
    return page.limit


def session_cursor(session: Session) -> str:
    return f"{session.updated_at!r}~{session.id}"


def parse_session_cursor(after: str | None) -> tuple[float, str]:
    """The sort key (`updated_at`, `id`) of the last session on the page before."""
    if after is None:
        return float("inf"), ""
    stamp, mark, session_id = after.partition("~")
    try:
        if mark:
            return float(stamp), session_id
    except ValueError:
        pass
    raise _broken(after)


def parse_number_cursor(after: str | None) -> int:
    """Return the number of the last item on the page before: an entry's `seq`, a question's position."""
    if after is None:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise _broken(after)
    return int(after)


def _broken(after: str) -> BadRequest:
    return BadRequest(
        f"{after!r} is not a place in a list.", "Pass the `next` of the page before as `after`."
    )
