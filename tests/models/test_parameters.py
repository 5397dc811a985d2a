"""The table of request parameters."""

from __future__ import annotations

from msgspec import Raw

from talaria.models.parameters import PARAMETERS, RequestParameters, Rule, translate


def test_every_parameter_that_a_caller_may_set_has_its_row() -> None:
    passed = {name for name, row in PARAMETERS.items() if row.chat is Rule.PASSED}
    assert set(RequestParameters.__struct_fields__) <= passed


def test_a_parameter_that_only_one_provider_has_is_encoded_behind_the_others() -> None:
    rest = {"top_a": Raw(b"0.5")}
    assert RequestParameters(seed=1).encode_parameters(rest) == b'"seed":1,"top_a":0.5'
    assert RequestParameters().encode_parameters(rest) == b'"top_a":0.5'


def test_parameters_are_renamed_or_dropped_by_the_table() -> None:
    sampling = b'"stop":"END","seed":1,"verbosity":"low","top_p":null,"unheard_of":1'
    assert translate(sampling, "anthropic") == {"stop_sequences": "END"}
    assert translate(sampling, "responses") == {"text.verbosity": "low"}
    assert translate(b"", "responses") == {}


def test_only_what_was_given_is_encoded() -> None:
    class Request(RequestParameters):
        model: str = ""

    assert Request(temperature=0, model="m").encode_parameters() == b'"temperature":0'
    assert Request(model="m").encode_parameters() == b""
