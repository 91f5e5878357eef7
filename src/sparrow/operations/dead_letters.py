"""Dead letters: which groups have some, why messages failed, and redriving them with a result for each message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from difflib import get_close_matches
from enum import StrEnum

import msgspec

from sparrow import clock
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.broker_state import fetch_topic_tables
from sparrow.client.aio.admin.dead_letters import REDRIVE_GROUP, known_ids
from sparrow.client.aio.admin.message_query import query_by_key
from sparrow.client.aio.produce.producer import Producer
from sparrow.client.consume.retry import make_redriven_message
from sparrow.model.errors import Refused, SparrowError, UnknownGroup, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import (
    DLQ_TOPIC_PREFIX,
    PROPERTY_DLQ_ATTEMPT,
    PROPERTY_DLQ_CONSUMER,
    PROPERTY_DLQ_ERROR_TYPE,
    PROPERTY_DLQ_REASON,
    PROPERTY_DLQ_TRACEBACK,
    PROPERTY_RETRY_TOPIC,
)
from sparrow.model.topic import validate_group_name
from sparrow.operations.errors import NotFound
from sparrow.operations.groups import is_system_group
from sparrow.operations.messages import (
    MessageView,
    SearchFilter,
    SearchLimits,
    SearchOrder,
    SearchResult,
    scan_messages,
    search_messages,
    view_message,
)
from sparrow.operations.plans import check_plan, hash_plan

REDRIVE_IDS_MAX = 1_000
"""Dead letters that one redrive by ids may name."""
RESULTS_MAX = 1_000
"""Results of single messages that a redrive lists; it counts all of them."""


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """A group with dead letters."""

    group: str
    letters: int


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a group gave up, and why."""

    group: str
    topic: str
    """The topic that it was sent to first."""
    attempts: int | None
    reason: str | None
    error_type: str | None
    traceback: str | None
    consumer: str | None
    """The client that gave it up."""
    message: MessageView

    @property
    def cause(self) -> str:
        """The type of the error and the reason, as far as they are known."""
        return ": ".join(part for part in (self.error_type, self.reason) if part)


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters of a group, and how much was read for them."""

    letters: tuple[DeadLetterView, ...]
    scanned: int
    complete: bool
    next: dict[str, int] | None


class RedriveSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to redrive: exactly one of the three, since sending cannot be undone."""

    ids: tuple[str, ...] | None = None
    since_ms: int | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        if (self.ids is not None) + (self.since_ms is not None) + self.everything != 1:
            raise Refused("select the dead letters by exactly one of ids, since and everything")
        if self.ids is not None and not 1 <= len(self.ids) <= REDRIVE_IDS_MAX:
            raise Refused(f"name 1 to {REDRIVE_IDS_MAX} dead letters, not {len(self.ids)}")


class RedrivePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a redrive would send."""

    group: str
    count: int
    missing: tuple[str, ...]
    """Named ids that are not dead letters of the group, or no longer."""
    hash: str


class RedriveState(StrEnum):
    """What became of a dead letter."""

    SENT = "sent"
    NOT_FOUND = "not_found"
    FAILED = "failed"


class RedriveItem(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one dead letter."""

    id: str
    state: RedriveState
    topic: str | None = None
    """Where it was sent."""
    error: str | None = None


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a redrive."""

    group: str
    sent: int
    failed: int
    not_found: int
    items: tuple[RedriveItem, ...]
    omitted: int
    """Results that `items` does not list."""

    @property
    def is_partial(self) -> bool:
        """Whether some were sent and some not."""
        return bool(self.sent) and bool(self.failed or self.not_found)


async def list_groups_with_dead_letters(admin: Admin) -> list[DeadLetterGroup]:
    """Return the groups that have dead letters, by name."""
    tables = await fetch_topic_tables(admin.session, is_wanted=lambda name: name.startswith(DLQ_TOPIC_PREFIX))
    counts: dict[str, int] = {}
    for queue, bound in tables.bounds.items():
        group = queue.topic.removeprefix(DLQ_TOPIC_PREFIX)
        counts[group] = counts.get(group, 0) + bound.end - bound.first
    return [DeadLetterGroup(group, count) for group, count in sorted(counts.items()) if count]


async def list_dead_letters(
    admin: Admin,
    group: str,
    wanted: SearchFilter | None = None,
    *,
    order: SearchOrder = "newest",
    limits: SearchLimits | None = None,
    after: dict[str, int] | None = None,
) -> DeadLetterPage:
    """Return dead letters of a group; raise `UnknownGroup` if it does not exist."""
    try:
        found = await search_messages(
            admin,
            DLQ_TOPIC_PREFIX + validate_group_name(group),
            wanted or SearchFilter(),
            order=order,
            limits=limits or SearchLimits(),
            after=after,
        )
    except UnknownTopic:
        await _require_group(admin, group)
        found = SearchResult(messages=(), scanned=0, scanned_bytes=0, complete=True, next=None)
    return DeadLetterPage(
        letters=tuple(view_dead_letter(group, message) for message in found.messages),
        scanned=found.scanned,
        complete=found.complete,
        next=found.next,
    )


async def find_dead_letter(admin: Admin, group: str, letter_id: str) -> DeadLetterView:
    """Return the newest dead letter of a group with an id; raise `NotFound` if there is none."""
    found = await _look_up(admin, validate_group_name(group), letter_id)
    if found is None:
        await _require_group(admin, group)
        raise NotFound("dead letter", letter_id, f"group {group!r} has none with this id, or no longer")
    return view_dead_letter(group, view_message(found, None))


async def plan_redrive(admin: Admin, group: str, selection: RedriveSelection) -> RedrivePlan:
    """Return how many dead letters a redrive would send; nothing is sent."""
    topic = DLQ_TOPIC_PREFIX + validate_group_name(group)
    if selection.ids is not None:
        missing = tuple([each for each in selection.ids if await _look_up(admin, group, each) is None])
        if missing:
            await _require_group(admin, group)
        count = len(selection.ids) - len(missing)
        return RedrivePlan(
            group=group, count=count, missing=missing, hash=hash_plan("redrive", group, selection.ids, missing)
        )
    try:
        bounds = await admin.topic_bounds(topic)
    except UnknownTopic:
        await _require_group(admin, group)
        bounds = {}
    ranges = []
    for queue, (first, end) in bounds.items():
        begin = int(first)
        if selection.since_ms is not None and first < end:
            begin = min(end, max(begin, await admin.offset_at(queue, selection.since_ms)))
        ranges.append((queue.broker_name, queue.queue_id, begin, int(end)))
    return RedrivePlan(
        group=group,
        count=sum(end - first for _, _, first, end in ranges),
        missing=(),
        hash=hash_plan("redrive", group, selection.since_ms, ranges),
    )


async def redrive(
    admin: Admin,
    group: str,
    selection: RedriveSelection,
    *,
    plan: str | None,
    force: bool = False,
    to_group_only: bool = False,
) -> RedriveReport:
    """Send dead letters again as planned: to their topic, or only to their group. They stay in the dead-letter topic.

    A dead letter that cannot be sent does not stop the others.
    """
    current = await plan_redrive(admin, group, selection)
    check_plan(f"the redrive of dead letters of group {group!r}", plan, current.hash, force=force)
    counts = dict.fromkeys(RedriveState, 0)
    items: list[RedriveItem] = []
    async with Producer(group=REDRIVE_GROUP, session=admin.session) as producer:
        async for letter_id, letter in _selected(admin, group, selection):
            item = await _redrive_one(producer, group, letter_id, letter, to_group_only=to_group_only)
            counts[item.state] += 1
            if len(items) < RESULTS_MAX:
                items.append(item)
    return RedriveReport(
        group=group,
        sent=counts[RedriveState.SENT],
        failed=counts[RedriveState.FAILED],
        not_found=counts[RedriveState.NOT_FOUND],
        items=tuple(items),
        omitted=sum(counts.values()) - len(items),
    )


async def _redrive_one(
    producer: Producer, group: str, letter_id: str, letter: StoredMessage | None, *, to_group_only: bool
) -> RedriveItem:
    if letter is None:
        return RedriveItem(id=letter_id, state=RedriveState.NOT_FOUND)
    try:
        message = make_redriven_message(letter, group, to_group_only=to_group_only)
        await producer.send(message)
    except SparrowError as error:
        return RedriveItem(id=letter_id, state=RedriveState.FAILED, error=str(error))
    return RedriveItem(id=letter_id, state=RedriveState.SENT, topic=message.topic)


async def _selected(
    admin: Admin, group: str, selection: RedriveSelection
) -> AsyncIterator[tuple[str, StoredMessage | None]]:
    if selection.ids is not None:
        for letter_id in dict.fromkeys(selection.ids):
            yield letter_id, await _look_up(admin, group, letter_id)
        return
    # Up to now: a letter that fails again at once must not be sent in a circle.
    wanted = SearchFilter(from_ms=selection.since_ms, to_ms=clock.now_ms() + 1)
    try:
        async for letter, _ in scan_messages(admin, DLQ_TOPIC_PREFIX + group, wanted):
            yield view_message(letter, None).id, letter
    except UnknownTopic:
        return


async def _look_up(admin: Admin, group: str, letter_id: str) -> StoredMessage | None:
    """Return the newest dead letter with an id, by the key index; by its offset id or origin id otherwise."""
    topic = DLQ_TOPIC_PREFIX + group
    try:
        route = await admin.session.route(topic)
        by_key = await query_by_key(admin.session, route, letter_id, limit=1, begin_ms=0, end_ms=(1 << 63) - 1)
        if by_key:
            return by_key[-1]
        found = await admin.find_by_id(letter_id, topic=topic)
    except Refused:
        return None
    return found if found.topic == topic and letter_id in known_ids(found) else None


async def _require_group(admin: Admin, group: str) -> None:
    known = await admin.groups()
    if group not in known:
        raise UnknownGroup(group, get_close_matches(group, [name for name in known if not is_system_group(name)]))


def view_dead_letter(group: str, message: MessageView) -> DeadLetterView:
    """Return a message of a dead-letter topic with what its properties say of why it failed."""
    properties = message.properties
    attempts = properties.get(PROPERTY_DLQ_ATTEMPT, str(message.reconsume_times))
    return DeadLetterView(
        group=group,
        topic=properties.get(PROPERTY_RETRY_TOPIC, message.topic),
        attempts=int(attempts) if attempts.isdecimal() else None,
        reason=properties.get(PROPERTY_DLQ_REASON),
        error_type=properties.get(PROPERTY_DLQ_ERROR_TYPE),
        traceback=properties.get(PROPERTY_DLQ_TRACEBACK),
        consumer=properties.get(PROPERTY_DLQ_CONSUMER),
        message=message,
    )
