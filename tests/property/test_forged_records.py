"""Bodies that contain whole records, under any damage to the log: recovery yields no record that was not appended.

An attacker knows the format, guesses the physical offset at which each byte of a body comes to lie, and fills bodies
with records and state records for these places. Then pages are zeroed, bytes are changed or the tail is cut, with or
without the files of the consume queues. What recovery yields is a subset of what was appended, in order, and the state
has nothing that the store did not write.
"""

import asyncio
import atexit
import functools
import itertools
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fault.store_contents import folder_in_memory
from tests.support.drafts import make_draft
from tests.support.log_stores import SMALL_SETTINGS, checkpoint, copy_as_crashed

from sparrow.model.access.token import Token
from sparrow.model.errors import DataLost
from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.readonly.store_directory import StoreDirectory
from sparrow.store.log.state.updates import STATE_QUEUE, TokenUpdate, TopicUpdate
from sparrow.store.spi import AtEnd, Moved, Slice
from sparrow.wire import columns, record

Q, OTHER = Queue("T", 0), Queue("T", 1)
PAGE_BYTES = 512
FORGED_TOKEN = Token(id=99, name="forged", secret=b"secret", kind="p", created_ms=1)
HEADER_TO_BODY = record.FIXED_HEADER_BYTES


def hostile_body(place: int, queue_offset: int, state_offset: int, kinds: str) -> bytes:
    """Return a body of whole records, for the places at which they come to lie if the message lies at `place`."""
    parts: list[bytes] = []
    at = place + HEADER_TO_BODY
    for kind in kinds:
        message = StoredMessage(topic=Q.topic, body=b"forged", queue_offset=queue_offset, physical_offset=at)
        if kind == "s":
            updates = [TokenUpdate(FORGED_TOKEN), TopicUpdate("forged", Topic(name="forged"))]
            message = StoredMessage(
                topic=STATE_QUEUE.topic,
                body=msgspec.json.encode(updates),
                queue_offset=state_offset,
                physical_offset=at,
            )
        parts.append(record.encode_message(message))
        at += len(parts[-1])
    return b"".join(parts)


@dataclass(frozen=True)
class Damage:
    """One change of the bytes of the log, at a fraction of its length."""

    kind: str
    where: float
    mask: int


damages = st.builds(
    Damage,
    st.sampled_from(["page", "header", "byte", "cut"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 255),
)


def damage_log(path: Path, end: int, starts: list[int], damage: Damage) -> None:
    at = int(end * damage.where)
    length = 1
    if damage.kind == "page":
        at, length = at - at % PAGE_BYTES, PAGE_BYTES
    elif damage.kind == "header":  # the most dangerous place: the size of a record is lost
        at, length = starts[int(len(starts) * damage.where)], 8
    elif damage.kind == "cut":
        length = SMALL_SETTINGS.segment_bytes
    base = at - at % SMALL_SETTINGS.segment_bytes
    file = path / "commitlog" / f"{base:020d}"
    data = bytearray(file.read_bytes())
    stop = min(at - base + length, len(data))
    for position in range(at - base, stop):
        data[position] = data[position] ^ damage.mask if damage.kind == "byte" else 0
    file.write_bytes(data)


async def written_store(folder: Path, kinds: list[str], checkpoint_after: int) -> tuple[list[tuple[int, bytes]], int]:
    """Append hostile and honest messages; return the place and body of each record, and the end of the log."""
    appended: list[tuple[int, bytes]] = []
    store = LogStore(folder / "living", SMALL_SETTINGS)
    try:
        await store.catalog.put_topic(Topic(name="T", read_queues=2, write_queues=2))
        for number, kind in enumerate(kinds):
            body = b"honest %d" % number
            if kind:
                # Where it comes to lie is known but for the end of a segment, as an attacker sees from message ids.
                place = int(store.written)
                state_offset = int(store._queues.get(STATE_QUEUE).end)  # type: ignore[union-attr]
                body = hostile_body(place, int(store.bounds_nowait(Q).end), state_offset, kind)
            queue = Q if number % 3 else OTHER
            found = await store.append(queue, [make_draft(body)])
            appended.append((int(found.physical_offsets[0]), body))
            if number == checkpoint_after:
                await asyncio.to_thread(checkpoint, store)
        end = int(store.written)
        await asyncio.to_thread(copy_as_crashed, store, folder / "left")
    finally:
        await store.close()
    return appended, end


async def check_recovery(path: Path, appended: list[tuple[int, bytes]]) -> None:
    store = LogStore(path, SMALL_SETTINGS)
    try:
        assert "forged" not in store._state.tables.tokens, "a forged token is accepted"
        assert "forged" not in store._state.tables.topics, "a forged topic is accepted"
        known = dict(appended)
        for queue in (Q, OTHER):
            places = []
            for message in await read_all(store, queue):
                assert known.get(message.physical_offset) == message.body, "a record that was never appended"
                places.append(message.physical_offset)
            assert places == sorted(places)
        await store.catalog.put_topic(Topic(name="T", read_queues=2, write_queues=2))
        await store.append(Q, [make_draft(b"after")])
    finally:
        await store.close()


async def read_all(store: LogStore, queue: Queue) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    offset = 0
    while not isinstance(result := await store.read(queue, offset, count_max=100), AtEnd):
        if isinstance(result, Moved):
            offset = result.to
            continue
        assert isinstance(result, Slice)
        found += record.decode_all(result.tobytes(), expand=False)  # a changed flag may say that a body is compressed
        offset = int(result.next_offset)
    return found


def lose_views(path: Path, lost: str) -> None:
    if lost in ("checkpoint", "queues"):
        (path / "sparrow.checkpoint").unlink(missing_ok=True)
    if lost == "queues":
        shutil.rmtree(path / "consumequeue", ignore_errors=True)
        (path / "sparrow.state").unlink(missing_ok=True)


@functools.cache
def prepared_store(kinds: tuple[str, ...], checkpoint_after: int) -> tuple[Path, list[tuple[int, bytes]], int]:
    """Return a store that was killed, the records in it, and the end of its log. It is made once."""
    folder = Path(_folders.enter_context(folder_in_memory()))
    with asyncio.Runner() as runner:
        return folder / "left", *runner.run(written_store(folder, list(kinds), checkpoint_after))


_folders = ExitStack()
atexit.register(_folders.close)


@settings(max_examples=max(30, settings().max_examples // 4))
@given(
    kinds=st.sampled_from(
        [("ms", "", "smm", "", "s", "m", ""), ("", "s", "s", "ms", "", ""), ("smm", "smm", "ms", "s", "m", "", "ms")]
    ),
    checkpoint_after=st.sampled_from([-1, 1, 4]),
    lost=st.sampled_from(["nothing", "checkpoint", "queues"]),
    changes=st.lists(damages, min_size=1, max_size=3),
)
def test_no_body_becomes_a_record_under_any_damage(
    kinds: tuple[str, ...], checkpoint_after: int, lost: str, changes: list[Damage]
) -> None:
    left, appended, end = prepared_store(kinds, checkpoint_after)
    with folder_in_memory() as folder:
        path = folder / "store"
        shutil.copytree(left, path)
        for change in changes:
            damage_log(path, end, [place for place, _ in appended], change)
        lose_views(path, lost)
        with asyncio.Runner() as runner:
            runner.run(check_recovery(path, appended))


def check_scan(path: Path, appended: list[tuple[int, bytes]], end: int, step: int) -> None:
    """Check that a reader of the files, which begins at any place, finds no record that was not appended."""
    known, directory = dict(appended), StoreDirectory(path)
    for start in range(0, end, step):
        try:
            parts = list(directory.scan(start, min(start + step, end), rows_max=100))
        except DataLost:  # a segment without bytes
            continue
        for part in parts:
            for at in part.starts.tolist():
                place = record.physical_offset_of(part.view[at:])
                assert start <= place < start + step
                if not columns.find_valid(part.view, [at], base=place - at)[0]:
                    continue  # damaged content, as every reader of the parts sees
                message = record.decode(part.view, at, expand=False)
                if message.topic != STATE_QUEUE.topic:
                    assert known.get(message.physical_offset) == message.body, "a record that was never appended"


@settings(max_examples=max(30, settings().max_examples // 4))
@given(
    kinds=st.sampled_from([("ms", "", "smm", "", "s", "m", ""), ("smm", "smm", "ms", "s", "m", "", "ms")]),
    checkpoint_after=st.sampled_from([-1, 1, 4]),
    changes=st.lists(damages, min_size=0, max_size=3),
    step=st.integers(97, 5_000),
)
def test_no_body_becomes_a_record_for_readers_of_the_files(
    kinds: tuple[str, ...], checkpoint_after: int, changes: list[Damage], step: int
) -> None:
    left, appended, end = prepared_store(kinds, checkpoint_after)
    with folder_in_memory() as folder:
        path = folder / "store"
        shutil.copytree(left, path)
        for change in changes:
            damage_log(path, end, [place for place, _ in appended], change)
        check_scan(path, appended, end, step)


def test_every_lost_header_of_a_hostile_record_is_survived(tmp_path: Path) -> None:
    """The attack itself: a record in a body becomes a record, once the page with the header around it is zeroed."""
    kinds = ("ms", "", "smm", "", "s", "m", "")
    left, appended, _ = prepared_store(kinds, 1)
    with asyncio.Runner() as runner:
        for number, lost in itertools.product(range(len(kinds)), ("nothing", "checkpoint", "queues")):
            path = tmp_path / f"{number}-{lost}"
            shutil.copytree(left, path)
            place = appended[number][0]
            base = place - place % SMALL_SETTINGS.segment_bytes
            with open(path / "commitlog" / f"{base:020d}", "r+b") as file:
                file.seek(place - base)
                file.write(bytes(HEADER_TO_BODY))
            lose_views(path, lost)
            runner.run(check_recovery(path, appended))
