from __future__ import annotations

from collections.abc import Iterator

import pytest

from talaria.core.errors import (
    ConfigError,
    ErrorInfo,
    IllegalMove,
    ModelError,
    ModelUnavailable,
    StoreError,
    TalariaError,
)


def family(kind: type[TalariaError]) -> Iterator[type[TalariaError]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from family(inner)


# Other packages may have their own; these are the core's.
CORE = [kind for kind in family(TalariaError) if kind.__module__ == "talaria.core.errors"]


def test_an_error_says_what_happened_and_what_to_do() -> None:
    error = ConfigError("The port is taken.", "Choose another.")
    assert str(error) == "The port is taken. Choose another."
    assert error.info() == ErrorInfo("config", "The port is taken.", "Choose another.")
    assert error.info().sentence() == "The port is taken. Choose another."


def test_without_a_hint_nothing_dangles() -> None:
    error = TalariaError("It broke.")
    assert str(error) == error.info().sentence() == "It broke."


def test_every_kind_of_error_has_its_own_word() -> None:
    words = [kind.type for kind in CORE]
    assert len(set(words)) == len(words) > 15
    assert all(word.replace("_", "").isalpha() and word.islower() for word in words)


def test_a_model_error_carries_its_status_and_when_to_try_again() -> None:
    error = ModelUnavailable("Too many requests.", status=429, retry_after=2.5)
    assert isinstance(error, ModelError)
    assert (error.status, error.retry_after, error.hint) == (429, 2.5, "")


def test_an_illegal_move_is_the_stores_refusal_and_names_both_states() -> None:
    with pytest.raises(StoreError, match="turn t cannot go from done to running"):
        raise IllegalMove("turn t", "done", "running")
