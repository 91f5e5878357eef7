"""Handlers of two-phase writes: records are staged and then committed together, or appended in one request.

A client numbers its commits within a scope, such as a query and its batches. The store's ledger keeps the last number
of each scope, and is updated atomically with the append. So a commit can be repeated.

1. Staged records are validated when they arrive; a commit only fails if a topic was deleted or made read-only.
2. Records go to the queues they name. None is delayed, retried or part of a transaction.
3. The ledger is checked first: a stage that no longer exists is no error if its number is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from sparrow.broker.context import Broker
from sparrow.broker.produce.encoded_records import IncomingRecords, check_destinations, validate_records
from sparrow.broker.produce.stage_file import StageChunk
from sparrow.model.errors import NotPermitted, ProtocolError, Refused
from sparrow.net.dispatcher import RequestContext, RequestHandler
from sparrow.wire import queue_batches
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    AppendOnce,
    CommitStages,
    CommitStagesResponse,
    EmptyHeader,
    QueryLedger,
    QueryLedgerResponse,
    SealStage,
    SealStageResponse,
    StageRecords,
)
from sparrow.wire.queue_batches import QueueBatch
from sparrow.wire.record import pack_host

STAGES_PER_COMMIT_MAX = 10_000
"""In one commit; each stage is a mapped file."""
_IPV4_BYTES = 8


async def stage_records(request: StageRecords, broker: Broker, call: RequestContext) -> EmptyHeader:
    """Append a chunk to a stage."""
    if request.seq < 0:
        raise Refused(f"{request.seq} is not a chunk number: they start at 0")
    incoming = await _incoming_records(broker, call, fills_checksum=request.fills_checksum)
    await broker.stages.add(request.stage, request.seq, len(call.command.body), partial(_chunk, incoming))
    return EmptyHeader()


async def seal_stage(request: SealStage, broker: Broker, _call: RequestContext) -> SealStageResponse:
    """Seal a stage. It exists until it is committed, dropped or expired."""
    found = await broker.stages.seal(request.stage, request.chunks)
    return SealStageResponse(found.rows, found.size_bytes)


async def commit_stages(request: CommitStages, broker: Broker, call: RequestContext) -> CommitStagesResponse:
    """Append all records of the stages, unless the number is committed already. Drop the stages in either case."""
    names = call.body(list[str])
    if len(names) > STAGES_PER_COMMIT_MAX:
        raise Refused(f"{len(names)} stages are too many for one commit: {STAGES_PER_COMMIT_MAX} is the maximum")
    async with broker.stages.commit_lock(request.scope):
        outcome = CommitStagesResponse("already", 0)
        if not await _is_committed(broker, request.scope, request.number):
            async with broker.stages.claim(names) as found:
                outcome = await _appended(broker, call, request.scope, request.number, found)
    await broker.stages.drop(names)
    return outcome


async def drop_stages(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """Drop stages. One that does not exist is no error."""
    await broker.stages.drop(call.body(list[str]))
    return EmptyHeader()


async def query_ledger(request: QueryLedger, broker: Broker, _call: RequestContext) -> QueryLedgerResponse:
    return QueryLedgerResponse(await broker.store.ledger(request.scope))


async def append_once(request: AppendOnce, broker: Broker, call: RequestContext) -> CommitStagesResponse:
    """Append the records in the body, unless the number is committed already."""
    with broker.stages.reserve_memory(len(call.command.body)):
        async with broker.stages.commit_lock(request.scope):
            if await _is_committed(broker, request.scope, request.number):
                return CommitStagesResponse("already", 0)
            incoming = await _incoming_records(broker, call, fills_checksum=request.fills_checksum)
            found = await broker.stages.run_in_thread(validate_records, incoming)
            return await _appended(broker, call, request.scope, request.number, found)


# -- helpers ----------------------------------------------------------------------------------------------------------


async def _incoming_records(broker: Broker, call: RequestContext, *, fills_checksum: bool) -> IncomingRecords:
    """Return the records of a request, with destinations checked. Their content is validated in a thread."""
    try:
        found = await broker.stages.run_in_thread(
            queue_batches.decode, call.command.body, batches_max=queue_batches.BATCHES_MAX
        )
    except ProtocolError as cause:
        raise Refused(f"the records cannot be decoded: {cause}") from cause
    if not found:
        raise Refused("the body has no records")
    return IncomingRecords(
        found,
        check_destinations(found, broker.topics.get),
        fills_checksum=fills_checksum,
        body_bytes_max=broker.store.message_bytes_max,
        store_host_bytes=_store_host_bytes(broker),
        born_host=call.channel.packed_host,
        now_ms=broker.now_ms(),
    )


def _store_host_bytes(broker: Broker) -> int:
    """Return the size of the store host in a record."""
    return len(pack_host(broker.address.as_host())) if broker.store.records_store_host else _IPV4_BYTES


def _chunk(incoming: IncomingRecords) -> StageChunk:
    found = validate_records(incoming)
    totals = _totals_by_topic(found).values()
    rows, size_bytes = sum(total.rows for total in totals), sum(total.size_bytes for total in totals)
    return StageChunk(queue_batches.encode(found), rows, size_bytes)


class _Total(NamedTuple):
    rows: int
    size_bytes: int


def _totals_by_topic(found: Sequence[QueueBatch]) -> dict[str, _Total]:
    """Count the records for each topic. Slow for many batches: call it in a thread."""
    totals: dict[str, _Total] = {}
    for part in found:
        rows, size_bytes = totals.get(part.queue.topic, (0, 0))
        totals[part.queue.topic] = _Total(rows + len(part.sizes), size_bytes + len(part.data))
    return totals


async def _is_committed(broker: Broker, scope: str, number: int) -> bool:
    noted = await broker.store.ledger(scope)
    return noted is not None and number <= noted


async def _appended(
    broker: Broker, call: RequestContext, scope: str, number: int, found: Sequence[QueueBatch]
) -> CommitStagesResponse:
    totals = await broker.stages.run_in_thread(_totals_by_topic, found)
    for name in totals:
        if not broker.topics[name].is_writable:
            raise NotPermitted(f"sending to topic {name!r}", "the topic has no write permission")
    # Validated when they arrived; the files have checksums of their own.
    token = broker.token_of(call.command)
    if not await broker.store.append_atomically(scope, number, found, verify_crc=False, token=token):
        return CommitStagesResponse("already", 0)
    for name, total in totals.items():
        broker.counters.count_send(name, total.rows, total.size_bytes)
    return CommitStagesResponse("committed", sum(total.rows for total in totals.values()))


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.STAGE_RECORDS: stage_records,
    RequestCode.SEAL_STAGE: seal_stage,
    RequestCode.COMMIT_STAGES: commit_stages,
    RequestCode.DROP_STAGES: drop_stages,
    RequestCode.QUERY_LEDGER: query_ledger,
    RequestCode.APPEND_ONCE: append_once,
}
