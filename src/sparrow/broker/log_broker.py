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
from sparrow.broker.metrics.event_counters import EventCounters
from sparrow.broker.pop.revive import LogPopWorker, Reviver
from sparrow.broker.pop.state.log import LogPopState
from sparrow.broker.retention.archive_progress import ArchiveProgress
from sparrow.broker.transactions.log import LogTransactionCoordinator
from sparrow.net.address import Address
from sparrow.settings import BrokerSettings, LogSettings
from sparrow.store.log import LogStore

STAGES_FOLDER = "stages"
"""The folder for stages, in the store's directory."""
LEADER_TERM_MARK = "leader.term"
"""The term under which a broker registers that has taken the place of another one, whose term is lower."""


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
    store = await open_log_store(path, log_settings, address=address, long_polls=long_polls, now_ms=now_ms)
    try:
        return await start_log_broker(store, settings, address=address, long_polls=long_polls, now_ms=now_ms)
    except BaseException:
        await store.close()
        raise


async def open_log_store(
    path: Path,
    log_settings: LogSettings,
    *,
    address: Address,
    long_polls: LongPollTable,
    now_ms: Callable[[], int],
    follows: bool = False,
) -> LogStore:
    """Open the log store of a broker. `follows`: as a follower of a replica set."""
    archived = ArchiveProgress(log_settings.retention_group)
    store = await asyncio.to_thread(
        LogStore,
        path,
        log_settings,
        store_host=address.as_host(),
        on_growth=long_polls.notify_growth,
        archived_to=archived,
        now_ms=now_ms,
        follows=follows,
    )
    archived.attach_store(store)
    return store


async def start_log_broker(
    store: LogStore,
    settings: BrokerSettings,
    *,
    address: Address,
    long_polls: LongPollTable,
    now_ms: Callable[[], int],
    clients: ClientRegistry | None = None,
) -> Broker:
    """Load the broker's state from an open log store, and start the background workers.

    `clients`: those that are known already, because the broker was a follower.
    """
    broker = build_log_broker(store, settings, address=address, long_polls=long_polls, now_ms=now_ms, clients=clients)
    await broker.start()
    term = await store.marks.get(LEADER_TERM_MARK)
    if term is not None:
        await broker.topics.set_leader_term(term)
    return broker


async def build_follower_broker(
    store: LogStore,
    settings: BrokerSettings,
    *,
    broker_id: int,
    address: Address,
    long_polls: LongPollTable,
    now_ms: Callable[[], int],
    clients: ClientRegistry,
) -> Broker:
    """Return a broker that only serves reads. It has no background workers; refresh its catalog now and then."""
    broker = build_log_broker(store, settings, address=address, long_polls=long_polls, now_ms=now_ms, clients=clients)
    broker.broker_id, broker.is_follower, broker.workers = broker_id, True, ()
    await refresh_catalog(broker)
    return broker


async def refresh_catalog(broker: Broker) -> None:
    """Take over the topics and groups that a follower's store has received."""
    broker.topics.replace_all(await broker.store.catalog.list_topics())
    broker.groups.replace_all(await broker.store.catalog.list_groups())


def build_log_broker(
    store: LogStore,
    settings: BrokerSettings,
    *,
    address: Address,
    long_polls: LongPollTable,
    now_ms: Callable[[], int],
    clients: ClientRegistry | None = None,
) -> Broker:
    """Return a broker on an open log store, before it is started."""
    topics, clients = TopicCatalog(store, settings, now_ms), clients or ClientRegistry()
    groups, events = GroupCatalog(store, settings, now_ms), EventCounters()
    delay = LogDelayScheduler(
        store,
        horizon_ms=settings.delay_horizon_ms,
        roll_after_ms=int(store.settings.retention_hours * 3_600_000 / 2),
        now_ms=now_ms,
    )
    transactions = LogTransactionCoordinator(store, topics, clients, settings, now_ms=now_ms, events=events)
    pop_state = LogPopState(store, topics, cluster=settings.cluster, now_ms=now_ms)
    reviver = Reviver(pop_state, store, topics, groups, long_polls, now_ms=now_ms, events=events)
    return Broker(
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
        stages_folder=store.path / STAGES_FOLDER,
        events=events,
        workers=(delay, transactions, LogPopWorker(pop_state, reviver)),
        now_ms=now_ms,
    )
