"""Copies topics, groups, offsets and tokens from one store to another, whichever engines they have.

1. Messages of a queue arrive in their order. Offsets start at 0 in the target: where retention has taken the start of
   a queue they shift, and what groups have committed shifts with them.
2. A copy that was interrupted goes on where it stopped, and doubles nothing: how many messages a queue of the target
   holds says how far it got. Two marks for each queue say where it began, and up to where every message is known to be
   ours; what lies behind that, one batch at most, is compared.
3. Nobody else may send to the topics in the target meanwhile. It is noticed if somebody does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from hashlib import sha256

import msgspec

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
    """What was done this time."""

    topics: int
    messages: int
    groups: int
    offsets: int
    tokens: int
    notes: list[str]
    """What whoever asked should know."""


class _QueueCopy(msgspec.Struct):
    """How far a queue is copied."""

    source: Queue
    target: Queue
    base: int
    """The offset in the source of what is offset 0 in the target."""
    at: int
    """How many messages the target has."""
    end: int
    """Where the source ended when we began."""


async def copy_store(
    source: Store,
    target: Store,
    *,
    source_name: str,
    chosen: Collection[str] = (),
    renames: Mapping[str, str] | None = None,
    checked: Callable[[str], object] = lambda name: name,
    progress: Callable[[int, int, str], None] = lambda done, total, topic: None,
) -> CopyReport:
    """Copy the chosen topics, or all, and what goes with them.

    `source_name` tells one source from another when a copy is resumed. `checked` raises `IllegalName` for a topic that
    the target cannot have. `progress` is told how many messages are copied, of how many, and which topic is at hand.
    """
    plan = await plan_copy(source, chosen=chosen, renames=renames or {}, checked=checked)
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
        self._standalone = ReferenceResolver(source, {move.topic.name: move.to for move in plan.moves})
        self._notes: list[str] = []

    async def run(self, *, all_groups: bool) -> CopyReport:
        if self._plan.left_out:
            self._notes.append(
                f"not copied, for they are a broker's own: {', '.join(self._plan.left_out)}"
                " (messages that wait for their time or for the end of a transaction are in there)"
            )
        laps = [lap for move in self._plan.moves for lap in await self._laps(move)]
        total, done = sum(max(0, lap.end - lap.base) for lap in laps), sum(lap.at for lap in laps)
        begun = done
        for lap in laps:
            async for count in self._rest(lap):
                done += count
                self._progress(done, total, lap.source.topic)
        self._progress(done, max(done, total), "")
        self._say_shifts(laps)
        self._notes += self._standalone.notes()
        groups, offsets = await self._groups(laps, all_groups=all_groups)
        return CopyReport(len(self._plan.moves), done - begun, groups, offsets, await self._tokens(), self._notes)

    # -- where we are -------------------------------------------------------------------------------------------------

    async def _laps(self, move: TopicCopy) -> list[_QueueCopy]:
        place = await create_target_topic(self._target, move)
        return [await self._lap(queue, place(queue.id)) for queue in move.queues]

    async def _lap(self, source: Queue, target: Queue) -> _QueueCopy:
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
        if base + at < first:  # retention was quicker
            self._notes.append(f"{source}: {first - base - at:,} messages were gone before they could be copied")
            base = first - at
            await self._target.marks.put(self._mark(target, "from"), base)
        lap = _QueueCopy(source, target, base, ours_to, end)
        await self._check_tail(lap, at)
        lap.at = at
        return lap

    async def _check_tail(self, lap: _QueueCopy, at: int) -> None:
        """Behind the mark lies what we copied before it could be put, or what somebody else has sent."""
        while lap.at < at:
            ours = await self._drafts(lap, at - lap.at)
            if not ours:
                continue
            found = await self._target.read(lap.target, lap.at, count_max=len(ours), bytes_max=8 * BATCH_BYTES)
            theirs = [record.draft_from_record(raw) for raw in found.records()] if isinstance(found, Slice) else []
            if not theirs or any(_gist(a) != _gist(b) for a, b in zip(ours, theirs, strict=False)):
                raise _not_ours(lap.target)
            lap.at += len(theirs)

    def _mark(self, target: Queue, word: str) -> str:
        return f"copy:{self._name}:{target}:{word}"

    # -- messages -----------------------------------------------------------------------------------------------------

    async def _rest(self, lap: _QueueCopy) -> AsyncIterator[int]:
        """Copy what is missing, batch by batch; how many messages each had."""
        while lap.base + lap.at < lap.end:
            drafts = await self._drafts(lap, min(BATCH_MESSAGES, lap.end - lap.base - lap.at))
            if drafts:
                await self._append(lap, drafts)
                lap.at += len(drafts)
                await self._target.marks.put(self._mark(lap.target, "to"), lap.at)
                yield len(drafts)

    async def _drafts(self, lap: _QueueCopy, count: int) -> list[Draft]:
        """The next messages, as the target is to have them; none if all that was looked at cannot be read."""
        place = lap.base + lap.at
        found = await self._source.read(lap.source, place, count_max=count, bytes_max=BATCH_BYTES)
        if isinstance(found, AtEnd) or (isinstance(found, Moved) and found.to <= place):
            raise Refused(f"{lap.source} ends at {place} all at once: it was changed meanwhile; run the copy again")
        records = list(found.records()) if isinstance(found, Slice) else []
        start = (
            record.queue_offset_of(records[0])
            if records
            else found.to
            if isinstance(found, Moved)
            else found.next_offset
        )
        if start > place:
            # Damage in a log, a hole in a table, or retention was quicker. What follows moves up.
            self._notes.append(f"{lap.source}: {start - place:,} messages from {place:,} on are not there")
            lap.base += start - place
            await self._target.marks.put(self._mark(lap.target, "from"), lap.base)
        return [await self._standalone.draft(raw, lap.source.topic) for raw in _without_holes(records)]

    async def _append(self, lap: _QueueCopy, drafts: Sequence[Draft]) -> None:
        appended = await self._target.append(lap.target, drafts)
        if (appended.queue, appended.offset) == (lap.target, lap.at):
            return
        if len(drafts) == 1 and _PRODUCER in drafts[0].properties:
            # The store takes it for a repeat of what the same producer sent before: of a retry, that is the original.
            words = properties.decode(drafts[0].properties)
            words = {
                name: value for name, value in words.items() if name not in (PROPERTY_PRODUCER_ID, PROPERTY_SEQUENCE)
            }
            plain = msgspec.structs.replace(drafts[0], properties=properties.encode(words))
            appended = await self._target.append(lap.target, [plain])
        if (appended.queue, appended.offset) != (lap.target, lap.at):
            raise _not_ours(lap.target)

    def _say_shifts(self, laps: list[_QueueCopy]) -> None:
        for lap in laps:
            if lap.base and lap.end > lap.base:
                self._notes.append(
                    f"{lap.source} began at {lap.base:,}: offset {lap.base:,} is 0 now, and groups have moved with it"
                )

    # -- what goes with them ------------------------------------------------------------------------------------------

    async def _groups(self, laps: list[_QueueCopy], *, all_groups: bool) -> tuple[int, int]:
        by_queue = {lap.source: lap for lap in laps}
        offsets, groups = 0, set(await self._source.catalog.list_groups()) if all_groups else set()
        for (topic, group), places in (await self._source.offsets.all()).items():
            for queue_id, offset in places.items():
                lap = by_queue.get(Queue(topic, queue_id))
                if lap is None:
                    continue
                groups.add(group)
                wanted = min(max(offset - lap.base, 0), lap.at)
                known = await self._target.offsets.committed(group, lap.target)
                if known is None or known < wanted:
                    await self._target.offsets.commit(group, lap.target, wanted)
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
            elif (there[name].kind, there[name].secret) != (token.kind, token.secret):
                self._notes.append(f"token {name!r} is there already, and another one: it was left as it is")
        return copied


def _without_holes(records: list[memoryview]) -> list[memoryview]:
    """Up to the first hole: what follows it is read again, and the hole is noticed."""
    for count, raw in enumerate(records):
        if record.queue_offset_of(raw) != record.queue_offset_of(records[0]) + count:
            return records[:count]
    return records


def _gist(draft: Draft) -> tuple[bytes, int, int]:
    return bytes(draft.body), draft.born_ms, draft.reconsume_times


def _not_ours(queue: Queue) -> Refused:
    return Refused(
        f"{queue} in the target holds messages that were not copied from here: copy the topic under another name"
        f" (--rename {queue.topic}=...), or delete it there first"
    )
