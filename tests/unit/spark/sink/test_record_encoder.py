import numpy as np
import pyarrow as pa
import pytest

from sparrow.model.errors import Refused
from sparrow.spark.sink import record_encoder
from sparrow.spark.sink.message_columns import MessageRows
from sparrow.spark.sink.options import parse_sink_options
from sparrow.spark.sink.record_encoder import BlobBuilder, RecordEncoder, RowIds, compress_bodies, split_rows
from sparrow.wire import queue_batches
from sparrow.wire.bodies import QueueRef
from sparrow.wire.columns import decode
from sparrow.wire.compression import Compression
from sparrow.wire.message_ids import UniqueIdGenerator, parse_unique_id

QUEUES = (QueueRef("t", "a", 0), QueueRef("t", "a", 1), QueueRef("t", "b", 0))
GIVEN = {"nameServers": "127.0.0.1:9876", "topic": "t"}


def ids(now_ms: int = 1_700_000_000_000) -> RowIds:
    return RowIds(UniqueIdGenerator(b"\x7f\0\0\1", 77, 5, lambda: now_ms))


def encoder(**given: str) -> RecordEncoder:
    return RecordEncoder(parse_sink_options(GIVEN | given), ids(), lambda: 1234)


def test_ids_have_the_format_of_java_and_are_unique():
    maker = ids()
    made = maker.make(3).to_pylist() + maker.make(70_000).to_pylist() + maker.make(1).to_pylist()
    assert len(set(made)) == len(made)
    assert made == sorted(made)
    first, last = parse_unique_id(made[0]), parse_unique_id(made[-1])
    assert (first.ip, first.pid, first.generator_id, first.counter) == (b"\x7f\0\0\1", 77, 5, 0)
    assert last.ms_of_month == first.ms_of_month + 1, "a millisecond has 65536 ids"


def test_given_ids_are_kept():
    filled = ids().fill(pa.array(["x", None, "", "y"]), 4).to_pylist()
    assert filled[0] == "x"
    assert filled[3] == "y"
    assert len({filled[1], filled[2]}) == 2
    assert all(len(each) == 32 for each in filled[1:3])


def test_records_contain_the_values_of_their_rows():
    rows = MessageRows(
        pa.array([b"zero", b"", b"two"]),
        keys=pa.array(["k0", None, "k2"]),
        tags=pa.array([None, "T", None]),
        msg_id=pa.array(["id0", "id1", "id2"]),
        sharding_key=pa.array(["s", None, None]),
        born_ms=pa.array([5, None, 7], pa.int64()),
    )
    found = list(encoder(checksum="client").encode_batches(rows, QUEUES, np.array([2, 0, 2])))
    assert [(broker, str(batch.queue)) for broker, batch in found] == [("a", "t/0"), ("b", "t/0")]
    columns = ("body", "keys", "tags", "msg_id", "queue_id", "born_timestamp", "properties")
    first, second = (decode(p.data, sizes=p.sizes, columns=columns, verify_crc=True).to_pylist() for _, p in found)
    assert [row["body"] for row in second] == [b"zero", b"two"]
    assert dict(second[0]["properties"]) == {"KEYS": "k0", "UNIQ_KEY": "id0", "__SHARDINGKEY": "s"}
    assert [first[0][name] for name in ("body", "keys", "tags", "msg_id", "queue_id")] == [b"", None, "T", "id1", 0]
    born = [int(row["born_timestamp"].timestamp() * 1000) for row in (*first, *second)]
    assert born == [1234, 5, 7]


def test_no_blob_exceeds_its_limit_unless_one_record_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_encoder, "BLOB_BYTES_MAX", 1000)
    bodies = [bytes([i]) * (2000 if i == 3 else 100) for i in range(20)]
    gathering, blobs = BlobBuilder("t"), []
    for _, batch in encoder().encode_batches(MessageRows(pa.array(bodies)), QUEUES, np.zeros(20, np.int64)):
        blobs.append(gathering.add(batch))
    blobs.append(gathering.take())
    assert gathering.take() is None
    assert gathering.rows == 20
    found = [queue_batches.decode(blob) for blob in blobs if blob is not None]
    assert all(sum(len(p.data) for p in some) <= 1000 or sum(len(p.sizes) for p in some) == 1 for some in found)
    read = [body for some in found for p in some for body in decode(p.data, columns=["body"]).column(0).to_pylist()]
    assert read == bodies


def test_many_bytes_of_rows_are_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_encoder, "_PIECE_BYTES", 1000)
    rows = MessageRows(pa.array([b"x" * 100] * 50))
    parts = list(split_rows(rows))
    assert len(parts) > 4
    assert sum(map(len, parts)) == 50
    assert [part.row_number(0) for part in parts] == list(np.cumsum([0, *map(len, parts)])[:-1])


@pytest.mark.parametrize("kind", [Compression.ZLIB, Compression.ZSTD])
def test_long_bodies_are_compressed_and_round_trip(kind: Compression):
    bodies = [b"x" * 5000, b"short", bytes(np.random.default_rng(1).integers(0, 256, 5000, np.uint8)), b"y" * 4999]
    _packed, flags = compress_bodies(pa.array(bodies), kind, 4999)
    assert (flags != 0).tolist() == [True, False, False, True], "a body that compression does not shorten must stay"
    made = encoder(compress=kind.name.lower(), compressMinBytes="4999").encode_batches(
        MessageRows(pa.array(bodies)), QUEUES, np.zeros(4, np.int64)
    )
    ((_, batch),) = made
    assert decode(batch.data, columns=["body"]).column(0).to_pylist() == bodies
    assert len(batch.data) < 7000
    assert compress_bodies(pa.array([b"a"]), kind, 4999) == (pa.array([b"a"]), 0)


def properties(*maps: dict[str, str]) -> MessageRows:
    entries = [list(each.items()) for each in maps]
    return MessageRows(pa.array([b""] * len(maps)), properties=pa.array(entries, pa.map_(pa.string(), pa.string())))


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
def test_a_delayed_row_is_refused_with_its_number(name: str):
    with pytest.raises(Refused, match=rf"row 1 of its partition has the property {name}.*delivery=atLeastOnce"):
        list(encoder().encode_batches(properties({}, {name: "1235"}), QUEUES, np.zeros(2, np.int64)))


def test_a_row_with_an_expired_delay_is_an_ordinary_row():
    rows = properties({"TIMER_DELIVER_MS": "1234"}, {"DELAY": "0"}, {"TRAN_MSG": "true"})
    ((_, batch),) = encoder().encode_batches(rows, QUEUES, np.zeros(3, np.int64))
    assert len(batch.sizes) == 3


def test_no_blob_has_more_batches_than_a_broker_accepts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(queue_batches, "BATCHES_MAX", 2)
    gathering = BlobBuilder("t")
    rows = MessageRows(pa.array([b"x"]))
    (one,) = (batch for _, batch in encoder().encode_batches(rows, QUEUES, np.zeros(1, np.int64)))
    blobs = [blob for blob in (gathering.add(one) for _ in range(5)) if blob is not None]
    assert [len(queue_batches.decode(blob, batches_max=2)) for blob in blobs] == [2, 2]
    assert gathering.rows == 5
