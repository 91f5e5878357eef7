"""Assembles a broker on a log store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from sparrow.broker.catalog.groups import GroupCatalog
from sparrow.broker.catalog.topics import TopicCatalog
from sparrow.broker.clients.registry import ClientRegistry
from sparrow.broker.consume.long_poll import LongPollTable
from sparrow.broker.context import Broker
from sparrow.broker.delay.log import LogDelayScheduler
from sparrow.broker.pop.revive import LogPopWorker, Reviver
from sparrow.broker.pop.state.log import LogPopState
from sparrow.broker.retention.archive_progress import ArchiveProgress
from sparrow.broker.transactions.log import LogTransactionCoordinator
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.store.log import LogStore

STAGES_FOLDER = "stages"
"""The folder for stages, in the store's directory."""


async def open_log_broker(
    path: Path,
    settings: BrokerSettings,
    log_settings: LogSettings,
    *,
    address: Address,
    long_polls: LongPollTable,
    now_ms: Callable[[], int],
) -> Broker:
    """Open the log store, load the broker's state from it, and start the background workers."""
    archived = ArchiveProgress(log_settings.retention_group)
    store = await asyncio.to_thread(
        LogStore,
        path,
        log_settings,
        store_host=address.as_host(),
        on_growth=long_polls.notify_growth,
        archived_to=archived,
        now_ms=now_ms,
    )
    archived.attach_store(store)
    topics, clients = TopicCatalog(store, settings, now_ms), ClientRegistry()
    groups = GroupCatalog(store, settings, now_ms)
    delay = LogDelayScheduler(
        store,
        horizon_ms=settings.delay_horizon_ms,
        roll_after_ms=int(store.settings.retention_hours * 3_600_000 / 2),
        now_ms=now_ms,
    )
    transactions = LogTransactionCoordinator(store, topics, clients, settings, now_ms=now_ms)
    pop_state = LogPopState(store, topics, cluster=settings.cluster, now_ms=now_ms)
    reviver = Reviver(pop_state, store, topics, groups, long_polls, now_ms=now_ms)
    broker = Broker(
        settings=settings,
        address=address,
        store=store,
        topics=topics,
        groups=groups,
        clients=clients,
        long_polls=long_polls,
        delay=delay,
        transactions=transactions,
        pop_state=pop_state,
        stages_folder=path / STAGES_FOLDER,
        workers=(delay, transactions, LogPopWorker(pop_state, reviver)),
        now_ms=now_ms,
    )
    await broker.start()
    return broker
