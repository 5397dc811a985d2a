"""The table of request parameters."""

from __future__ import annotations

from talaria.models.parameters import NAMES, RequestParameters, translate


def test_every_parameter_that_a_caller_may_set_has_its_row() -> None:
    assert set(NAMES) == set(RequestParameters.__struct_fields__)


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
