"""The driver's commit of an exactly-once write: publish the staged rows of all tasks, with one commit for each broker.

On one broker a batch is published completely and once. With several brokers, each publishes its share completely and
once; if the driver fails in between, Spark writes the batch again and the remaining brokers accept it. This requires
that the rows go to the same brokers again. Therefore the set of brokers is recorded in the ledger of every broker that
rows may go to, in three steps: *begun* (with the set of brokers), the commits, *done*.

    scope               number                          recorded
    <scope>             batch                           with the rows of the batch, by their commit
    <scope>#begun       batch * 2^32 + hash of brokers  before the first commit, if there are several brokers
    <scope>#done        batch                           after the last commit, if there are several brokers

A batch that is done is discarded. A batch that was begun with other brokers and is not done is refused: some rows would
be published twice, or never.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce import staging
from sparrow.model.errors import Refused, SparrowError
from sparrow.spark.sink.brokers import SinkBrokers
from sparrow.spark.sink.commit_messages import StagedRows, TaskCommit, WriteId

log = logging.getLogger(__name__)

BrokerTopics: TypeAlias = dict[str, str]
"""Each broker that rows may go to, with a topic whose route contains it."""
StagesOfBrokers: TypeAlias = dict[str, list[StagedRows]]

_BEGUN, _DONE = "#begun", "#done"
_HASH_BITS = 32
_HASH_MASK = (1 << _HASH_BITS) - 1


class LedgerState(NamedTuple):
    """The entries of a scope in one broker's ledger; None if there is none."""

    committed: int | None
    begun: int | None
    done: int | None


def is_published(states: Iterable[LedgerState], number: int, brokers_hash: int) -> bool:
    """Return whether the batch is already published everywhere. `brokers_hash` is the hash of the current brokers.

    Raise `Refused` if it is published in part, on another set of brokers.
    """
    states = list(states)
    if any(each.done is not None and each.done >= number for each in states):
        return True
    for each in states:
        is_committed = each.committed is not None and each.committed >= number
        begun_with = each.begun & _HASH_MASK if each.begun is not None and each.begun >> _HASH_BITS == number else None
        if begun_with is None and is_committed:
            return True  # without a #begun entry the batch had one broker only
        if begun_with is not None and begun_with != brokers_hash:
            raise Refused(
                f"batch {number} was begun on other brokers than its topics have now, and some rows may be "
                "published on them. Bring those brokers back, then restart the query"
            )
    return False


def broker_set_hash(brokers: Iterable[str]) -> int:
    """Return a hash of a set of brokers."""
    return zlib.crc32("\n".join(sorted(brokers)).encode())


async def publish_stages(session: ClientSession, brokers: SinkBrokers, commits: Sequence[TaskCommit]) -> bool:
    """Publish the staged rows. Return False, and discard the stages, if the batch was published before."""
    stages: dict[str, list[StagedRows]] = {}
    for commit in sorted(commits, key=lambda each: each.partition):
        for staged in commit.stages:
            stages.setdefault(staged.broker, []).append(staged)
    if not stages:
        return True
    (write_id,) = {commit.write_id for commit in commits if commit.stages}
    broker_topics = {broker: topic for commit in commits for broker, topic in commit.routes}
    if len(broker_topics) == 1:
        return await _publish_on_one(session, brokers, write_id, broker_topics, stages)
    return await _publish_on_several(session, brokers, write_id, broker_topics, stages)


async def _publish_on_one(
    session: ClientSession,
    brokers: SinkBrokers,
    write_id: WriteId,
    broker_topics: BrokerTopics,
    stages: StagesOfBrokers,
) -> bool:
    ((broker, topic),) = broker_topics.items()
    tries = 0

    async def commit(address: str) -> bool:
        nonlocal tries
        tries += 1
        return await staging.commit_stages(session, address, *write_id, [each.stage for each in stages[broker]])

    if await brokers.call(broker, topic, commit):
        return True
    states = await _read_ledger(session, brokers, write_id.scope, broker, topic)
    is_published([states], write_id.number, broker_set_hash(broker_topics))
    # After a lost response, the ledger entry may be from our own commit.
    return tries > 1


async def _publish_on_several(
    session: ClientSession,
    brokers: SinkBrokers,
    write_id: WriteId,
    broker_topics: BrokerTopics,
    stages: StagesOfBrokers,
) -> bool:
    scope, number = write_id
    brokers_hash = broker_set_hash(broker_topics)
    states = await asyncio.gather(*(_read_ledger(session, brokers, scope, *found) for found in broker_topics.items()))
    if is_published(states, number, brokers_hash):
        await discard_stages(session, brokers, [each for some in stages.values() for each in some])
        return False

    async def note(name: str, what: int) -> None:
        await _all(
            brokers.call(broker, topic, lambda address: staging.commit_stages(session, address, name, what, []))
            for broker, topic in broker_topics.items()
        )

    async def commit(broker: str, some: list[StagedRows]) -> bool:
        names = [each.stage for each in some]
        return await brokers.call(
            broker, broker_topics[broker], lambda address: staging.commit_stages(session, address, scope, number, names)
        )

    await note(scope + _BEGUN, number << _HASH_BITS | brokers_hash)
    await _all(commit(broker, some) for broker, some in stages.items())
    await note(scope + _DONE, number)
    return True


async def _read_ledger(
    session: ClientSession, brokers: SinkBrokers, scope: str, broker: str, topic: str
) -> LedgerState:
    async def ask(address: str) -> LedgerState:
        return LedgerState(
            *[await staging.query_ledger(session, address, scope + suffix) for suffix in ("", _BEGUN, _DONE)]
        )

    return await brokers.call(broker, topic, ask)


async def _all(calls: Iterable[Awaitable[object]]) -> None:
    """Await all of them, then raise the first error: no commit is cancelled half-way."""
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def discard_stages(session: ClientSession, brokers: SinkBrokers, stages: Iterable[StagedRows]) -> None:
    """Discard stages. If this fails, the broker removes them when they expire."""
    by_broker: dict[str, list[StagedRows]] = {}
    for each in stages:
        by_broker.setdefault(each.broker, []).append(each)
    for broker, staged_rows in by_broker.items():
        names = [each.stage for each in staged_rows]
        try:
            route = await brokers.existing_route(staged_rows[0].topic)
            if broker in route.masters:
                await staging.drop_stages(session, route.masters[broker], names)
        except SparrowError as error:
            log.info(
                "%(count)d stages are not dropped on broker %(broker)s: %(error)s; the broker removes them when they "
                "expire",
                {"count": len(names), "broker": broker, "error": error},
            )
