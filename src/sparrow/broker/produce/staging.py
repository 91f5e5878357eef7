"""Messages that are appended all together, once: staged and committed, or in one request.

A client numbers what it commits within a scope of its own (a query and its batches, say); the store's ledger notes how
far a scope has got, in the same breath as the messages are appended. So a commit may be asked again and again.

1. What is staged is checked when it comes: a commit has nothing left to refuse but a topic that was taken away.
2. Records go to the queue that they name, as senders know it, and nowhere else: none is delayed, retried or half.
3. Whether a scope has got so far is asked before anything else: a stage that is gone since then is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sparrow.broker.context import Broker
from sparrow.broker.produce.record_validation import IncomingRecords, check_destinations, validate_records
from sparrow.broker.produce.stage_file import StageChunk
from sparrow.model.errors import NotPermitted, ProtocolError, Refused
from sparrow.net.dispatcher import RequestContext, RequestHandler
from sparrow.store.spi import QueueRecords
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
from sparrow.wire.record import pack_host

STAGES_PER_COMMIT_MAX = 10_000
"""In one commit: each is a mapped file."""
_IPV4_BYTES = 8


async def stage_records(request: StageRecords, broker: Broker, call: RequestContext) -> EmptyHeader:
    """One more body for a stage."""
    if request.seq < 0:
        raise Refused(f"{request.seq} is no number of a body: they start at 0")
    arriving = _arriving(broker, call, fills_checksum=request.fills_checksum)
    await broker.stages.add(request.stage, request.seq, len(call.command.body), partial(_chunk, arriving))
    return EmptyHeader()


async def seal_stage(request: SealStage, broker: Broker, _call: RequestContext) -> SealStageResponse:
    """Nothing more will come. The stage is there until it is committed or dropped, or until its time is up."""
    found = await broker.stages.seal(request.stage, request.chunks)
    return SealStageResponse(found.rows, found.size_bytes)


async def commit_stages(request: CommitStages, broker: Broker, call: RequestContext) -> CommitStagesResponse:
    """All that the stages hold becomes messages, unless the scope has got so far already. Either way they are gone."""
    names = call.body(list[str])
    if len(names) > STAGES_PER_COMMIT_MAX:
        raise Refused(f"{len(names)} stages are too many for one commit: {STAGES_PER_COMMIT_MAX} are possible")
    async with broker.stages.commit_lock(request.scope):
        outcome = CommitStagesResponse("already", 0)
        if not await _has_got(broker, request.scope, request.number):
            async with broker.stages.claim(names) as found:
                outcome = await _appended(broker, request.scope, request.number, found)
    await broker.stages.drop(names)
    return outcome


async def drop_stages(_request: EmptyHeader, broker: Broker, call: RequestContext) -> EmptyHeader:
    """The stages are gone, whether they were there or not."""
    await broker.stages.drop(call.body(list[str]))
    return EmptyHeader()


async def query_ledger(request: QueryLedger, broker: Broker, _call: RequestContext) -> QueryLedgerResponse:
    return QueryLedgerResponse(await broker.store.ledger(request.scope))


async def append_once(request: AppendOnce, broker: Broker, call: RequestContext) -> CommitStagesResponse:
    """The records in the body become messages, unless the scope has got so far already."""
    with broker.stages.reserve_memory(len(call.command.body)):
        async with broker.stages.commit_lock(request.scope):
            if await _has_got(broker, request.scope, request.number):
                return CommitStagesResponse("already", 0)
            arriving = _arriving(broker, call, fills_checksum=request.fills_checksum)
            found = await broker.stages.run_in_thread(validate_records, arriving)
            return await _appended(broker, request.scope, request.number, found)


# -- parts of these ---------------------------------------------------------------------------------------------------


def _arriving(broker: Broker, call: RequestContext, *, fills_checksum: bool) -> IncomingRecords:
    """A body as far as it can be checked at once. The records themselves are for a thread."""
    try:
        found = queue_batches.decode(call.command.body)
    except ProtocolError as cause:
        raise Refused(f"the records cannot be read: {cause}") from cause
    if not found:
        raise Refused("the body holds no records")
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
    """Records of a log have room for the address of this broker. A database keeps none."""
    return len(pack_host(broker.address.as_host())) if broker.store.records_store_host else _IPV4_BYTES


def _chunk(arriving: IncomingRecords) -> StageChunk:
    found = validate_records(arriving)
    return StageChunk(queue_batches.encode(found), *_measured(found))


def _measured(found: Sequence[queue_batches.QueueBatch]) -> tuple[int, int]:
    return sum(len(part.sizes) for part in found), sum(len(part.data) for part in found)


async def _has_got(broker: Broker, scope: str, number: int) -> bool:
    noted = await broker.store.ledger(scope)
    return noted is not None and number <= noted


async def _appended(
    broker: Broker, scope: str, number: int, found: Sequence[queue_batches.QueueBatch]
) -> CommitStagesResponse:
    for name in {part.queue.topic for part in found}:
        if not broker.topics[name].is_writable:
            raise NotPermitted(f"sending to topic {name!r}", "the topic has no write permission")
    # Checked when they came, and what the files say is checked against their own checksums.
    group = [QueueRecords(*part) for part in found]
    if not await broker.store.append_atomically(scope, number, group, verify_crc=False):
        return CommitStagesResponse("already", 0)
    for part in found:
        broker.counters.count_send(part.queue.topic, len(part.sizes), len(part.data))
    return CommitStagesResponse("committed", _measured(found)[0])


HANDLERS: dict[int, RequestHandler[Broker]] = {
    RequestCode.STAGE_RECORDS: stage_records,
    RequestCode.SEAL_STAGE: seal_stage,
    RequestCode.COMMIT_STAGES: commit_stages,
    RequestCode.DROP_STAGES: drop_stages,
    RequestCode.QUERY_LEDGER: query_ledger,
    RequestCode.APPEND_ONCE: append_once,
}
