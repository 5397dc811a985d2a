from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from talaria.core.specs import AgentSpec, Prefix, fingerprint_secrets, pin

SPEC = AgentSpec(
    agent="main",
    provider="local",
    model="small",
    api="openai-chat",
    prompt="Be kind.",
    tools=("read_file", "todo"),
    tools_fingerprint="f" * 64,
    credential="c" * 64,
)
PREFIX = Prefix(b'{"role":"system"}', b"[]")


def test_equal_specs_with_equal_bytes_share_one_id() -> None:
    copy = msgspec.json.decode(msgspec.json.encode(SPEC), type=AgentSpec)
    pinned = pin(copy, Prefix(PREFIX.system, PREFIX.tools))
    assert pinned == pin(SPEC, PREFIX)
    assert pinned.id.startswith("spec_")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent", "other"),
        ("provider", "other"),
        ("model", "smalle"),
        ("api", "other"),
        ("prompt", "Be kind. "),
        ("tools", ("read_file",)),
        ("tools", ("todo", "read_file")),
        ("tools_fingerprint", "0" * 64),
        ("credential", "0" * 64),
        ("sees", False),
        ("memory", 3),
        ("searched", (("mcp_one_echo", "0" * 16),)),
    ],
)
def test_another_value_of_any_field_is_another_id(field: str, value: Any) -> None:
    assert pin(msgspec.structs.replace(SPEC, **{field: value}), PREFIX).id != pin(SPEC, PREFIX).id


def test_every_field_of_a_spec_is_covered_above() -> None:
    assert set(AgentSpec.__struct_fields__) == {
        "agent",
        "provider",
        "model",
        "api",
        "prompt",
        "tools",
        "tools_fingerprint",
        "credential",
        "sees",
        "memory",
        "searched",
    }


def test_a_spec_from_before_images_had_a_choice_reads_and_is_written_as_it_was() -> None:
    stored = msgspec.json.encode({**msgspec.to_builtins(SPEC)})
    assert b"sees" not in stored
    assert msgspec.json.decode(stored, type=AgentSpec).sees
    assert msgspec.json.encode(msgspec.json.decode(stored, type=AgentSpec)) == stored


def test_the_bytes_are_part_of_the_id_and_their_border_matters() -> None:
    ids = {pin(SPEC, prefix).id for prefix in (Prefix(b"ab", b"c"), Prefix(b"a", b"bc"), Prefix(b"abc", b""))}
    assert len(ids) == 3


secrets = st.lists(st.text(min_size=1, max_size=8), max_size=5)


@settings(deadline=None)
@given(secrets, st.randoms())
def test_neither_order_nor_repetition_of_secrets_matters(given_secrets: list[str], random: Any) -> None:
    shuffled = given_secrets * 2
    random.shuffle(shuffled)
    assert fingerprint_secrets(shuffled) == fingerprint_secrets(given_secrets)


@settings(deadline=None)
@given(secrets, secrets)
def test_two_sets_of_secrets_never_look_the_same(one: list[str], other: list[str]) -> None:
    assert (fingerprint_secrets(one) == fingerprint_secrets(other)) == (set(one) == set(other))


def test_keys_with_a_common_prefix_are_told_apart() -> None:
    prefix = "sk-proj-" + "x" * 200
    assert fingerprint_secrets([prefix + "a"]) != fingerprint_secrets([prefix + "b"])
    assert fingerprint_secrets(["ab", "c"]) != fingerprint_secrets(["a", "bc"])


def test_a_fingerprint_shows_nothing_of_the_secret() -> None:
    fingerprint = fingerprint_secrets(["sk-secret"])
    assert len(fingerprint) == 64
    assert "secret" not in fingerprint


def test_what_is_remembered_is_the_end_of_the_prompt() -> None:
    assert SPEC.remembered == ""
    assert msgspec.structs.replace(SPEC, memory=5).remembered == "kind."
