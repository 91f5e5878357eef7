"""The copier: copies topics, groups, offsets and tokens from one store to another, whatever their engines.

1. Messages of a queue keep their order. Offsets start at 0 in the target: if retention has deleted the first messages,
   offsets shift, and committed offsets shift with them.
2. An interrupted copy resumes where it stopped, without duplicates: the end of the target queue is the progress. Two
   marks per queue store the first offset copied, and the offset up to which all messages are known to be copied; later
   ones, at most one batch, are compared with the source.
3. No other producer may send to the target topics meanwhile. The copier detects it and stops.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from hashlib import sha256

import msgspec

from sparrow.model.access.token import Token
from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.model.protocol import PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE
from sparrow.model.queue import Queue
from sparrow.store.copy.plan import CopyPlan, TopicCopy, create_target_topic, plan_copy
from sparrow.store.copy.references import ReferenceResolver
from sparrow.store.spi import AtEnd, Moved, Slice, Store
from sparrow.wire import properties, record

BATCH_MESSAGES, BATCH_BYTES = 500, 1 << 20
_PRODUCER = PROPERTY_PRODUCER_ID.encode() + b"\x01"


class CopyReport(msgspec.Struct, frozen=True):
    """What one run has copied."""

    topics: int
    messages: int
    groups: int
    offsets: int
    tokens: int
    notes: list[str]
    """Remarks for the user."""


class _QueueCopy(msgspec.Struct):
    """The progress of one queue."""

    source: Queue
    target: Queue
    base: int
    """The source offset of the message with target offset 0."""
    at: int
    """The number of messages in the target queue."""
    end: int
    """The end of the source queue when the copy began."""


async def copy_store(
    source: Store,
    target: Store,
    *,
    source_name: str,
    chosen: Collection[str] = (),
    renames: Mapping[str, str] | None = None,
    check_name: Callable[[str], object] = lambda name: name,
    progress: Callable[[int, int, str], None] = lambda done, total, topic: None,
) -> CopyReport:
    """Copy the chosen topics, or all, with their groups and offsets, and all tokens.

    `source_name` identifies the source when a copy is resumed. `check_name` raises `IllegalName` for a name that the
    target does not allow. `progress` is called with the number of messages copied, their total, and the current topic.
    """
    plan = await plan_copy(source, chosen=chosen, renames=renames or {}, check_name=check_name)
    return await _Copier(source, target, plan, source_name, progress).run(all_groups=not chosen)


class _Copier:
    def __init__(
        self,
        source: Store,
        target: Store,
        plan: CopyPlan,
        source_name: str,
        progress: Callable[[int, int, str], None],
    ) -> None:
        self._source, self._target, self._plan, self._progress = source, target, plan, progress
        self._name = sha256(source_name.encode()).hexdigest()[:12]
        self._references = ReferenceResolver(
            source, {topic_copy.topic.name: topic_copy.target_name for topic_copy in plan.topics}
        )
        self._notes: list[str] = []

    async def run(self, *, all_groups: bool) -> CopyReport:
        if self._plan.skipped:
            self._notes.append(
                f"system topics not copied: {', '.join(self._plan.skipped)}"
                " (they contain delayed messages and open transactions)"
            )
        queue_copies = [
            queue_copy for topic_copy in self._plan.topics for queue_copy in await self._queue_copies(topic_copy)
        ]
        total, done = (
            sum(max(0, queue_copy.end - queue_copy.base) for queue_copy in queue_copies),
            sum(queue_copy.at for queue_copy in queue_copies),
        )
        begun = done
        for queue_copy in queue_copies:
            async for count in self._copy_rest(queue_copy):
                done += count
                self._progress(done, total, queue_copy.source.topic)
        self._progress(done, max(done, total), "")
        self._note_shifts(queue_copies)
        self._notes += self._references.notes()
        groups, offsets = await self._groups(queue_copies, all_groups=all_groups)
        return CopyReport(len(self._plan.topics), done - begun, groups, offsets, await self._tokens(), self._notes)

    # -- progress -----------------------------------------------------------------------------------------------------

    async def _queue_copies(self, topic_copy: TopicCopy) -> list[_QueueCopy]:
        place = await create_target_topic(self._target, topic_copy)
        return [await self._queue_copy(queue, place(queue.id)) for queue in topic_copy.queues]

    async def _queue_copy(self, source: Queue, target: Queue) -> _QueueCopy:
        first, end = await self._source.bounds(source)
        at = (await self._target.bounds(target)).end
        if at == 0:
            if end > first:
                await self._target.marks.put(self._mark(target, "from"), first)
                await self._target.marks.put(self._mark(target, "to"), 0)
            return _QueueCopy(source, target, first, 0, end)
        base = await self._target.marks.get(self._mark(target, "from"))
        ours_to = await self._target.marks.get(self._mark(target, "to"))
        if base is None or ours_to is None or not ours_to <= at <= ours_to + BATCH_MESSAGES or base + at > end:
            raise _not_ours(target)
        if base + at < first:  # retention has deleted messages since the last run
            self._notes.append(f"{source}: retention deleted {first - base - at:,} messages before they were copied")
            base = first - at
            await self._target.marks.put(self._mark(target, "from"), base)
        queue_copy = _QueueCopy(source, target, base, ours_to, end)
        await self._check_tail(queue_copy, at)
        queue_copy.at = at
        return queue_copy

    async def _check_tail(self, queue_copy: _QueueCopy, at: int) -> None:
        """Compare messages after the mark: an earlier run copied them, or another producer sent them."""
        while queue_copy.at < at:
            ours = await self._drafts(queue_copy, at - queue_copy.at)
            if not ours:
                continue
            found = await self._target.read(
                queue_copy.target, queue_copy.at, count_max=len(ours), bytes_max=8 * BATCH_BYTES
            )
            theirs = [record.draft_from_record(raw) for raw in found.records()] if isinstance(found, Slice) else []
            if not theirs or any(_identity(a) != _identity(b) for a, b in zip(ours, theirs, strict=False)):
                raise _not_ours(queue_copy.target)
            queue_copy.at += len(theirs)

    def _mark(self, target: Queue, kind: str) -> str:
        return f"copy:{self._name}:{target}:{kind}"

    # -- messages -----------------------------------------------------------------------------------------------------

    async def _copy_rest(self, queue_copy: _QueueCopy) -> AsyncIterator[int]:
        """Copy missing messages batch by batch, and yield the size of each batch."""
        while queue_copy.base + queue_copy.at < queue_copy.end:
            drafts = await self._drafts(
                queue_copy, min(BATCH_MESSAGES, queue_copy.end - queue_copy.base - queue_copy.at)
            )
            if drafts:
                await self._append(queue_copy, drafts)
                queue_copy.at += len(drafts)
                await self._target.marks.put(self._mark(queue_copy.target, "to"), queue_copy.at)
                yield len(drafts)

    async def _drafts(self, queue_copy: _QueueCopy, count: int) -> list[Draft]:
        """Return the next messages as drafts for the target; none if all records examined are unreadable."""
        place = queue_copy.base + queue_copy.at
        found = await self._source.read(queue_copy.source, place, count_max=count, bytes_max=BATCH_BYTES)
        if isinstance(found, AtEnd) or (isinstance(found, Moved) and found.to <= place):
            raise Refused(
                f"{queue_copy.source} now ends at {place}: it was changed during the copy; run the copy again"
            )
        records = list(found.records()) if isinstance(found, Slice) else []
        start = (
            record.queue_offset_of(records[0])
            if records
            else found.to
            if isinstance(found, Moved)
            else found.next_offset
        )
        if start > place:
            # Damage in a log, a gap in a table, or retention. In the copy, later messages close the gap.
            self._notes.append(f"{queue_copy.source}: {start - place:,} messages from offset {place:,} on are missing")
            queue_copy.base += start - place
            await self._target.marks.put(self._mark(queue_copy.target, "from"), queue_copy.base)
        return [await self._references.draft(raw, queue_copy.source.topic) for raw in _without_holes(records)]

    async def _append(self, queue_copy: _QueueCopy, drafts: Sequence[Draft]) -> None:
        appended = await self._target.append(queue_copy.target, drafts)
        if (appended.queue, appended.offset) == (queue_copy.target, queue_copy.at):
            return
        if len(drafts) == 1 and _PRODUCER in drafts[0].properties:
            # The store takes a retry for a duplicate of its original, which the same producer sent.
            values = properties.decode(drafts[0].properties)
            values = {
                name: value for name, value in values.items() if name not in (PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE)
            }
            plain = msgspec.structs.replace(drafts[0], properties=properties.encode(values))
            appended = await self._target.append(queue_copy.target, [plain])
        if (appended.queue, appended.offset) != (queue_copy.target, queue_copy.at):
            raise _not_ours(queue_copy.target)

    def _note_shifts(self, queue_copies: list[_QueueCopy]) -> None:
        for queue_copy in queue_copies:
            if queue_copy.base and queue_copy.end > queue_copy.base:
                self._notes.append(
                    f"{queue_copy.source} began at offset {queue_copy.base:,}, now 0 in the target;"
                    " committed offsets are shifted"
                )

    # -- groups and tokens --------------------------------------------------------------------------------------------

    async def _groups(self, queue_copies: list[_QueueCopy], *, all_groups: bool) -> tuple[int, int]:
        by_queue = {queue_copy.source: queue_copy for queue_copy in queue_copies}
        offsets, groups = 0, set(await self._source.catalog.list_groups()) if all_groups else set()
        for (topic, group), places in (await self._source.offsets.all()).items():
            for queue_id, offset in places.items():
                queue_copy = by_queue.get(Queue(topic, queue_id))
                if queue_copy is None:
                    continue
                groups.add(group)
                wanted = min(max(offset - queue_copy.base, 0), queue_copy.at)
                known = await self._target.offsets.committed(group, queue_copy.target)
                if known is None or known < wanted:
                    await self._target.offsets.commit(group, queue_copy.target, wanted)
                    offsets += 1
        there = await self._target.catalog.list_groups()
        new = [
            known
            for name, known in (await self._source.catalog.list_groups()).items()
            if name in groups and name not in there
        ]
        for known_group in new:
            await self._target.catalog.put_group(known_group)
        return len(new), offsets

    async def _tokens(self) -> int:
        there = dict(await self._target.tokens.all())
        copied = 0
        for name, token in (await self._source.tokens.all()).items():
            if name not in there:
                taken = {known.id for known in there.values()}
                number = token.id if token.id not in taken else max(taken) + 1
                there[name] = msgspec.structs.replace(token, id=number)
                await self._target.tokens.put(there[name])
                copied += 1
            elif _access_of(there[name]) != _access_of(token):
                self._notes.append(
                    f"token {name!r} exists in the target with another secret or other permissions: not copied"
                )
        return copied


def _access_of(token: Token) -> tuple[object, ...]:
    return token.secret, *token.permissions, token.acl


def _without_holes(records: list[memoryview]) -> list[memoryview]:
    """Return the records up to the first gap; the next read starts after it and reports the gap."""
    for count, raw in enumerate(records):
        if record.queue_offset_of(raw) != record.queue_offset_of(records[0]) + count:
            return records[:count]
    return records


def _identity(draft: Draft) -> tuple[bytes, int, int]:
    return bytes(draft.body), draft.born_ms, draft.reconsume_times


def _not_ours(queue: Queue) -> Refused:
    return Refused(
        f"{queue} in the target has messages that were not copied from this source: copy the topic under another name"
        f" (--rename {queue.topic}=...), or delete it in the target first"
    )
