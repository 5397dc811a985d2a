"""Resolving a spec: what a new session (or an explicit change) is pinned to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from talaria.agent.prompt import render_prompt
from talaria.agent.settings import AgentSettings
from talaria.core.ports import Models
from talaria.core.specs import AgentSpec, PinnedSpec, Prefix, pin
from talaria.models.catalog import Catalog
from talaria.models.known import Abilities
from talaria.tools.toolset import ToolSet

_KEPT = 32


class SpecResolver:
    """Turns configuration into pinned specs, with what is known of the model at that moment. Results are
    kept until the configuration changes."""

    def __init__(
        self, settings: AgentSettings, catalog: Catalog, models: Models, tools: Callable[[], ToolSet]
    ) -> None:
        """`tools` returns the tools that a new session gets, as of now."""
        self._settings = settings
        self._catalog = catalog
        self._models = models
        self._tools = tools
        self._known: dict[tuple[str, str, str, bool], PinnedSpec] = {}

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Of all tools that a session may be given."""
        return self._tools().names

    def change(self, settings: AgentSettings) -> None:
        """What is resolved from now on, also after a change of providers or models. Sessions keep theirs."""
        self._settings = settings
        self._known.clear()

    def resolve(self, wish: str | None = None, only: tuple[str, ...] | None = None) -> PinnedSpec:
        """The spec for a new session, with all tools or with those named `only`.

        Raises `NoModel`, or `NotFound` for a wish nobody knows.
        """
        choice = self._catalog.resolve(wish)
        known_of = self._catalog.abilities(choice.provider, choice.model)
        tools = self._tools() if only is None else self._tools().only(only)
        if known_of.tools is False:
            tools = tools.only(())
        # What a session is told stays in its log: an image that its model refuses would be refused for ever.
        sees = known_of.images is True
        key = (choice.provider, choice.model, tools.fingerprint, sees)
        known = self._known.get(key)
        if known is not None:
            return known
        wire = self._models.wire(choice.provider)
        prompt = render_prompt(self._settings.name, self._settings.prompt, tools.names)
        spec = AgentSpec(
            agent=self._settings.name,
            provider=choice.provider,
            model=choice.model,
            api=wire.name,
            prompt=prompt,
            tools=tools.names,
            tools_fingerprint=tools.fingerprint,
            credential=self._models.credential(choice.provider),
            sees=sees,
        )
        pinned = pin(spec, wire.render_prefix(prompt, tools.specs))
        if len(self._known) >= _KEPT:
            self._known.clear()
        self._known[key] = pinned
        return pinned

    def resolve_stateless(self, wish: str | None, tools: bytes) -> PinnedSpec:
        """The spec of a call that brings its whole context: no prompt of ours, the caller's tools only."""
        choice = self._catalog.resolve(wish)
        wire = self._models.wire(choice.provider)
        spec = AgentSpec(
            agent=self._settings.name,
            provider=choice.provider,
            model=choice.model,
            api=wire.name,
            prompt="",
            tools=(),
            tools_fingerprint=hashlib.sha256(tools).hexdigest() if tools else "",
            credential=self._models.credential(choice.provider),
            # Whoever brings images to a model that nobody knows wants them sent.
            sees=self._catalog.abilities(choice.provider, choice.model).images is not False,
        )
        return pin(spec, Prefix(system=b"", tools=tools))

    def names(self) -> list[str]:
        """What may be wished for."""
        return self._catalog.names()

    def listed(self) -> list[str]:
        """What endpoints have listed beside these."""
        return self._catalog.listed()

    def abilities(self, provider: str, model: str) -> Abilities:
        return self._catalog.abilities(provider, model)

    def differs(self, pinned: PinnedSpec, wish: str) -> bool:
        """Whether `wish` names another model than the session is pinned to."""
        choice = self._catalog.resolve(wish)
        return (choice.provider, choice.model) != (pinned.spec.provider, pinned.spec.model)
