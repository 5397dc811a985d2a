"""The contracts of the store and of its parts, over each `store` that there is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from contracts.job_suite import JobSuite
from contracts.oauth_suite import OAuthSuite
from contracts.pairing_suite import PairingSuite
from contracts.run_suite import RunSuite
from contracts.spend_suite import SpendSuite
from contracts.store_cluster_suite import StoreClusterSuite
from contracts.store_compaction_suite import StoreCompactionSuite
from contracts.store_delegates_suite import StoreDelegatesSuite
from contracts.store_deletion_suite import StoreDeletionSuite
from contracts.store_delivery_suite import StoreDeliverySuite
from contracts.store_import_suite import StoreImportSuite
from contracts.store_places_suite import StorePlacesSuite
from contracts.store_questions_suite import StoreQuestionsSuite
from contracts.store_recall_suite import StoreRecallSuite
from contracts.store_responses_suite import StoreResponsesSuite
from contracts.store_retention_suite import StoreRetentionSuite
from contracts.store_sending_suite import StoreSendingSuite
from contracts.store_suite import StoreSuite
from contracts.store_taint_suite import StoreTaintSuite
from contracts.token_suite import TokenSuite
from talaria.store.in_memory import MemoryStore
from talaria.store.sqlite.store import SqliteStore
from talaria.store.store import OAuthGrants, Pairings, Tokens
from talaria.testing.clock import FakeClock


class TestStoreContract(
    StoreSuite, StoreDeliverySuite, StoreImportSuite, StoreSendingSuite, StoreQuestionsSuite, StoreTaintSuite
):
    pass


class TestClusterContract(StoreClusterSuite, StorePlacesSuite):
    pass


class TestRetentionContract(StoreRetentionSuite, StoreResponsesSuite):
    pass


class TestCompactionContract(StoreCompactionSuite):
    pass


class TestDeletionContract(StoreDeletionSuite, StoreRecallSuite):
    pass


class TestMemoryContract(
    StoreRetentionSuite, StoreDeletionSuite, StoreRecallSuite, StoreResponsesSuite, StoreClusterSuite
):
    """The short form: leases, commits, replies, forgetting, clusters. The soak runs all suites on it."""

    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[MemoryStore]:
        store = MemoryStore(clock)
        yield store
        await store.close()


class TestDelegatesContract(StoreDelegatesSuite):
    """Turns and the delegates that they wait for, or that work in the background."""


class TestJobContract(JobSuite, RunSuite):
    pass


class TestSpendContract(SpendSuite):
    pass


class TestPairingContract(PairingSuite):
    @pytest.fixture
    def pairings(self, store: MemoryStore | SqliteStore) -> Pairings:
        return store.pairings


class TestOAuthContract(OAuthSuite):
    @pytest.fixture
    def grants(self, store: MemoryStore | SqliteStore) -> OAuthGrants:
        return store.oauth


class TestTokenContract(TokenSuite):
    @pytest.fixture
    def tokens(self, store: MemoryStore | SqliteStore) -> Tokens:
        return store.tokens
