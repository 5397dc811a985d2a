"""`/usage` in words: tokens and money of the session, the sender and everyone, and the caps."""

from __future__ import annotations

from talaria.core.spending import Account, Scope, Spent, show_usd

_CAPS = {
    Scope.DAY: "{} a day",
    Scope.USER: "{} a day for each user",
    Scope.SESSION: "{} for a session",
}


def tell_account(account: Account) -> str:
    spending = account.spending
    lines = [
        f"This session: {_tell(spending.session)}",
        f"You today: {_tell(spending.user)}",
        f"Everyone today: {_tell(spending.everyone)}",
    ]
    if account.caps:
        caps = ", ".join(_CAPS[cap.scope].format(show_usd(cap.limit)) for cap in account.caps)
        reserved = (
            f" {show_usd(spending.reserved)} is set aside for calls under way." if spending.reserved else ""
        )
        lines.append(f"Caps: {caps}. The day ends at {account.resets}.{reserved}")
    return "\n".join(lines)


def _tell(spent: Spent) -> str:
    tokens = spent.tokens
    share = f" ({tokens.cached * 100 // tokens.input} % from the provider's cache)" if tokens.input else ""
    calls = "1 model call" if spent.calls == 1 else f"{spent.calls} model calls"
    return (
        f"{calls}, {tokens.input} tokens in{share}, {tokens.output} out, "
        f"{tokens.reasoning} of them reasoning; {_tell_cost(spent)}."
    )


def _tell_cost(spent: Spent) -> str:
    if not spent.unpriced:
        return show_usd(spent.cost)
    if spent.unpriced == spent.calls:
        return "the price is not known"
    return f"{show_usd(spent.cost)}, and {spent.unpriced} of the calls have no known price"
