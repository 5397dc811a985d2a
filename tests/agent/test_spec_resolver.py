"""What a session is pinned to: by value, with bytes that depend on nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from support.scripted_model import ScriptedModel, ScriptedModels
from talaria.agent.settings import AgentSettings
from talaria.agent.spec_resolver import SpecResolver, render_prompt, replace_memory
from talaria.core.errors import NoModel, NotFound
from talaria.core.ids import ChatKey
from talaria.core.specs import PinnedSpec
from talaria.models.anthropic_messages import AnthropicMessages
from talaria.models.catalog import Catalog
from talaria.models.openai_chat import OpenAIChat
from talaria.models.openai_responses import OpenAIResponses
from talaria.models.settings import ModelSettings
from talaria.models.wire import Wire
from talaria.parts import builtin_tools
from talaria.tools.settings import ToolSettings


def resolver(
    *,
    model: str = "m",
    provider: str = "scripted",
    prompt: str = "",
    name: str = "main",
    reasoning: str = "none",
    families: tuple[str, ...] = ("files", "todo"),
    secrets: tuple[str, ...] = (),
    memory: Callable[[ChatKey], str] = lambda key: "",
    wire: Wire | None = None,
) -> SpecResolver:
    models = ScriptedModels(ScriptedModel(wire=wire) if wire is not None else None)
    models.secrets.extend(secrets)
    settings = ModelSettings(provider, model, reasoning)  # type: ignore[arg-type]
    catalog = Catalog(settings, {"fast": "scripted/fast"}, providers=("scripted", "other"), agents=(name,))
    tools = builtin_tools(ToolSettings(families))
    return SpecResolver(AgentSettings(name, prompt), catalog, models, lambda: tools, memory=memory)


def pinned(**changes: object) -> PinnedSpec:
    return resolver(**changes).resolve(ChatKey("agent:main:http:api:x"))  # type: ignore[arg-type]


def test_the_same_configuration_gives_the_same_spec_and_bytes() -> None:
    assert pinned() == pinned()
    assert pinned(families=("todo", "files")) == pinned()


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"provider": "other"},
        {"prompt": "Be brief."},
        {"name": "second"},
        {"families": ("files",)},
        {"secrets": ("sk-common-prefix-1",)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_the_prefix_gives_another_spec(change: dict[str, object]) -> None:
    assert pinned(**change).id != pinned().id


def test_two_keys_with_a_common_prefix_are_two_specs() -> None:
    one, two = pinned(secrets=("sk-common-prefix-1",)), pinned(secrets=("sk-common-prefix-2",))
    assert one.id != two.id
    assert one.prefix == two.prefix


def test_reasoning_is_no_part_of_it() -> None:
    assert pinned(reasoning="high") == pinned()


def test_a_wish_names_the_model_and_tools_may_be_fewer() -> None:
    specs = resolver()
    fast = specs.resolve(ChatKey("agent:main:http:api:x"), "fast", ("todo", "read_file", "unknown"))
    assert (fast.spec.provider, fast.spec.model) == ("scripted", "fast")
    assert fast.spec.tools == ("read_file", "todo")
    assert b"write_file" not in fast.prefix.tools
    assert specs.differs(fast, "scripted/m")
    assert not specs.differs(fast, "fast")
    with pytest.raises(NotFound):
        specs.resolve(ChatKey("agent:main:http:api:x"), "nonsense")
    with pytest.raises(NoModel):
        resolver(provider="", model="").resolve(ChatKey("agent:main:http:api:x"))


def test_a_stateless_call_has_the_callers_tools_and_no_prompt() -> None:
    specs = resolver()
    with_tools = specs.resolve_stateless(None, b'[{"type":"function"}]')
    assert (with_tools.prefix.system, with_tools.prefix.tools) == (b"", b'[{"type":"function"}]')
    assert with_tools.id != specs.resolve_stateless(None, b"").id


def test_the_prompt_has_nothing_that_changes_by_itself() -> None:
    text = render_prompt("main", "  Be kind.  ", ("read_file",))
    assert text == render_prompt("main", "Be kind.", ("read_file",))
    assert text.endswith("Be kind.")
    assert not re.search(r"\d", text), "no date, no time, no count"
    assert "tools" not in render_prompt("main", "", ())


@pytest.mark.parametrize(
    "wire", [OpenAIChat(), OpenAIResponses(), AnthropicMessages()], ids=lambda wire: wire.name
)
def test_memory_is_replaced_in_a_spec_and_all_else_stays(wire: Wire) -> None:
    """At a compaction, in every wire format: the same as if the session had begun with this memory."""
    memory = ["first"]
    key = ChatKey("agent:main:http:api:x")
    specs = resolver(wire=wire, memory=lambda key: memory[0])
    before = specs.resolve(key)
    assert before.spec.remembered == "first"
    assert specs.refresh_memory(key, before) is before
    for text in ("second, which is longer", "", "third"):
        memory[0] = text
        fresh = specs.resolve(key)
        assert specs.refresh_memory(key, before) == fresh
        assert fresh.spec.remembered == text and fresh.prefix.tools == before.prefix.tools
        before = fresh


def test_skills_stand_before_memory_and_a_built_in_model_is_told_of_neither() -> None:
    told = render_prompt("main", "", ("skill",), "- A fact.", "# Skills\n\n- pdf: Reads.")
    assert told.index("- pdf: Reads.") < told.index("- A fact.")
    without = render_prompt("main", "", ("skill",), "", "# Skills\n\n- pdf: Reads.")
    assert replace_memory(told, "- A fact.", "") == without
    assert replace_memory(without, "", "- A fact.") == told
    plain = render_prompt("main", "", ("skill",), "- A fact.", "# Skills", is_plain=True)
    assert "Skills" not in plain and "fact" not in plain
