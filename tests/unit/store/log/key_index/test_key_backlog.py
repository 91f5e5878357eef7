"""The key backlog: its order, its size, and truncation."""

from array import array

import numpy as np
import pyarrow as pa
import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import SMALL_SETTINGS

from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.key_index.key_backlog import KeyBacklog, KeyedRun
from sparrow.wire import columns, record

Q = Queue("T", 0)


def run_of(*keys: str) -> columns.RecordKeys:
    encoded = columns.encode(pa.array([b"body"] * len(keys), pa.binary()), topic="T", keys=pa.array(keys))
    return columns.LogRecords.locate(encoded.data, columns.starts_from_sizes(encoded.sizes)).keys()


def add_run(key_backlog: KeyBacklog, *places: int) -> columns.RecordKeys:
    keys = run_of(*(f"k{at}" for at in places))
    key_backlog.add_run(keys, np.array(places, np.int64), 7)
    return keys


def shape(items) -> list[tuple[str, list[int]]]:
    return [
        ("run", part.places.tolist()) if isinstance(part, KeyedRun) else ("places", part.tolist()) for part in items
    ]


@pytest.fixture
def key_backlog():
    return KeyBacklog()


@pytest.fixture
def mixed(key_backlog):
    """Single records, a run of four, single records."""
    key_backlog.add_offsets([10, 20])
    add_run(key_backlog, 30, 40, 50, 60)
    key_backlog.add_offsets([70])
    key_backlog.add_offsets([80])
    return key_backlog


def test_order_is_kept_and_single_records_are_merged(mixed):
    assert shape(mixed.take()) == [("places", [10, 20]), ("run", [30, 40, 50, 60]), ("places", [70, 80])]


def test_runs_are_not_merged(key_backlog):
    add_run(key_backlog, 10)
    add_run(key_backlog, 20)
    assert shape(key_backlog.take()) == [("run", [10]), ("run", [20])]


def test_every_record_is_counted(mixed):
    assert mixed.count == 8


def test_take_empties_the_backlog(mixed):
    assert len(mixed.take()) == 3
    assert (mixed.take(), mixed.count, mixed.held_bytes) == ([], 0, 0)


def test_only_runs_hold_memory(key_backlog):
    key_backlog.add_offsets(range(1000))
    assert key_backlog.held_bytes == 0
    first = add_run(key_backlog, 10, 20)
    second = add_run(key_backlog, 30)
    assert key_backlog.held_bytes == first.held_bytes + second.held_bytes > 0


def test_records_put_back_come_first(mixed):
    held, taken = mixed.held_bytes, mixed.take()
    mixed.add_offsets([90])
    later = add_run(mixed, 100)
    mixed.put_back(taken[1:])
    assert (mixed.count, mixed.held_bytes) == (8, held + later.held_bytes)
    assert shape(mixed.take()) == [
        ("run", [30, 40, 50, 60]),
        ("places", [70, 80]),
        ("places", [90]),
        ("run", [100]),
    ]


def test_records_can_be_added_after_put_back(mixed):
    mixed.put_back(mixed.take())
    mixed.add_offsets([90])
    assert mixed.count == 9
    assert shape(mixed.take())[-1] == ("places", [70, 80, 90])


def test_truncating_inside_a_run_leaves_offsets_to_be_read_from_the_log(mixed):
    mixed.truncate(50)
    assert (mixed.count, mixed.held_bytes) == (4, 0)
    items = mixed.take()
    assert [at for part in items for at in part] == [10, 20, 30, 40]
    assert not any(isinstance(part, KeyedRun) for part in items)


@pytest.mark.parametrize(("end", "count"), [(0, 0), (10, 0), (11, 1), (30, 2), (70, 6), (80, 7), (81, 8)])
def test_truncating_keeps_the_records_before_the_cut(mixed, end, count):
    mixed.truncate(end)
    assert mixed.count == count
    left = [at for _, places in shape(mixed.take()) for at in places]
    assert left == [10, 20, 30, 40, 50, 60, 70, 80][:count]


def test_a_run_before_the_cut_stays_a_run(mixed):
    held = mixed.held_bytes
    mixed.truncate(61)
    assert mixed.held_bytes == held
    assert ("run", [30, 40, 50, 60]) in shape(mixed.take())


def test_records_can_be_added_after_truncate(mixed):
    mixed.truncate(45)
    mixed.add_offsets([45])
    add_run(mixed, 55)
    assert mixed.count == 6
    assert [at for _, places in shape(mixed.take()) for at in places] == [10, 20, 30, 40, 45, 55]


def test_offsets_are_stored_as_eight_byte_integers(key_backlog):
    key_backlog.add_offsets(iter([1, 1 << 62]))
    (places,) = key_backlog.take()
    assert places == array("q", [1, 1 << 62])


# -- through the store ------------------------------------------------------------------------------------------------


@pytest.fixture
async def store(tmp_path):
    async with LogStore(tmp_path, SMALL_SETTINGS) as store:
        await store.catalog.put_topic(Topic(name="T"))
        yield store


async def found(store: LogStore, key: str) -> list[bytes]:
    return [record.decode(data).body for data in await store.find_by_key("T", key)]


@pytest.mark.parametrize("extra", [{}, {"tags": ["x", None, "z"]}], ids=["regular", "irregular"])
async def test_keys_of_a_run_are_correct_although_the_caller_overwrites_its_buffer(store, extra):
    encoded = columns.encode(
        pa.array([b"0", b"1", b"2"], pa.binary()),
        topic="T",
        keys=pa.array(["k0", "k1 shared", "k2 shared"]),
        msg_ids=pa.array(["u0", "u1", "u2"]),
        **{name: pa.array(values) for name, values in extra.items()},
    )
    buffer = bytearray(encoded.data)
    with store._threads.maintenance.paused():
        store.append_encoded_nowait(Q, buffer, encoded.sizes)
        assert store._writer.key_backlog.held_bytes > 0
        buffer[:] = b"\xff" * len(buffer)
    for n in range(3):
        assert await found(store, f"k{n}") == await found(store, f"u{n}") == [b"%d" % n]
    assert await found(store, "shared") == [b"1", b"2"]
    assert (store._writer.key_backlog.count, store._writer.key_backlog.held_bytes) == (0, 0)


async def test_the_next_run_in_the_same_buffer_does_not_change_the_keys_of_the_last(store):
    buffer = bytearray()
    with store._threads.maintenance.paused():
        for n in range(5):
            body, keys = pa.array([b"%d" % n] * 2, pa.binary()), pa.array([f"k{n}", f"l{n}"])
            encoded = columns.encode(body, topic="T", keys=keys)
            buffer[:] = bytes(encoded.data)
            store._writer.append_encoded(
                store._appendable(Q), memoryview(buffer), encoded.sizes.astype(np.int64), verify_crc=True
            )
    for n in range(5):
        assert await found(store, f"k{n}") == await found(store, f"l{n}") == [b"%d" % n]


async def test_keys_of_runs_and_single_records_are_found_in_log_order(store):
    with store._threads.maintenance.paused():
        store.append_nowait(Q, [make_draft("0", keys="k")])
        encoded = columns.encode(pa.array([b"1", b"2"], pa.binary()), topic="T", keys=pa.array(["k", "k"]))
        store.append_encoded_nowait(Q, encoded.data, encoded.sizes)
        store.append_nowait(Q, [make_draft("3", keys="k")])
    assert await found(store, "k") == [b"0", b"1", b"2", b"3"]


async def test_keys_of_the_kept_part_of_a_truncated_run_are_found(store):
    encoded = columns.encode(
        pa.array([b"0", b"1", b"2"], pa.binary()), topic="T", keys=pa.array(["k"] * 3), msg_ids=pa.array(list("abc"))
    )
    with store._threads.maintenance.paused():
        places = store.append_encoded_nowait(Q, encoded.data, encoded.sizes).physical_offsets
        assert store._writer.key_backlog.held_bytes > 0, "the run must not be indexed before the cut"
        store.replica.truncate(places[2])
    assert await found(store, "k") == [b"0", b"1"]
    assert await found(store, "c") == []
