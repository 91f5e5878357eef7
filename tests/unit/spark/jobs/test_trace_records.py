"""Trace records decoded as columns equal those decoded one by one."""

import random

import pyarrow as pa
from tests.support.cases import each_case

from sparrow.client import trace_records
from sparrow.client.trace_records import (
    ConsumeEndTrace,
    ConsumeReturnType,
    ConsumeStartTrace,
    PublishTrace,
    TracedMessageType,
    TraceRecord,
    TransactionEndTrace,
)
from sparrow.spark.jobs.trace_records import RECORD_SCHEMA, decode_bodies

SENT = PublishTrace(
    time_ms=1_767_225_600_123,
    group="shop",
    topic="orders",
    message_id="A1",
    tags="paid",
    keys="k1 k2",
    body_bytes=6,
    cost_ms=3,
    kind=TracedMessageType.DELAYED,
    client_host="here",
)
BEGUN = ConsumeStartTrace(
    time_ms=1_767_225_600_200, group="billing", request_id="R", message_id="A1", retries=2, keys="k1"
)
ENDED = ConsumeEndTrace(
    request_id="R",
    message_id="A1",
    cost_ms=17,
    is_success=False,
    code=ConsumeReturnType.RAISED,
    time_ms=1_767_225_600_217,
    group="billing",
)
CLOSED = TransactionEndTrace(
    time_ms=1_767_225_600_300,
    group="shop",
    topic="orders",
    message_id="A2",
    transaction_id="A2",
    state="COMMIT_MESSAGE",
)


def columns(*bodies: bytes) -> list[dict[str, object]]:
    return decode_bodies(pa.array(bodies, pa.binary()))[0].to_pylist()


def singly(*bodies: bytes) -> list[dict[str, object]]:
    return [row_of(each) for body in bodies for each in trace_records.decode(body)]


def row_of(each: TraceRecord) -> dict[str, object]:
    """The expected columns of a record."""
    row: dict[str, object] = dict.fromkeys(RECORD_SCHEMA.names)
    row |= {"msg_id": each.message_id, "keys": each.keys, "group": each.group}
    row["time"] = pa.scalar(each.time_ms, pa.timestamp("ms", "UTC")).as_py() if each.time_ms else None
    match each:
        case PublishTrace():
            row |= {"record": "Pub", "topic": each.topic, "tags": each.tags, "body_bytes": each.body_bytes}
            row |= {"cost_ms": each.cost_ms, "kind": int(each.kind), "is_success": each.is_success}
        case ConsumeStartTrace():
            row |= {"record": "SubBefore", "retries": each.retries}
        case ConsumeEndTrace():
            row |= {"record": "SubAfter", "cost_ms": each.cost_ms, "is_success": each.is_success}
            row["code"] = int(each.code)
        case TransactionEndTrace():
            row |= {"record": "EndTransaction", "topic": each.topic, "tags": each.tags, "state": each.state}
            row["kind"] = int(each.kind)
    return row


def filled(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """A missing field is null in columns and empty in objects."""
    return [{**row, "keys": row["keys"] or "", "group": row["group"] or ""} for row in rows]


def test_each_kind_of_record_fills_its_columns() -> None:
    body = trace_records.encode([SENT, BEGUN, ENDED, CLOSED])
    assert columns(body) == [row_of(each) for each in (SENT, BEGUN, ENDED, CLOSED)]


def test_records_keep_their_order_and_the_index_of_their_body() -> None:
    bodies = [
        trace_records.encode([SENT, ENDED]),
        b"",
        trace_records.encode([BEGUN]),
        trace_records.encode([ENDED, SENT, CLOSED]),
    ]
    found, parents = decode_bodies(pa.array(bodies, pa.binary()))
    assert found["record"].to_pylist() == ["Pub", "SubAfter", "SubBefore", "SubAfter", "Pub", "EndTransaction"]
    assert parents.tolist() == [0, 0, 2, 3, 3, 3]


def test_a_slice_of_an_array_is_decoded_correctly() -> None:
    bodies = pa.array(
        [trace_records.encode([SENT]), trace_records.encode([BEGUN]), trace_records.encode([ENDED])], pa.binary()
    )
    found, parents = decode_bodies(bodies.slice(1))
    assert found["record"].to_pylist() == ["SubBefore", "SubAfter"]
    assert parents.tolist() == [0, 1]


@each_case(
    "line",
    [
        b"Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01k\x01host\x015\x016\x010\x01true",  # before 4.3: no offset id
        b"Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01k\x01host\x015\x016\x010\x01off\x01false",
        b"Pub\x011\x01r\x01g\x01t\x01id\x01null\x01null\x01host\x015\x016\x010\x01off\x01true\x01host\x01more",
        b"Pub\x011\x01r\x01g\x01t\x01id\x01tag\x01k\x01host\x015\x016\x019\x01off\x01true",  # unknown message type
        b"Pub\x01soon\x01r\x01g\x01t\x01id\x01tag\x01k\x01host\x015\x016\x010\x01off\x01true",
        b"Pub\x011\x01r\x01g",
        b"SubAfter\x01R\x01id\x015\x01true",
        b"SubAfter\x01R\x01id\x015\x01true\x01k\x014",
        b"SubAfter\x01R\x01id\x015\x01true\x01k\x015",  # unknown result code
        b"SubAfter\x01R\x01id\x015\x01true\x01k\x01null\x011\x01g",
        b"SubAfter\x01R\x01id\x01x\x01true",
        b"SubBefore\x011\x01r\x01g\x01R\x01id\x010",
        b"SubBefore\x011\x01r\x01g\x01R\x01id\x01null\x01k",
        b"Other\x011\x01r",
        "Pub\x011\x01r\x01gr\u00fcn\x01t\x01id\x01\U0001f4d6\x01k\x01host\x015\x016\x010\x01off\x01true".encode(),
        b"Pub\x011\x01r\x01g\xff\x01t\x01id\x01tag\x01k\x01host\x015\x016\x010\x01off\x01true",  # not valid UTF-8
        b"\x01\x01\x01",
    ],
)
def test_unusual_lines_are_decoded_or_skipped_like_single_bodies(line: bytes) -> None:
    assert filled(columns(line, b"", line + b"\x02" + line)) == singly(line, line + b"\x02" + line)


def test_damaged_bodies_decode_like_single_bodies() -> None:
    chance = random.Random(7)
    whole = trace_records.encode([SENT, BEGUN, ENDED, CLOSED, SENT])
    bodies = []
    for _ in range(300):
        body = bytearray(whole)
        for _ in range(chance.randrange(4)):
            body[chance.randrange(len(body))] = chance.choice(b"\x01\x02\x00a0\xc3\xff")
        bodies.append(bytes(body[: chance.randrange(len(body) + 1)]))
    assert filled(columns(*bodies)) == singly(*bodies)


def test_no_records_give_an_empty_batch_with_the_schema() -> None:
    for bodies in ([], [b""], [b"nothing"]):
        found, parents = decode_bodies(pa.array(bodies, pa.binary()))
        assert found.schema == RECORD_SCHEMA
        assert (found.num_rows, parents.tolist()) == (0, [])
