"""Operations that choose the model: what can be used here, and one call that tries a choice before it is
written to config.toml."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from talaria.config.model_choice import (
    Candidate,
    detected_candidate,
    is_like_address,
    list_models,
    read_address,
    try_model,
    write,
)
from talaria.core.errors import BadRequest, ConfigError, ModelError, NoModel
from talaria.core.redaction import Secret
from talaria.core.text import did_you_mean
from talaria.gateway import Gateway
from talaria.models.catalog import ModelChoice
from talaria.models.discovery import detect_providers
from talaria.models.known import Prices
from talaria.models.settings import PRESETS, SCRIPTED
from talaria.operations.operation import OPERATE, Nothing, OperationCall, operation

_TRY_SECONDS: Final = 20.0  # the page waits for 30
_KNOWN: Final = tuple(name for name in PRESETS if name != SCRIPTED)


class ModelOffer(msgspec.Struct, frozen=True):
    """A provider whose key or server was found on the gateway's machine. `where` says where."""

    provider: str
    where: str
    base_url: str
    models: tuple[str, ...]


class ModelOffers(msgspec.Struct, frozen=True):
    """`known` are providers that need a key only."""

    found: tuple[ModelOffer, ...]
    known: tuple[str, ...]


@operation("models.offers", "GET /api/models/offers", OPERATE)
async def list_offers(gateway: Gateway, call: OperationCall, wanted: Nothing) -> ModelOffers:
    """List the providers that can be used: keys in the environment, and model servers on this machine."""
    found = [detected_candidate(each) for each in await detect_providers(gateway.environ)]
    offers = (ModelOffer(each.provider, each.where, each.base_url, each.models) for each in found)
    return ModelOffers(tuple(offers), _KNOWN)


class ChoiceBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    provider: Annotated[str, Meta(max_length=200, description="Known provider, or an address up to /v1.")]
    key: Annotated[str, Meta(max_length=1000, description="Its key; default: that of the environment.")] = ""
    model: Annotated[str, Meta(max_length=200, description="Model; without it, the models are listed.")] = ""


class ChosenModel(msgspec.Struct, frozen=True):
    """`models` are those of the provider, if none was named. Else `text` says how the model has answered, and
    `written` are the keys of config.toml that have changed."""

    models: tuple[str, ...] = ()
    text: str = ""
    written: tuple[str, ...] = ()


@operation(
    "models.choose",
    "POST /api/models/choose",
    OPERATE,
    audit="model.choose",
    errors=("bad_request",),
    is_secret=True,
    answer_seconds=None,
)
async def choose_model(gateway: Gateway, call: OperationCall, wanted: ChoiceBody) -> ChosenModel:
    """Try a model with one small call, and write it to config.toml. New chats use it within seconds."""
    candidate = _candidate(gateway, wanted)
    if key := wanted.key.strip():
        gateway.hide(Secret("the key of a provider", key))
    call.about = f"{candidate.provider}/{wanted.model}"
    try:
        async with asyncio.timeout(_TRY_SECONDS):
            candidate, listed = await list_models(candidate, gateway.environ)
            if not wanted.model:
                return ChosenModel(tuple(listed))
            async with candidate.providers(gateway.environ) as providers:
                prices = Prices(gateway.current().prices)
                text = await try_model(providers, ModelChoice(candidate.provider, wanted.model), prices)
    except TimeoutError:
        text = f"{candidate.provider} did not answer within {_TRY_SECONDS:g} seconds."
        raise BadRequest(text, "Check its server and the network, and try again.") from None
    except (ModelError, NoModel) as error:  # a status of 500 or more would be tried again, and cost again
        raise BadRequest(error.user_text, "Check the address, the key and the model's name.") from error
    home, name = gateway.home, wanted.model
    try:
        written = await asyncio.to_thread(write, home, candidate, name, gateway.environ, gateway.parts)
    except ConfigError as error:
        raise BadRequest(f"{text} It was not written: {error.user_text}", error.hint) from error
    return ChosenModel(text=text, written=tuple(written))


def _candidate(gateway: Gateway, wanted: ChoiceBody) -> Candidate:
    settings, provider = gateway.current(), wanted.provider.strip()
    if is_like_address(provider) and provider not in settings.providers:
        if not (address := read_address(provider)):
            raise BadRequest(f"{provider!r} is not an address.", "Write it as https://host/v1.")
        candidate = Candidate.at(address)
        known = settings.providers.get(candidate.provider)
        if known is not None:
            candidate = Candidate.given(candidate.provider, None, None, settings)
            usual = PRESETS.get(candidate.provider, known).address.whole
        if known is not None and address != (known.address.whole or usual):  # it would get the other's key
            text = f"config.toml has a provider {candidate.provider!r} with another address."
            raise BadRequest(text, "Change it there, or name the provider instead of the address.")
    else:
        candidate = Candidate.given(provider, None, None, settings)
    if candidate.is_named_only or candidate.is_built_in or candidate.provider == SCRIPTED:
        hint = did_you_mean(provider, _KNOWN, f"Known are: {', '.join(_KNOWN)}. Or give an address.")
        raise BadRequest(f"There is no provider named {provider!r}.", hint)
    if key := wanted.key.strip():
        candidate = msgspec.structs.replace(candidate, key=key, key_env="", is_kept=True)
    return candidate


CHOICE_OPERATIONS: Final = (list_offers, choose_model)
