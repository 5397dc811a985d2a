"""Providers from configuration, presets and environment."""

from __future__ import annotations

import json

import pytest

from talaria.core.errors import NoModel
from talaria.core.messages import Text, UserMessage
from talaria.core.specs import ModelCall, fingerprint_secrets
from talaria.models.providers import Providers
from talaria.models.settings import PRESETS, ProviderSettings
from talaria.testing.model_server import ModelServer


async def test_an_endpoint_is_built_once_per_process() -> None:
    async with Providers({"a": ProviderSettings("http://127.0.0.1:1/v1")}, {}) as providers:
        assert providers.built == 0
        assert providers.get("a") is providers.get("a")
        assert providers.get("scripted") is not providers.get("a")
        assert providers.built == 2
        assert set(providers.readings()) == {"a", "scripted"}


async def test_a_provider_answers() -> None:
    async with ModelServer() as server, Providers({"a": ProviderSettings(server.base_url)}, {}) as providers:
        model = providers.get("a")
        assert model.wire is providers.wire("a")
        assert model.wire.name == "openai-chat"
        chunks = [model.wire.encode(UserMessage((Text("hi"),)))]
        call = ModelCall("m", model.wire.render_prefix("", []), chunks)
        completion = await model.complete(call, lambda delta: None)
        assert completion.message.text == "You said: hi"
        assert json.loads(server.bodies[0])["model"] == "m"


@pytest.mark.parametrize(
    ("name", "given", "api"),
    [
        ("openai", None, "openai-chat"),
        ("anthropic", None, "anthropic-messages"),
        ("anthropic", ProviderSettings(api_key="k"), "anthropic-messages"),
        ("anthropic", ProviderSettings("http://proxy/v1"), "anthropic-messages"),
        ("anthropic", ProviderSettings("http://proxy/v1", "openai-chat"), "openai-chat"),
        ("acme", ProviderSettings("http://x/v1"), "openai-chat"),
        ("acme", ProviderSettings("http://x/v1", "anthropic-messages"), "anthropic-messages"),
    ],
)
def test_a_provider_speaks_what_it_was_told_or_what_its_name_says(
    name: str, given: ProviderSettings | None, api: str
) -> None:
    environ = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    providers = Providers({name: given} if given else {}, environ)
    assert providers.wire(name).name == providers.get(name).wire.name == api


def test_an_unknown_provider_is_met_with_the_nearest_name() -> None:
    providers = Providers({}, {})
    for ask in (providers.get, providers.credential, providers.wire):
        with pytest.raises(NoModel, match=r"no provider named opnrouter\. Did you mean openrouter\?"):
            ask("opnrouter")


def test_a_missing_key_is_named() -> None:
    providers = Providers({"acme": ProviderSettings("https://acme/v1", api_key_env="ACME_KEY")}, {})
    with pytest.raises(NoModel, match="ACME_KEY is not set"):
        providers.get("acme")
    with pytest.raises(NoModel, match="OPENAI_API_KEY is not set"):
        providers.get("openai")
    assert providers.built == 0


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000/v1", "ftp://x/v1", "http://"])
def test_an_unusable_address_is_named(url: str) -> None:
    with pytest.raises(NoModel, match="acme has no usable address"):
        Providers({"acme": ProviderSettings(url)}, {}).get("acme")


def test_local_presets_need_no_key() -> None:
    providers = Providers({}, {})
    assert providers.get("ollama") is not None
    assert providers.get("scripted") is not None


def test_a_presets_key_goes_to_no_other_address() -> None:
    """`[providers.openai] base_url = …` alone must not send OPENAI_API_KEY there."""
    environ = {"OPENAI_API_KEY": "sk-openai-123456", "MINE": "sk-mine-123456"}
    moved = Providers({"openai": ProviderSettings("http://127.0.0.1:1/v1")}, environ)
    assert moved.credential("openai") == fingerprint_secrets([])
    named = Providers({"openai": ProviderSettings(api_key_env="MINE")}, environ)
    assert named.credential("openai") == fingerprint_secrets(["sk-mine-123456"])
    plain = Providers({"openai": ProviderSettings()}, environ)
    assert plain.credential("openai") == fingerprint_secrets(["sk-openai-123456"])


def test_the_credential_changes_with_the_key_and_not_with_its_source() -> None:
    by_value = Providers({"a": ProviderSettings("http://x/v1", api_key="sk-one-123456")}, {})
    by_name = Providers({"a": ProviderSettings("http://x/v1", api_key_env="K")}, {"K": "sk-one-123456"})
    other = Providers({"a": ProviderSettings("http://x/v1", api_key_env="K")}, {"K": "sk-two-123456"})
    assert by_value.credential("a") == by_name.credential("a") != other.credential("a")


def test_keys_do_not_show() -> None:
    providers = Providers({"a": ProviderSettings("http://x/v1", api_key="sk-a-123456")}, {})
    endpoint = providers.get("a")
    assert "sk-a-123456" not in repr(endpoint) + repr(vars(endpoint))


def test_configured_names_come_first() -> None:
    assert Providers({"z": ProviderSettings("http://x/v1")}, {}).known == ("z", *PRESETS)
