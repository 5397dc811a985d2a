"""A mapping that drops its oldest items."""

from __future__ import annotations

from talaria.core.limits import BoundedDict


def test_item_that_is_set_again_stays_longer_than_an_older_one() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept["a"], kept["b"], kept["a"], kept["c"] = 1, 2, 3, 4
    assert list(kept.items()) == [("a", 3), ("c", 4)]


def test_update_and_setdefault_are_bounded_too() -> None:
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept.update(dict.fromkeys("abc", 1))
    kept.setdefault("d", 2)
    assert list(kept) == ["c", "d"]
