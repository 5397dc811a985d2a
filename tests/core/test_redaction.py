from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.complexity import assert_linear
from talaria.core.redaction import Redactor, Secret, SecretRegistry, StreamRedactor, mark_of

SECRET = "sk-~~~???/+=ü"
MARK = mark_of("KEY")
FORMS = {
    "plain": SECRET,
    "url": quote(SECRET, safe=""),
    "hex": SECRET.encode().hex(),
    "base64": base64.b64encode(SECRET.encode()).decode(),
    "base64url": base64.urlsafe_b64encode(SECRET.encode()).decode(),
}


def redactor(secrets: Iterable[str]) -> Redactor:
    return Redactor(Secret("KEY", secret) for secret in secrets)


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_hidden_in_every_usual_encoding(form: str) -> None:
    shown = redactor([SECRET])(f"before {FORMS[form]} after")
    assert shown.rstrip("=").startswith(f"before {MARK}")
    assert shown.endswith("after")
    assert FORMS[form].rstrip("=") not in shown


def test_the_forms_are_really_different() -> None:
    assert len(set(FORMS.values())) == len(FORMS)


def test_every_occurrence_is_hidden() -> None:
    assert redactor(["secret-1"])("secret-1secret-1, secret-1") == f"{MARK}{MARK}, {MARK}"


def test_of_two_secrets_where_one_begins_the_other_the_longer_is_hidden_whole() -> None:
    assert redactor(["token-1", "token-1-extended"])("token-1-extended token-1") == f"{MARK} {MARK}"


def test_of_two_overlapping_secrets_neither_survives() -> None:
    shown = redactor(["abcdefgh", "efghijkl"])("abcdefghijkl")
    assert "abcdefgh" not in shown
    assert "efghijkl" not in shown


def test_secrets_too_short_to_mean_anything_are_ignored() -> None:
    redact = redactor(["", "a", "12345", "123456"])
    assert redact("a 12345 b") == "a 12345 b"
    assert redact("123456") == MARK


def test_a_secret_is_text_and_not_a_pattern() -> None:
    redact = redactor([".*[a-z]+$", "(((((((("])
    assert redact("anything at all") == "anything at all"
    assert redact("x .*[a-z]+$ ((((((((") == f"x {MARK} {MARK}"


def test_without_secrets_nothing_changes() -> None:
    assert Redactor()("text") == "text"


def test_with_secrets_is_another_redactor() -> None:
    small = redactor(["first-secret"])
    large = small.with_secrets([Secret("KEY", "second-secret")])
    assert small("second-secret") == "second-secret"
    assert large("first-secret second-secret") == f"{MARK} {MARK}"


def test_a_redactor_does_not_show_its_secrets() -> None:
    assert repr(redactor(["first-secret", "second-secret"])) == "Redactor(2 secrets)"


@settings(deadline=None)
@given(
    st.lists(st.text("xyz09=/", min_size=6, max_size=12), min_size=1, max_size=4),
    st.text("xyz09=/ ", max_size=60),
)
def test_no_secret_is_left_in_any_text(secrets: list[str], text: str) -> None:
    shown = redactor(secrets)(text + secrets[0] + text)
    assert not any(secret in shown for secret in secrets)


KEY = "sk-proj-Q7rT2vX9bL4mN8pW3zK6yH1cJ5dF0gSa"


def hidden(form: str, secret: str = KEY) -> str:
    return redactor([secret])(f"before {form} after")


@pytest.mark.parametrize("before", ["", "a", "ab", "Basic user:", "abc:"])
@pytest.mark.parametrize("after", ["", "x", "xy", "\n", "-and more"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("is_padded", [True, False])
def test_base64_is_hidden_at_every_offset(
    before: str, after: str, encode: Callable[[bytes], bytes], is_padded: bool
) -> None:
    for secret in (KEY, KEY[:-1], KEY[:-2], SECRET + "0123"):
        coded = encode(f"{before}{secret}{after}".encode()).decode()
        shown = hidden(coded if is_padded else coded.rstrip("="), secret)
        assert MARK in shown
        left = shown.removeprefix("before ").removesuffix(" after").replace(MARK, "")
        assert len(left) <= (len(before) + len(after)) * 4 / 3 + 8
        assert coded[8:-8] not in shown


@pytest.mark.parametrize(
    "form",
    [
        KEY.upper(),
        KEY.lower(),
        KEY.encode().hex().upper(),
        KEY[::-1],
        quote(f"{KEY}/+").lower(),
        KEY[:30],
        KEY[:16],
        KEY[-12:],
        KEY[5:],
        f"{KEY[:18]}…",
        KEY[:20].upper(),
        KEY.encode().hex()[-24:],
        f"{KEY[:11]}\n{KEY[11:]}",
        f"{KEY[:20]}\r\n    {KEY[20:]}",
        "\n".join(KEY),
    ],
)
def test_cut_broken_and_recased_keys_are_hidden(form: str) -> None:
    shown = hidden(form)
    assert MARK in shown
    assert not any(form[at : at + 12] in shown for at in range(len(form) - 12))


def test_base64_in_lines_is_hidden() -> None:
    coded = base64.encodebytes(b"x" * 50 + KEY.encode()).decode()
    first, second = coded.split()
    shown = hidden(coded)
    assert second not in shown
    assert first[-8:] not in shown
    assert shown.startswith("before eHh4")


def test_secrets_of_several_lines_are_hidden() -> None:
    key = "-----BEGIN KEY-----\nMIIabcdefgh\n0123456789\n-----END KEY-----\n"
    assert redactor([key, "\n" * 9])(f"a {key}b") == f"a {MARK}\nb"
    assert MARK in redactor([key])("and MIIabcdefgh\n0123456789\n-----END KEY-----")


@pytest.mark.parametrize(
    "text",
    [
        "A key begins with sk-proj- and is long.",
        "The quick brown fox jumps over the lazy dog, sk-proj-Q7rT2 says.",
        "turn_01HZXW3V9K7J2M4N6P8Q0R5S1T of ses_01HZXW3V9K7J2M4N6P8Q0R5S1T",
        "https://api.openai.com/v1/chat/completions answered 200 in 1.234 s",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert redactor([KEY, "hunter22"])(text) == text


def test_characters_of_several_bytes_stay_whole() -> None:
    assert (
        redactor(["geheimnis-ü-0123456789"])("äé geheimnis-ü-0123456789ö 😀\ud800") == f"äé {MARK}ö 😀\ud800"
    )
    assert redactor(["0123456789abcdefü"])("0123456789abcdefö") == f"{MARK}ö"


@pytest.mark.parametrize(
    "shape", ["x", "sk-proj-", KEY[:-1], KEY, f"{KEY}\n", "\n", "a\n", " \n", "c2stcHJva"]
)
def test_redaction_is_linear(shape: str) -> None:
    redact = redactor([KEY, "x" * 40, "hunter22", *(f"{KEY}{number}" for number in range(5))])
    assert_linear(lambda size: shape * (size // 4 // len(shape)), redact)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_the_shortest_pieces_of_base64_that_are_hidden(encode: Callable[[bytes], bytes]) -> None:
    key = "sk-proj-~~~???0123456789abcdefghij~~~???"
    coded = encode(key.encode()).decode().rstrip("=")
    assert set("+/-_") & set(coded[:21])
    assert set("+/-_") & set(coded[-16:])
    for piece in (coded[:21], coded[-16:]):
        assert hidden(piece, key) == f"before {MARK} after"
    for piece in (coded[:20], coded[-15:]):
        assert MARK not in hidden(piece, key)


def test_the_shortest_pieces_of_a_key_that_are_hidden() -> None:
    assert hidden(KEY[:16]) == hidden(KEY[-12:]) == f"before {MARK} after"
    assert MARK not in hidden(KEY[:15]) + hidden(KEY[-11:])
    coded = KEY.encode().hex()
    assert hidden(coded[:32]) == hidden(coded[-24:]) == f"before {MARK} after"
    assert MARK not in hidden(coded[:31]) + hidden(coded[-23:])
    short = KEY[-15:]
    assert MARK not in hidden(short[:-1], short), "a short secret is hidden whole or not at all"
    assert MARK in hidden(short, short)


# -- names


def test_a_mark_names_the_secret() -> None:
    redact = Redactor([Secret("GITHUB_TOKEN", "ghp_0123456789"), Secret("http.token", "abcdef0123456789")])
    assert redact("ghp_0123456789 abcdef0123456789") == "[secret GITHUB_TOKEN] [secret http.token]"


def test_a_secret_with_two_names_has_the_first_of_them() -> None:
    secrets = [Secret("B", "one-secret"), Secret("A", "one-secret"), Secret("C", "other-secret")]
    for order in itertools.permutations(secrets):
        assert Redactor(order)("one-secret") == "[secret A]"


def test_of_two_overlapping_secrets_the_mark_names_the_first() -> None:
    secrets = [Secret("SHORT", "token-1"), Secret("LONG", "token-1-extended")]
    assert Redactor(secrets)("token-1-extended token-1") == "[secret LONG] [secret SHORT]"


def test_a_secret_does_not_show_its_value() -> None:
    assert repr(Secret("KEY", "hunter22")) == "Secret(KEY)"


@pytest.mark.parametrize("size", [6, 7, 8, 12, 15, 16, 40])
def test_a_secret_is_found_at_every_place_of_a_long_text(size: int) -> None:
    secret = KEY[-size:]
    redact = redactor([secret])
    for at in (*range(9), *range(16_370, 16_400), 40_000):
        assert redact("." * at + secret + ".") == "." * at + f"{MARK}."
        assert redact("." * at + secret) == "." * at + MARK


def test_a_registry_keeps_what_it_knew_and_of_passing_secrets_the_last() -> None:
    registry = SecretRegistry([Secret("A", "secret-of-a")])
    registry.add([Secret("B", "secret-of-b")])
    for number in range(20):
        registry.add_recent(Secret("token", f"token-number-{number:03}."))
    assert registry("secret-of-a secret-of-b") == "[secret A] [secret B]"
    assert registry("token-number-019.") == "[secret token]"
    assert registry("token-number-000.") == "token-number-000."


# -- streams


def streamed(stream: StreamRedactor, chunks: Iterable[bytes]) -> bytes:
    return b"".join([*map(stream.feed, chunks), stream.finish()])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_a_secret_that_comes_in_parts_is_hidden_in_every_encoding(form: str, size: int) -> None:
    text = f"before {FORMS[form]} after {FORMS[form]}".encode()
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    shown = streamed(redactor([SECRET]).stream(), chunks).decode()
    assert shown == redactor([SECRET])(text.decode())
    assert shown.count(MARK) == 2


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_stream_shows_what_the_whole_text_would_show(data: st.DataObject) -> None:
    secrets = [KEY, "hunter22", "geheimnis-ü-0123456789"]
    words = st.sampled_from([*secrets, KEY.encode().hex(), "plain", " ", "\n", "  ", "s", "ü", "hunter2"])
    whole = "".join(data.draw(st.lists(words, max_size=12))).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    chunks = [whole[start:end] for start, end in itertools.pairwise([0, *cuts, len(whole)])]
    shown = streamed(redactor(secrets).stream(), chunks).decode()
    assert not any(secret in shown.replace("\n", "") for secret in (*secrets, KEY.encode().hex()))
    assert shown == redactor(secrets)(whole.decode())


def test_a_stream_holds_back_no_more_than_the_beginning_of_a_secret() -> None:
    stream = redactor([KEY]).stream()
    assert stream.feed(b"Continue? [y/n] ") == b"Continue? [y/n] "
    assert stream.feed(b"yes, sk-pro") == b"yes, "
    assert stream.feed(b"fit") == b"sk-profit"
    assert stream.feed(KEY.encode()) == b""
    assert stream.feed(b" ") == f"{MARK} ".encode()
    assert stream.finish() == b""


def test_a_text_in_parts_stays_text() -> None:
    stream = redactor(["geheimnis-ü"]).stream()
    pieces = [stream.feed_text(piece) for piece in ("äü", "ü-sin", "geheimnis-", "ü😀", "\ud800")]
    assert "".join([*pieces, stream.finish_text()]) == f"äüü-sin{MARK}😀\ud800"


def test_a_stream_that_never_ends_its_line_is_not_held_for_ever() -> None:
    stream = redactor([KEY]).stream()
    assert stream.feed(b"s") == b""
    held = sum(len(stream.feed(b"\n" * 10_000)) for _ in range(10))
    assert held > 50_000
    assert stream.feed(b"x").endswith(b"x")


def test_a_stream_is_linear() -> None:
    def run(text: str) -> None:
        stream = redactor([KEY, "x" * 40]).stream()
        for at in range(0, len(text), 50):
            stream.feed_text(text[at : at + 50])

    assert_linear(lambda size: (KEY[:-1] + "x") * (size // 40 // 40), run)
