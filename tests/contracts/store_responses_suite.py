"""The part of the store's contract that keeps responses: chains, branches, and their end."""

from __future__ import annotations

import msgspec
import pytest

from contracts.store_orders import LEASE, ME, START, accepting, pinned, said
from talaria.core.entries import SpecSet
from talaria.core.errors import HeadMoved, NotFound
from talaria.core.ids import ChatKey
from talaria.core.ledger import (
    Accepted,
    Begin,
    Binding,
    ChainPlace,
    Commit,
    NewResponse,
    StoredResponse,
    TurnEnd,
)
from talaria.core.messages import AssistantMessage
from talaria.core.specs import PinnedSpec
from talaria.core.turns import TurnState
from talaria.store.store import Store

LATER = START + 1000.0
CHAIN = ChatKey("agent:main:http:ephemeral:x")


async def put(
    store: Store,
    text: str,
    behind: ChainPlace | None = None,
    *,
    binding: Binding = Binding.NEW,
    spec: PinnedSpec | None = None,
    is_stored: bool = True,
) -> Accepted:
    """Accept a response with this input."""
    order = accepting(
        "", chat=CHAIN, spec=spec or pinned(), context=(said(text),), ephemeral=True, binding=binding
    )
    response = NewResponse("{}", behind.turn_id if behind else None) if is_stored else None
    return await store.accept(msgspec.structs.replace(order, behind=behind, response=response))


async def answer(store: Store, accepted: Accepted, text: str) -> StoredResponse:
    began = await store.begin(Begin(accepted.turn.id, ME, LEASE))
    end = TurnEnd(TurnState.DONE, reply=text)
    order = Commit(began.session.id, began.fence, accepted.turn.id, (AssistantMessage(text),), end=end)
    await store.commit(order)
    found = await store.responses.find(accepted.turn.id)
    assert found is not None
    return found


async def texts(store: Store, stored: StoredResponse) -> list[str]:
    log = await store.log(stored.turn.session_id, 0)
    return [entry.message.text for entry in log if hasattr(entry.message, "text")]  # type: ignore[union-attr]


class StoreResponsesSuite:
    async def test_a_response_has_its_input_and_its_output(self, store: Store) -> None:
        accepted = await put(store, "one")
        found = await store.responses.find(accepted.turn.id)
        assert found is not None
        assert (found.answer, found.place.is_head) == (None, True)
        assert [entry.body for entry in await store.responses.input_entries(found)] == [said("one")]
        found = await answer(store, accepted, "ONE")
        assert found.answer == AssistantMessage("ONE")
        assert (found.place.is_head, found.place.seq) == (True, found.head)

    async def test_the_head_is_appended_to_once(self, store: Store) -> None:
        one = await answer(store, await put(store, "one"), "ONE")
        accepted = await put(store, "two", one.place, binding=Binding.CHAIN)
        assert accepted.turn.session_id == one.turn.session_id
        with pytest.raises(HeadMoved):
            await put(store, "late", one.place, binding=Binding.CHAIN)
        two = await answer(store, accepted, "TWO")
        assert two.previous == one.turn.id
        assert await texts(store, two) == ["one", "ONE", "two", "TWO"]
        assert [entry.body for entry in await store.responses.input_entries(two)] == [said("two")]
        again = await store.responses.find(one.turn.id)
        assert again is not None
        assert (again.answer, again.place.is_head) == (AssistantMessage("ONE"), False)

    async def test_another_spec_is_pinned_where_the_chain_goes_on(self, store: Store) -> None:
        one = await answer(store, await put(store, "one"), "ONE")
        same = await answer(store, await put(store, "two", one.place, binding=Binding.CHAIN), "TWO")
        other = pinned("other")
        await put(store, "three", same.place, binding=Binding.CHAIN, spec=other)
        log = await store.log(one.turn.session_id, 0)
        specs = [entry.body.spec_id for entry in log if isinstance(entry.body, SpecSet)]
        assert specs == [pinned().id, other.id]
        session = await store.session(one.turn.session_id)
        assert session is not None
        assert session.spec_id == other.id

    async def test_a_branch_begins_with_a_copy_and_changes_nothing(self, store: Store) -> None:
        one = await answer(store, await put(store, "one"), "ONE")
        two = await answer(store, await put(store, "two", one.place, binding=Binding.CHAIN), "TWO")
        fork = await answer(store, await put(store, "fork", one.place), "FORK")
        assert fork.turn.session_id != one.turn.session_id
        assert await texts(store, fork) == ["one", "ONE", "fork", "FORK"]
        assert await texts(store, two) == ["one", "ONE", "two", "TWO"]
        assert await store.responses.delete(one.turn.id)
        assert await store.responses.delete(two.turn.id)
        assert await store.session(one.turn.session_id) is None
        assert await texts(store, fork) == ["one", "ONE", "fork", "FORK"]

    async def test_a_chain_goes_with_its_last_response_and_not_by_its_age(self, store: Store) -> None:
        one = await answer(store, await put(store, "one"), "ONE")
        two = await answer(store, await put(store, "two", one.place, binding=Binding.CHAIN), "TWO")
        aside = await put(store, "aside", two.place, is_stored=False)
        await store.settle(aside.turn.id, TurnEnd(TurnState.CANCELLED))
        assert await store.prune_ephemeral(LATER) == 1  # the one that is not stored
        assert await store.responses.delete(one.turn.id)
        assert not await store.responses.delete(one.turn.id)
        assert await store.responses.find(one.turn.id) is None
        assert await texts(store, two) == ["one", "ONE", "two", "TWO"]
        assert await store.responses.prune(START) == 0
        assert await store.responses.prune(LATER) == 1
        assert await store.session(two.turn.session_id) is None
        assert await store.turn_record(two.turn.id) is None

    async def test_a_chain_whose_turn_is_unsettled_outlives_its_response(self, store: Store) -> None:
        accepted = await put(store, "one")
        assert await store.responses.prune(LATER) == 1
        assert await store.responses.find(accepted.turn.id) is None
        await store.settle(accepted.turn.id, TurnEnd(TurnState.CANCELLED))
        assert await store.prune_ephemeral(LATER) == 1

    async def test_a_deleted_chain_is_not_branched_from(self, store: Store) -> None:
        one = await answer(store, await put(store, "one"), "ONE")
        await store.delete_session(one.turn.session_id, START)
        for binding, error in ((Binding.CHAIN, HeadMoved), (Binding.NEW, NotFound)):
            with pytest.raises(error):
                await put(store, "late", one.place, binding=binding)
