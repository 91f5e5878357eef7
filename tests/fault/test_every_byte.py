"""Any byte of the log's tail truncated or changed: intact records are served unchanged, broken records never.

RocketMQ's format protects the size, magic, physical offset and body (by a checksum) of a record and the lengths of its
parts. It does not protect the other fields, so the guarantees are:

1. A record that `wire.record.decode` cannot read is not served. (Bodies are not decompressed: only sender and consumer
   use the compression bits of the sys flag.)
2. With intact consume queues, a record is served only at its own place: at the queue and offset that its bytes state.
3. With rebuilt consume queues, a record is at the place that its bytes state, because the log is the source of truth.
   If the end of a record cannot be known without them, the records behind it may be missing.
   Damage may move a record to another place and hide the record that was there; it hides no other record.
4. Flag, times, hosts, reconsume times, the half message's offset and the text of the properties may be served changed
   (truncated bytes come back as zeros); the body never.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import pytest
from tests.fault.store_contents import (
    AppendedRecord,
    Place,
    assert_records_match_places,
    assert_same_records,
    folder_in_memory,
    open_store,
    read_served,
    stated_place,
)
from tests.support.log_stores import checkpoint

from sparrow.model.message import Draft, Host
from sparrow.model.queue import Queue
from sparrow.model.topic import Group, Topic
from sparrow.store.log import LogStore
from sparrow.store.log.state.updates import STATE_QUEUE
from sparrow.wire import record

ORDERS = [Queue("orders", n) for n in range(3)]
BILLS = [Queue("bills", n) for n in range(2)]
QUEUES = [*ORDERS, *BILLS, STATE_QUEUE]

Views = Literal["closed", "abandoned", "rebuilt"]
"""How the store ended: closed; killed, with a checkpoint before the tail; or closed, and then all views lost."""


class Log(NamedTuple):
    """A store that has ended, and every record in it."""

    path: Path
    views: Views
    records: list[AppendedRecord]

    @property
    def last_segment(self) -> str:
        return max(os.listdir(self.path / "commitlog"))


# -- a log with records of every kind ---------------------------------------------------------------------------------


def drafts_of(number: int) -> list[Draft]:
    """Return the drafts of one append: usually one message, sometimes a batch; bodies and properties of many shapes."""
    properties = f"UNIQ_KEY\x01U{number:04d}\x02TAGS\x01t{number % 3}\x02KEYS\x01k{number} all\x02"
    if number % 7 == 3:
        properties += "name\x01Grüße 你好\x02"
    plain = Draft(
        body=f"{number}:".encode() * (number % 9),
        properties=properties.encode() if number % 5 else b"",
        flag=number,
        born_ms=1_700_000_000_000 + number,
        reconsume_times=number % 2,
    )
    if number % 6 == 1:
        plain.born_host = record.pack_host(Host(bytes(range(16)), 10_911))
    if number % 4 == 2:
        return [plain, Draft(body=b"second of a batch"), Draft(body=b"third", properties=b"TAGS\x01x\x02")]
    return [plain]


async def fill(store: LogStore, appends: int, *, checkpoint_at: int | None) -> None:
    for topic in ("orders", "bills"):
        await store.catalog.put_topic(Topic(name=topic))
    for number in range(appends):
        queue = ORDERS[number % 3] if number % 4 else BILLS[number % 8 // 4]
        await store.append(queue, drafts_of(number))
        if number % 10 == 9:
            await store.catalog.put_group(Group(name=f"group-{number}"))
            await store.offsets.commit("group-9", queue, number)
        if number == checkpoint_at:
            checkpoint(store)
    store._state.flush_offsets()  # otherwise closing would append a record unknown to the test


async def records_in(store: LogStore) -> list[AppendedRecord]:
    found = [
        AppendedRecord(place, record.decode(data, expand=False).physical_offset, data)
        for place, data in (await read_served(store, QUEUES)).items()
    ]
    return sorted(found, key=lambda laid: laid.physical_offset)


def lose_views(path: Path) -> None:
    for view in ("consumequeue", "index"):
        shutil.rmtree(path / view)
    for name in ("sparrow.checkpoint", "sparrow.state"):
        (path / name).unlink()


def made(folder: Path, views: Views, appends: int, tail: int) -> Log:
    living, left = folder / "living", folder / "left"
    store = open_store(living)

    async def make() -> list[AppendedRecord]:
        await fill(store, appends, checkpoint_at=appends - tail if views == "abandoned" else None)
        return await records_in(store)

    records = asyncio.run(make())
    if views == "abandoned":
        shutil.copytree(living, left)  # copy the files as a kill leaves them: everything written, nothing closed
        store.close_blocking()
    else:
        store.close_blocking()
        shutil.copytree(living, left)
    if views == "rebuilt":
        lose_views(left)
    shutil.rmtree(living)
    assert len(os.listdir(left / "commitlog")) >= 2, (
        "the log must have several segments, with blank records between them"
    )
    return Log(left, views, records)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Silence the log: thousands of damaged stores write thousands of warnings."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(
    params=[
        "closed",
        *(pytest.param(views, marks=pytest.mark.thorough) for views in get_args(Views) if views != "closed"),
    ]
)
def log(request: pytest.FixtureRequest, scale: str) -> Iterator[Log]:
    # Enough records that the damaged ones lie in the last segment and include a batch and a state record.
    appends = 83 if scale == "smoke" else 260
    with folder_in_memory() as folder:
        yield made(folder, request.param, appends, tail=4 if scale == "smoke" else 20)


@pytest.fixture
def tail_records(scale: str) -> int:
    return 2 if scale == "smoke" else 20


def is_chosen(log: Log, physical_offset: int, scale: str) -> bool:
    """Return whether to damage this byte: at smoke scale, each byte is damaged in one of the three stores."""
    return scale == "full" or get_args(Views)[physical_offset % 3] == log.views


# -- damage to a copy -------------------------------------------------------------------------------------------------


def hurt_copy(log: Log, hurt: Callable[[Path], None]) -> Path:
    """Return a copy with a damaged last segment."""
    copy = log.path.with_name("hurt")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(log.path, copy)
    hurt(copy / "commitlog" / log.last_segment)
    return copy


def tail_of(log: Log, count: int) -> list[AppendedRecord]:
    base = int(log.last_segment)
    tail = log.records[-count:]
    assert tail[0].physical_offset >= base, "the tail must be in the last segment"
    return tail


async def assert_goes_on(store: LogStore, found: dict[Place, bytes]) -> dict[Place, bytes]:
    """Assert that appends work and get offsets at which no message was served."""
    added: dict[Place, bytes] = {}
    topics = await store.catalog.list_topics()
    for queue in (ORDERS[0], BILLS[1]):
        if queue.topic not in topics:  # its state record was damaged
            await store.catalog.put_topic(Topic(name=queue.topic))
        appended = await store.append(queue, [Draft(body=b"after"), Draft(body=b"the damage")])
        place = Place(queue, appended.offset)
        seen = [other.offset for other in found if other.queue == queue]
        assert place.offset > max(seen, default=-1), f"{place} was served before and is assigned again"
        added |= {place: b"after", Place(queue, place.offset + 1): b"the damage"}
    now = await read_served(store, QUEUES)
    for place, body in added.items():
        assert record.decode(now[place]).body == body
    for place, data in found.items():
        if place.queue != STATE_QUEUE:
            assert now[place] == data
    return now


async def assert_stays(path: Path, found: dict[Place, bytes]) -> None:
    """Assert that the next start serves the same records."""
    store = open_store(path)
    try:
        again = await read_served(store, QUEUES)
        assert {place: data for place, data in again.items() if place in found} == found
    finally:
        store.close_blocking()


async def look(path: Path, expect: Callable[[dict[Place, bytes]], None], queues: list[Queue], *, at: int) -> None:
    """Open the store and check its served records; at every eighth position also check appends and a restart."""
    store = open_store(path)
    try:
        found = await read_served(store, queues)
        expect(found)
        if at % 8 == 0:
            found = await assert_goes_on(store, {place: data for place, data in found.items() if place.queue in QUEUES})
    finally:
        store.close_blocking()
    if at % 8 == 0:
        await assert_stays(path, found)


# -- the tests --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(1800)
def test_a_log_truncated_at_any_byte_keeps_every_record_before_the_cut(log: Log, tail_records: int, scale: str) -> None:
    tail = tail_of(log, tail_records)
    base = int(log.last_segment)
    with asyncio.Runner() as runner:
        for cut in range(tail[0].physical_offset, tail[-1].end):
            if not is_chosen(log, cut, scale):
                continue
            expected = {laid.place: laid.data for laid in log.records if survives(laid, cut)}

            torn = next(laid for laid in tail if laid.end > cut)
            is_torn_text = field_at(torn.data, max(0, cut - torn.physical_offset)) == "properties"

            def expect(
                found: dict[Place, bytes],
                expected: dict[Place, bytes] = expected,
                except_at: list[Place] = [torn.place] if is_torn_text else [],
            ) -> None:
                assert_same_records(found, expected, except_at=except_at)
                assert_records_match_places(found)

            path = hurt_copy(log, lambda segment, cut=cut: os.truncate(segment, cut - base))  # type: ignore[misc]
            try:
                runner.run(look(path, expect, QUEUES, at=cut))
            except BaseException as cause:
                cause.add_note(f"{log.views} store, cut at physical offset {cut}")
                raise


def survives(laid: AppendedRecord, cut: int) -> bool:
    """Return whether a record is intact: a truncated end comes back as zeros, which may equal the original bytes."""
    kept = laid.data[: max(0, cut - laid.physical_offset)]
    return kept.ljust(len(laid.data), b"\0") == laid.data


def field_at(data: bytes, at: int) -> str:
    """Return the field of a record to which byte `at` belongs."""
    sys_flag = int.from_bytes(data[36:40], "big")
    born, stored = (20 if sys_flag & bit else 8 for bit in (record.BORN_HOST_IPV6_FLAG, record.STORE_HOST_IPV6_FLAG))
    body_bytes = record.FIXED_HEADER_BYTES + born + stored - 16
    body = int.from_bytes(data[body_bytes - 4 : body_bytes], "big")
    topic = data[body_bytes + body]
    fields = [
        ("size", 4), ("magic", 4), ("crc", 4), ("queue id", 4), ("flag", 4), ("queue offset", 8),
        ("physical offset", 8), ("sys flag", 4), ("born time", 8), ("born host", born), ("store time", 8),
        ("store host", stored), ("times consumed", 4), ("half message", 8), ("body length", 4), ("body", body),
        ("topic length", 1), ("topic", topic), ("properties length", 2),
    ]  # fmt: skip
    for name, length in fields:
        if at < length:
            return name
        at -= length
    return "properties"


PROTECTED = {
    "size", "magic", "crc", "physical offset", "body length", "body", "topic length", "properties length",
}  # fmt: skip


BORDERS = {"size", "magic", "sys flag", "body length", "topic length", "properties length"}
"""Without these fields, the end of a record is known only from consume queues. Without those too, the log ends there,
or continues at the next state record or segment: whatever else looks like a record may be part of a body."""

SEALED = {"queue offset", "properties"}
"""Fields of a state record that only its seal protects: with another value in them it may be forged, and then its
lengths say nothing either."""


def is_harmless_crc(data: bytes, at: int, mask: int) -> bool:
    """Return whether the change has no effect: the checksum has 31 bits, and that of an empty body is not verified."""
    return (at == 8 and mask == 0x80) or record.decode(data, expand=False).body == b""


def masks_at(at: int, scale: str) -> list[int]:
    """Return the bits of a byte to change: one of the eight, or (at full scale) the first, the last and all of them."""
    if at == record.SYS_FLAG_POSITION + 3:  # every bit has its own meaning
        return [1 << bit for bit in range(8)]
    return [1 << at % 8] if scale == "smoke" else [0x01, 0x80, 0xFF]


@pytest.mark.timeout(3600)
def test_a_changed_byte_loses_at_most_its_own_record(log: Log, tail_records: int, scale: str) -> None:
    base = int(log.last_segment)
    expected = {laid.place: laid.data for laid in log.records}
    failures: list[str] = []
    with asyncio.Runner() as runner:
        for laid in tail_of(log, tail_records):
            for at in range(len(laid.data)):
                for mask in masks_at(at, scale) if is_chosen(log, laid.physical_offset + at, scale) else ():
                    changed = bytearray(laid.data)
                    changed[at] ^= mask
                    name = field_at(laid.data, at)
                    place = stated_place(bytes(changed))
                    queues = QUEUES if place is None or place.queue in QUEUES else [*QUEUES, place.queue]

                    def expect(
                        found: dict[Place, bytes],
                        laid: AppendedRecord = laid,
                        changed: bytes = bytes(changed),
                        name: str = name,
                        place: Place | None = place,
                        at: int = at,
                        mask: int = mask,
                    ) -> None:
                        moved = {laid.place, place} if log.views != "closed" and place else {laid.place}
                        later: set[Place] = set()
                        ends_unknown = name in BORDERS or (laid.place.queue == STATE_QUEUE and name in SEALED)
                        if log.views != "closed" and ends_unknown:
                            later = {each.place for each in log.records if each.physical_offset > laid.physical_offset}
                        assert_same_records(found, expected, except_at=moved | later)
                        assert_records_match_places(found)
                        mine = [each for each in moved if found.get(each) == changed]
                        assert len(mine) <= 1, "a record is served twice"
                        for each in moved - set(mine) - {laid.place}:
                            assert found.get(each) in (None, expected.get(each)), f"{each} is served with other bytes"
                        if laid.place.queue != STATE_QUEUE:  # a lost state record may have been appended again there
                            assert found.get(laid.place) in (None, changed), (
                                "the served bytes are neither the record nor its damaged form"
                            )
                        is_hurt = name in PROTECTED and not (name == "crc" and is_harmless_crc(laid.data, at, mask))
                        assert not (mine and is_hurt), "a broken record is served"
                        if mine:
                            body = record.decode(changed, expand=False).body
                            assert body == record.decode(laid.data, expand=False).body

                    def change(segment: Path, at: int = at, mask: int = mask, laid: AppendedRecord = laid) -> None:
                        with open(segment, "r+b") as file:
                            file.seek(laid.physical_offset - base + at)
                            file.write(bytes([laid.data[at] ^ mask]))

                    try:
                        runner.run(look(hurt_copy(log, change), expect, queues, at=at))
                    except Exception as cause:
                        text = str(cause).splitlines()[0] if str(cause) else ""
                        failures.append(f"{laid.place} byte {at} ({name}) ^ {mask:#04x}: {type(cause).__name__} {text}")
    assert not failures, f"{log.views} store, {len(failures)} changes:\n" + "\n".join(failures[:60])
