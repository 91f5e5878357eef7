"""Rows written by the sink: every row reaches its queue once and in order."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sparrow.client.produce.queue_selection import by_hash
from sparrow.model.message import Message
from sparrow.model.protocol import PROPERTY_SHARDING_KEY
from sparrow.spark.sink import record_encoder
from sparrow.spark.sink.message_columns import MessageRows, add_map_entry
from sparrow.spark.sink.options import parse_sink_options
from sparrow.spark.sink.partition_writer import rechunk
from sparrow.spark.sink.queue_selection import ANY_QUEUE, select_queues, sort_by_queue
from sparrow.spark.sink.record_encoder import BlobBuilder, RecordEncoder, RowIds, split_rows
from sparrow.wire import queue_batches
from sparrow.wire.bodies import QueueRef
from sparrow.wire.columns import decode
from sparrow.wire.message_ids import UniqueIdGenerator

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
MAP = pa.map_(pa.string(), pa.string())
NAMES = st.text("abcde", min_size=1, max_size=3)


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[MessageRows, int]:
    """Rows of one topic, and the number of its write queues."""
    queues = draw(st.integers(1, 9))
    count = draw(st.integers(1, 30))

    def column(values: st.SearchStrategy[object], kind: pa.DataType) -> pa.Array | None:
        if draw(st.booleans()):
            return None
        return pa.array(draw(st.lists(st.none() | values, min_size=count, max_size=count)), kind)

    bodies = draw(st.lists(st.binary(max_size=60), min_size=count, max_size=count))
    entries = st.dictionaries(NAMES, TEXT, max_size=3).map(lambda found: list(found.items()))
    return MessageRows(
        pa.array(bodies, pa.binary()),
        queue_id=column(st.integers(0, queues - 1), pa.int64()),
        keys=column(TEXT, pa.string()),
        tags=column(TEXT, pa.string()),
        properties=column(entries, MAP),
        msg_id=column(TEXT, pa.string()),
        sharding_key=column(TEXT, pa.string()),
        born_ms=column(st.integers(0, 1 << 40), pa.int64()),
    ), queues


def queues_of(count: int) -> tuple[QueueRef, ...]:
    """Queues on two brokers; the second has one more if the number is odd."""
    return tuple(QueueRef("t", "a" if i < count // 2 else "b", i) for i in range(count))


@given(some_rows(), st.integers(150, 2000), st.booleans())
def test_every_row_reaches_its_queue_once_and_in_order(made: tuple[MessageRows, int], blob_bytes: int, by_client: bool):
    rows, count = made
    queues = queues_of(count)
    given = {"nameServers": "127.0.0.1:1", "topic": "t", "checksum": "client" if by_client else "broker"}
    encoder = RecordEncoder(
        parse_sink_options(given), RowIds(UniqueIdGenerator(b"\x7f\0\0\1", 1, 1, lambda: 5)), lambda: 9
    )
    places = select_queues(rows, count)
    before, record_encoder.BLOB_BYTES_MAX = record_encoder.BLOB_BYTES_MAX, blob_bytes
    try:
        gathered: dict[str, BlobBuilder] = {}
        blobs: list[tuple[str, bytes | None]] = []
        for piece in split_rows(rows):
            for broker, batch in encoder.encode_batches(piece, queues, select_queues(piece, count)):
                blobs.append((broker, gathered.setdefault(broker, BlobBuilder("t")).add(batch)))
        blobs += [(broker, each.take()) for broker, each in gathered.items()]
    finally:
        record_encoder.BLOB_BYTES_MAX = before
    arrived: dict[QueueRef, list[dict[str, object]]] = {queue: [] for queue in queues}
    for broker, blob in blobs:
        for batch in queue_batches.decode(blob) if blob is not None else ():
            columns = ("body", "keys", "tags", "msg_id", "queue_id", "properties")
            found = decode(batch.data, sizes=batch.sizes, columns=columns, verify_crc=by_client).to_pylist()
            assert {row["queue_id"] for row in found} == {batch.queue.id}
            arrived[QueueRef("t", broker, batch.queue.id)] += found
    for place, queue in enumerate(queues):
        mine = rows.take(np.flatnonzero(places == place))
        assert [row["body"] for row in arrived[queue]] == mine.body.to_pylist()
        assert [row["keys"] for row in arrived[queue]] == texts(mine.keys, len(mine))
        assert [row["tags"] for row in arrived[queue]] == texts(mine.tags, len(mine))
        wanted = texts(mine.msg_id, len(mine))
        assert all(
            row["msg_id"] == each or (each is None and len(str(row["msg_id"])) == 32)
            for row, each in zip(arrived[queue], wanted, strict=True)
        )
        keys = texts(mine.sharding_key, len(mine))
        assert [dict(row["properties"]).get(PROPERTY_SHARDING_KEY) for row in arrived[queue]] == keys  # type: ignore[call-overload]


def texts(column: pa.Array | None, count: int) -> list[str | None]:
    """Texts as records store them: empty ones are omitted."""
    return [each or None for each in column.to_pylist()] if column is not None else [None] * count


@given(some_rows())
def test_the_queue_of_a_row_does_not_depend_on_other_rows(made: tuple[MessageRows, int]):
    rows, count = made
    together = select_queues(rows, count).tolist()
    assert together == [int(select_queues(rows.slice(i, 1), count)[0]) for i in range(len(rows))]
    anywhere = select_queues(rows, count, allows_any_queue=True).tolist()
    for i, (place, loose) in enumerate(zip(together, anywhere, strict=True)):
        said = rows.queue_id[i].as_py() if rows.queue_id is not None else None
        key = next((each for each in (text_at(rows.sharding_key, i), text_at(rows.keys, i)) if each), None)
        if said is not None:
            assert place == loose == said
        elif key is not None:
            queue = by_hash(key)(queues_of(count), Message(topic="t"))
            assert queues_of(count)[place] == queue
            assert loose == place
        else:
            assert loose == ANY_QUEUE


def text_at(column: pa.Array | None, at: int) -> str | None:
    return None if column is None else column[at].as_py()


@given(st.lists(st.integers(-1, 5), max_size=50))
def test_sorting_by_queue_is_stable_and_keeps_every_row(places: list[int]):
    order, shares = sort_by_queue(np.array(places, np.int64))
    assert sorted(order.tolist()) == list(range(len(places)))
    for place, share in shares:
        assert order[share].tolist() == [row for row, each in enumerate(places) if each == place]


@given(st.lists(st.lists(st.binary(max_size=3), max_size=9), max_size=9), st.integers(1, 7))
def test_chunks_do_not_depend_on_the_sizes_of_the_input_batches(batches: Sequence[list[bytes]], rows: int):
    made = list(rechunk((pa.record_batch({"body": pa.array(some, pa.binary())}) for some in batches), rows))
    flat = [body for some in batches for body in some]
    assert [batch.column(0).to_pylist() for batch in made] == [flat[at : at + rows] for at in range(0, len(flat), rows)]


@given(st.lists(st.none() | st.dictionaries(NAMES, TEXT, max_size=3), max_size=12), st.data())
def test_an_entry_is_added_to_every_map(maps: list[dict[str, str] | None], data: st.DataObject):
    values = data.draw(st.lists(st.none() | TEXT, min_size=len(maps), max_size=len(maps)))
    start = data.draw(st.integers(0, len(maps)))
    array = pa.array([None if each is None else list(each.items()) for each in maps], MAP).slice(start)
    joined = add_map_entry(array, "new", pa.array(values, pa.string()).slice(start))
    joined.validate(full=True)
    assert [dict(each) for each in joined.to_pylist()] == [
        {**(each or {}), "new": value} for each, value in zip(maps[start:], values[start:], strict=True)
    ]
