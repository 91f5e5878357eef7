"""The columnar codec against loops with `struct`, and against copying the same bytes.

The columnar side processes batches of 8192 records. The goals refer to a decode loop that keeps its rows, as a program
that needs them does; the report also shows a loop that drops its rows after each batch, which spares the garbage
collector. The goal for encoding excludes the checksum, which is one C call per body on both sides.

Batches (request 320) are compared with the loop of `wire/batch` and the surrounding work of a sender or a broker. Their
bodies have one size, which is common; "mixed sizes" has the bodies of the rest of this bench.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from struct import Struct
from typing import Any

import numpy as np
import pyarrow as pa

from _harness import Row, cpu_seconds, is_smoke, report
from sparrow.model.message import Draft
from sparrow.wire import batch, columns, hashes, message_ids, record
from sparrow.wire.checksum import crc32
from sparrow.wire.columns import batch as columns_batch
from sparrow.wire.record import MAGIC_V1
from sparrow.wire.undecodable import UndecodableBodies

TOPIC = "bench_topic"
HOST = b"\x7f\0\0\1\0\0\0\0"
CLUSTER = b"CLUSTER\x01DefaultCluster\x02"
BATCH = 1024 if is_smoke() else 8192
RAW = (*columns.DEFAULT_COLUMNS[:5], "body", "properties_raw")

_FIXED = Struct(">iiIiiqqiq8sq8siqi")


def loop_decode(buf: bytes, at: int, end: int) -> list[tuple[Any, ...]]:
    rows, unpack = [], _FIXED.unpack_from
    while at < end:
        size, _, _, queue_id, _, queue_offset, _, _, born, _, stored, _, again, _, body_bytes = unpack(buf, at)
        x = at + 88 + body_bytes
        body = buf[at + 88 : x]
        x += 1 + buf[x]
        length = (buf[x] << 8) | buf[x + 1]
        text = buf[x + 2 : x + 2 + length].decode()
        props = dict(entry.split("\x01", 1) for entry in text.split("\x02") if entry)
        rows.append((queue_id, queue_offset, stored, born, again, props.get("KEYS"), props.get("TAGS"), body, props))
        at += size
    return rows


def loop_encode(bodies: list[bytes], keys: list[str], marks: list[str], ids: list[str]) -> bytes:
    topic = bytes([len(TOPIC)]) + TOPIC.encode()
    out: list[bytes] = []
    for body, key, mark, unique in zip(bodies, keys, marks, ids, strict=True):
        props = f"KEYS\x01{key}\x02TAGS\x01{mark}\x02UNIQ_KEY\x01{unique}\x02".encode()
        size = 88 + len(body) + len(topic) + 2 + len(props)
        crc = crc32(body) & 0x7FFFFFFF
        out.append(_FIXED.pack(size, MAGIC_V1, crc, 0, 0, 0, 0, 0, 0, HOST, 0, HOST, 0, 0, len(body)))
        out += (body, topic, len(props).to_bytes(2, "big"), props)
    return b"".join(out)


def loop_stamp(buf: bytearray, starts: list[int], store_ms: int) -> None:
    two, one = Struct(">qq").pack_into, Struct(">q").pack_into
    for i, start in enumerate(starts):
        two(buf, start + 20, i, start)
        one(buf, start + 56, store_ms)


class RecordSamples:
    """Records whose body sizes vary by a fifth, so that no code path can use equal sizes."""

    def __init__(self, body_bytes: int, batches: int) -> None:
        rng = np.random.default_rng(7)
        self.count = count = batches * BATCH
        lengths = rng.integers(int(body_bytes * 0.8), int(body_bytes * 1.2) + 1, count)
        data = rng.integers(0, 256, int(lengths.sum()), dtype=np.uint8)
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        self.body = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        self.keys = pa.array([f"order-{i}" for i in range(count)])
        self.tags = pa.array([f"Tag{i % 5}" for i in range(count)])
        self.ids = pa.array([f"7F0000010001{i:020X}" for i in range(count)])
        encoded = columns.encode(self.body, topic=TOPIC, keys=self.keys, tags=self.tags, msg_ids=self.ids)
        self.starts = columns.starts_from_sizes(encoded.sizes)
        self.plain = bytes(encoded.data)
        stamped = bytearray(self.plain)
        columns.stamp_offsets(
            stamped, self.starts, queue_offset=np.arange(count), physical_offset=self.starts, store_ms=1_700_000_000_123
        )
        self.buf = bytes(stamped)
        self.cuts = [self.starts[i : i + BATCH] for i in range(0, count, BATCH)]
        self.ends = [*(int(cut[0]) for cut in self.cuts[1:]), len(self.buf)]
        self.lists = [
            tuple(column[i : i + BATCH].to_pylist() for column in (self.body, self.keys, self.tags, self.ids))
            for i in range(0, count, BATCH)
        ]

    def batches(self) -> Iterator[tuple[np.ndarray[Any, Any], int]]:
        return zip(self.cuts, self.ends, strict=True)

    def check(self) -> None:
        """Assert that both sides return the same values."""
        assert self.plain == b"".join(loop_encode(*lists) for lists in self.lists)
        batch = columns.decode(self.buf, self.starts, verify_crc=True)
        batch.validate(full=True)
        rows = loop_decode(self.buf, 0, len(self.buf))
        for i in (0, 1, 4, 5, 6, 7):
            assert batch.column(i).to_pylist() == [row[i] for row in rows]
        assert [dict(entries) for entries in batch.column(8).to_pylist()] == [row[8] for row in rows]
        assert (columns.find_starts(self.buf) == self.starts).all()
        again = columns.encode(self.body, topic=TOPIC, properties=batch.column(8))
        assert bytes(again.data) == self.plain
        assert columns.find_valid(self.buf, self.starts, base=0).all()
        assert columns.tags_codes(self.buf, self.starts).tolist() == [hashes.tags_code(row[6]) for row in rows]
        by_loop = bytearray(self.plain)
        loop_stamp(by_loop, self.starts.tolist(), 1_700_000_000_123)
        assert bytes(by_loop) == self.buf


def measure(body_bytes: int, batches: int, rounds: int, goals: dict[str, float]) -> list[Row]:
    given = RecordSamples(body_bytes, batches)
    given.check()
    size = f"{body_bytes} B"
    rows: list[Row] = []

    def cost(name: str, work: Callable[[], object]) -> float:
        ns = cpu_seconds(work, rounds) / given.count * 1e9
        rows.append(Row(f"{size} {name}", ns, "ns/message"))
        return ns

    def ratio(name: str, ns: float, loop_ns: float) -> None:
        if name.startswith("decode"):
            rows.append(Row(f"{size} {name}", keeping / ns, "x loop", goals.get(name)))
            rows.append(Row(f"{size} {name}", loop_ns / ns, "x loop dropping its rows"))
        else:
            rows.append(Row(f"{size} {name}", loop_ns / ns, "x loop", goals.get(name)))
        rows.append(Row(f"{size} {name}", ns / copied, "x copyto"))

    def decoded(**options: Any) -> None:
        for starts in given.cuts:
            columns.decode(given.buf, starts, **options)

    source = np.frombuffer(given.buf, np.uint8)
    target = np.empty_like(source)
    copied = cost("np.copyto of the records", lambda: np.copyto(target, source))

    loop = cost(
        "decode, struct loop",
        lambda: [None for s, end in given.batches() if not loop_decode(given.buf, int(s[0]), end)],
    )
    keeping = cost("decode, struct loop keeping all rows", lambda: loop_decode(given.buf, 0, len(given.buf)))
    for name, options in {
        "decode, 9 columns": {},
        "decode, 9 columns and decode_error": {
            "columns": columns.TABLE_COLUMNS,
            "undecodable": UndecodableBodies("null", "bench_topic/bench/0"),
        },
        "decode, raw properties": {"columns": RAW},
        "decode, body only": {"columns": ("body",)},
        "decode, 9 columns and checksum": {"verify_crc": True},
    }.items():
        ratio(name, cost(name, lambda options=options: decoded(**options)), loop)  # type: ignore[misc]

    def hopped() -> None:
        for starts, end in given.batches():
            columns.decode(given.buf, columns.find_starts(given.buf, int(starts[0]), end))

    ratio("decode, 9 columns, starts by hop", cost("decode, 9 columns, starts by hop", hopped), loop)

    loop = cost("encode, struct loop", lambda: [None for lists in given.lists if not loop_encode(*lists)])

    def encoded(checksum: bool) -> None:
        for i in range(0, given.count, BATCH):
            body, keys, marks, ids = (each[i : i + BATCH] for each in (given.body, given.keys, given.tags, given.ids))
            columns.encode(body, topic=TOPIC, keys=keys, tags=marks, msg_ids=ids, checksum=checksum)

    ratio("encode", cost("encode", lambda: encoded(True)), loop)
    name = "encode, no checksum"
    ratio(name, cost(name, lambda: encoded(False)), loop)

    stamped = bytearray(given.buf)
    lists = [starts.tolist() for starts in given.cuts]
    loop = cost("stamp, struct loop", lambda: [loop_stamp(stamped, starts, 1) for starts in lists])
    offsets = np.arange(BATCH)

    def stamp() -> None:
        for starts in given.cuts:
            columns.stamp_offsets(stamped, starts, queue_offset=offsets, physical_offset=starts, store_ms=1)

    ratio("stamp", cost("stamp", stamp), loop)
    cost("check", lambda: [columns.find_valid(given.buf, starts, base=0) for starts in given.cuts])
    cost("tags codes", lambda: [columns.tags_codes(given.buf, starts) for starts in given.cuts])
    cost("index keys", lambda: [columns.index_keys(given.buf, starts) for starts in given.cuts])
    return rows


def loop_batch(bodies: list[bytes], keys: list[str], marks: list[str]) -> bytes:
    return batch.encode(
        (0, body, f"KEYS\x01{key}\x02TAGS\x01{mark}\x02".encode())
        for body, key, mark in zip(bodies, keys, marks, strict=True)
    )


def loop_records(received: bytes) -> bytes:
    topic, out = record.topic_field(TOPIC.encode()), []
    for flag, body, props in batch.decode(received):
        draft = Draft(body=body, properties=props + CLUSTER, flag=flag, born_ms=1, born_host=HOST)
        size = record.record_size(draft, topic, HOST)
        out.append(
            record.encode(
                draft,
                topic,
                size=size,
                queue_id=0,
                queue_offset=0,
                physical_offset=0,
                store_ms=0,
                store_host=bytes(8),
            )
        )
    return b"".join(out)


def columnar_records(received: bytes) -> columns.EncodedRecords:
    return columns_batch.batch_to_records(
        received, topic=TOPIC, sys_flag=0, born_ms=1, born_host=HOST, extra_properties=CLUSTER
    )


def measure_batches(batches: int, rounds: int, goals: dict[str, float]) -> list[Row]:
    rows: list[Row] = []
    mixed = RecordSamples(100, batches)
    count = mixed.count
    noise = pa.py_buffer(np.random.default_rng(7).bytes(100 * count))
    same = pa.Array.from_buffers(pa.binary(100), count, [None, noise]).cast(pa.binary())
    prefix = message_ids.offset_id_prefix(record.unpack_host(HOST))

    def compare(name: str, columnar: Callable[[], object], loop: Callable[[], object]) -> None:
        ns, loop_ns = (cpu_seconds(work, rounds) / count * 1e9 for work in (columnar, loop))
        rows.append(Row(f"{name}, loop", loop_ns, "ns/message"))
        rows.append(Row(name, ns, "ns/message"))
        rows.append(Row(name, loop_ns / ns, "x loop", goals.get(name)))

    for what, body in (("", same), (", mixed sizes", mixed.body)):
        columnar = columns_batch.encode_batches(body, keys=mixed.keys, tags=mixed.tags)
        bounds = np.cumsum([0, *(each.count for each in columnar)]).tolist()
        lists = [
            [column[start:stop].to_pylist() for column in (body, mixed.keys, mixed.tags)]
            for start, stop in pairwise(bounds)
        ]
        received = [loop_batch(*each) for each in lists]
        assert received == [bytes(each.data) for each in columnar]
        assert all(loop_records(each) == bytes(columnar_records(each).data) for each in received)
        compare(
            f"batch: encode{what}",
            lambda body=body: columns_batch.encode_batches(body, keys=mixed.keys, tags=mixed.tags),  # type: ignore[misc]
            lambda lists=lists: [loop_batch(*each) for each in lists],  # type: ignore[misc]
        )
        compare(
            f"batch: to records{what}",
            lambda received=received: [columnar_records(each) for each in received],  # type: ignore[misc]
            lambda received=received: [loop_records(each) for each in received],  # type: ignore[misc]
        )
    lists_of_offsets = [starts.tolist() for starts in mixed.cuts]

    def loop_ids(offsets: list[int]) -> str:
        return ",".join([prefix + f"{offset:016X}" for offset in offsets])

    assert [columns_batch.joined_offset_ids(prefix, each) for each in mixed.cuts] == [*map(loop_ids, lists_of_offsets)]
    compare(
        "batch: offset ids",
        lambda: [columns_batch.joined_offset_ids(prefix, each) for each in mixed.cuts],
        lambda: [loop_ids(each) for each in lists_of_offsets],
    )
    return rows


def main() -> None:
    pa.set_cpu_count(1)
    batches, rounds = (2, 2) if is_smoke() else (25, 7)
    goals = {"decode, 9 columns": 12.0, "decode, raw properties": 40.0, "encode, no checksum": 5.0, "stamp": 4.0}
    rows = measure(100, batches, rounds, {} if is_smoke() else goals)
    rows += measure(1024, max(batches // 2, 1), rounds, {})
    goals = {"batch: encode": 5.0, "batch: to records": 8.0, "batch: offset ids": 8.0}
    rows += measure_batches(batches, rounds, {} if is_smoke() else goals)
    report("columns", rows)


if __name__ == "__main__":
    main()
