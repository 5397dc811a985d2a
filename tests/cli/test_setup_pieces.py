"""The decisions of `talaria setup`: which trouble it is, what is asked for, and what the answers mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import CliRunner

from talaria.cli.setup import Trouble, UnknownModel, _corrected, _given, _trouble
from talaria.cli.setup_plan import (
    KNOWN,
    _ask_provider,
    _number_up_to,
    ask_address,
    ask_cap,
    ask_choice,
    ask_kept,
    ask_model,
    complete,
    taken_address,
)
from talaria.config.model_choice import Candidate
from talaria.config.settings import Settings
from talaria.core.errors import ModelRefused, ModelUnavailable, NoModel
from talaria.models.settings import LOCAL, ProviderSettings

URL = "http://127.0.0.1:9/v1"


def answer(said: str, ask: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Ask a question that a person answers with the lines of `said`. Gives the result and the text."""
    with CliRunner().isolation(said) as streams:
        result = ask(*arguments)
        shown = streams[0].getvalue().decode()
    return result, shown


@pytest.mark.parametrize(
    ("error", "base_url", "trouble"),
    [
        (ModelRefused("x", status=401), "", Trouble.KEY),
        (ModelRefused("x", status=403), URL, Trouble.KEY),
        (UnknownModel("x", status=404), URL, Trouble.MODEL),
        (ModelRefused("x", status=404), "", Trouble.MODEL),
        (ModelRefused("x", status=404), URL, Trouble.ADDRESS),
        (ModelUnavailable("x"), URL, Trouble.ADDRESS),
        (ModelUnavailable("x"), "", Trouble.SERVER),
        (ModelUnavailable("x", status=500), URL, Trouble.CALL),
        (ModelUnavailable("x", status=408), "", Trouble.CALL),
    ],
)
def test_each_failure_is_one_trouble(error: Any, base_url: str, trouble: Trouble) -> None:
    assert _trouble(error, Candidate("p", base_url=base_url)) is trouble


def test_only_the_cause_of_a_trouble_is_asked_for_again() -> None:
    candidate = Candidate("p", "key in P", URL, "P", "secret", is_kept=True, model="m")
    assert _corrected(candidate, Trouble.SERVER) is None
    assert _corrected(candidate, Trouble.MODEL) is candidate
    assert _corrected(candidate, Trouble.CALL) is candidate
    keyless = _corrected(candidate, Trouble.KEY)
    assert keyless is not None
    assert (keyless.key, keyless.where, keyless.is_kept, keyless.is_refused) == ("", "", False, True)
    moved, _ = answer("http://127.0.0.1:8/v1\n", _corrected, candidate, Trouble.ADDRESS)
    assert (moved.base_url, moved.provider) == ("http://127.0.0.1:8/v1", "p")


@pytest.mark.parametrize(
    ("provider", "base_url", "words"),
    [
        ("http://x/v1", None, "--provider takes a name, and http://x/v1 is an address"),
        ("openia", None, "Did you mean openai?"),
        ("zzzzzz", None, "Known are: "),
    ],
)
def test_a_provider_that_is_none_is_refused(provider: str, base_url: str | None, words: str) -> None:
    with pytest.raises(NoModel, match=words):
        _given(provider, base_url, None, Settings(), asks=False)


def test_a_provider_is_completed_from_the_configuration_and_the_known_ones() -> None:
    known = _given("openai", None, None, Settings(), asks=False)
    assert (known.key_env, known.base_url, known.is_known, known.is_own_variable) == (
        "OPENAI_API_KEY", "", True, True,
    )  # fmt: skip
    moved = _given("openai", URL, None, Settings(), asks=False)
    assert (moved.key_env, moved.base_url) == ("", URL), "a known key goes to its own address only"
    own = Settings(providers={"mine": ProviderSettings(URL, api_key="secret")})
    mine = _given("mine", None, None, own, asks=False)
    assert (mine.base_url, mine.key, mine.is_kept) == (URL, "secret", True)
    named = _given("mine", None, "MY_KEY", own, asks=False)
    assert (named.key, named.key_env, named.is_kept) == ("", "MY_KEY", False)
    assert _given("zzzzzz", None, None, Settings(), asks=True).is_named_only


@pytest.mark.parametrize(
    ("candidate", "environ", "said", "expected"),
    [
        (Candidate(LOCAL), {}, "", {"key": ""}),
        (Candidate("openai", key="k"), {}, "", {"key": "k"}),
        (Candidate("openai", key_env="OPENAI_API_KEY"), {"OPENAI_API_KEY": "x"}, "", {"key": ""}),
        (Candidate("ollama"), {}, "", {"key": "", "is_keyless": False}),
        (Candidate("mine", base_url=URL, models=("m",)), {}, "", {"key": ""}),
        (Candidate("mine", base_url=URL, is_keyless=True), {}, "", {"key": ""}),
        (Candidate("mine", base_url=URL, model="m"), {}, "", {"key": ""}),
        (Candidate("my.own-x", base_url=URL), {}, "k\n", {"key": "k", "key_env": "MY_OWN_X_API_KEY"}),
        (Candidate("mine", base_url=URL), {}, "\n", {"is_keyless": True}),
        (Candidate("mine"), {}, f"{URL}\n\n", {"base_url": URL, "is_keyless": True}),
        (Candidate("openai"), {}, "k\n", {"key": "k", "key_env": "OPENAI_API_KEY"}),
        (
            Candidate("openai", key_env="OPENAI_API_KEY", is_refused=True),
            {"OPENAI_API_KEY": "x"},
            "k\n",
            {"key": "k"},
        ),
    ],
)
def test_what_a_candidate_lacks_is_asked_for(
    candidate: Candidate, environ: dict[str, str], said: str, expected: dict[str, object], monkeypatch: Any
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found, _ = answer(said, complete, candidate)
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize("candidate", [Candidate("openai"), Candidate("mine", base_url=URL, is_refused=True)])
def test_a_key_that_is_needed_is_insisted_on(candidate: Candidate, monkeypatch: Any) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(NoModel, match="wants a key"):
        answer("\n", complete, candidate)


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), (" 3 ", 3), ("0", None), ("4", None), ("x", None), ("²", None)]
)
def test_a_choice_is_a_number_of_the_list(text: str, number: int | None) -> None:
    if number is None:
        with pytest.raises(click.UsageError, match="from 1 to 3"):
            _number_up_to(3)(text)
    else:
        assert _number_up_to(3)(text) == number


def test_one_of_the_candidates_is_chosen_or_another_is_named() -> None:
    offered = [Candidate("openai", "key in OPENAI_API_KEY"), Candidate("mine", "here", URL)]
    first, shown = answer("\n", ask_choice, offered)
    assert first is offered[0]
    assert "openai" in shown
    assert "key in OPENAI_API_KEY" in shown
    assert answer("2\n", ask_choice, offered)[0] is offered[1]
    other, shown = answer("7\n4\nanthropic\n", ask_choice, offered)
    assert other == Candidate("anthropic")
    assert "Known providers: " in shown


def test_a_provider_is_named_or_is_an_address() -> None:
    assert answer("openai\n", _ask_provider)[0] == Candidate("openai")
    assert answer("openia\ny\n", _ask_provider)[0] == Candidate("openai")
    assert answer("openia\nn\n", _ask_provider)[0] == Candidate("openia")
    found, shown = answer("127.0.0.1:9\n", _ask_provider)
    assert found.base_url.startswith("http://127.0.0.1:9")
    assert f"It is called {found.provider} here." in shown


def test_an_address_is_completed_and_told() -> None:
    address, shown = answer("", taken_address, "127.0.0.1:9/v1")
    assert (address, shown) == (URL, f"Taken as {URL}\n")
    assert answer("", taken_address, URL) == (URL, "")
    with pytest.raises(click.UsageError, match="expected an address"):
        taken_address("no address at all")
    kept, shown = answer("\n", ask_address, Candidate("p", base_url=URL, models=("m",)))
    assert (kept.base_url, kept.models) == (URL, ())
    assert f"Address of p, up to /v1 [{URL}]" in shown
    _, shown = answer("\n", ask_address, Candidate("p", base_url="http://u:pw@h/v1"))
    assert "pw" not in shown


def test_a_model_is_asked_for_with_those_that_there_are() -> None:
    candidate = Candidate("mine", base_url=URL)
    assert answer("x\n", ask_model, candidate, [])[0] == "x"
    assert answer("\n", ask_model, candidate, ["a"])[0] == "a"
    assert answer("\n", ask_model, candidate, ["a", "b"], "b")[0] == "b"
    assert answer("\n", ask_model, Candidate(LOCAL), ["tiny", "large"])[0] == "tiny"
    chosen, shown = answer(" m7 \n", ask_model, candidate, [f"m{n}" for n in range(100)])
    assert chosen == "m7"
    assert "Models of mine: m0, m1" in shown
    assert " more\n" in shown
    assert ask_model(Candidate("scripted"), []) == "scripted"


def test_a_key_is_written_only_if_the_person_agrees() -> None:
    key = Candidate("openai", key="k", key_env="OPENAI_API_KEY")
    assert answer("y\n", ask_kept, key)[0].is_kept
    kept, shown = answer("\n", ask_kept, key)
    assert not kept.is_kept
    assert "(No: you set OPENAI_API_KEY)" in shown
    foreign = Candidate("openai", "key of Codex in ~/.codex/auth.json", key="k", key_env="OPENAI_API_KEY")
    assert "That is the key of Codex" in answer("n\n", ask_kept, foreign)[1]
    for other in (Candidate("openai", key_env="X"), Candidate("openai", key="k", is_kept=True)):
        assert ask_kept(other) is other
    assert "openai" in KNOWN


@pytest.mark.parametrize(("said", "cap"), [("\n", 5.0), ("12.5\n", 12.5), ("0\n", 0.0), ("-1\nx\n$3\n", 3.0)])
def test_a_daily_cap_is_proposed(said: str, cap: float) -> None:
    found, shown = answer(said, ask_cap)
    assert found == cap
    assert "USD a day" in shown
