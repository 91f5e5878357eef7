"""Small valid inputs of each target, from which fuzzing starts."""

from __future__ import annotations

import zlib

from sparrow.model.message import Host, StoredMessage
from sparrow.wire import batch, binary_fields, bodies, headers, record
from sparrow.wire.frame import RemotingCommand, Serialization, encode

_HOST, _HOST_V6 = Host(bytes(4), 1), Host(bytes(16), 1)
_SEND = headers.SendMessageV2("p", "T", "TBW102", 4, 0, 0, 1, 0, "TAGS\x01a\x02")
_PULL = headers.PullMessage("g", "T", 0, 5, 32, 4, 0, 0, 0, subscription="*")
_PROPERTIES = {"KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "AB12"}
_REQUESTS = [
    RemotingCommand(310, 1, ext=headers.write(_SEND), body=b"hello"),
    RemotingCommand(11, 2, ext=headers.write(_PULL)),
    RemotingCommand(34, 3, remark="r", body=b'{"clientID":"c"}'),
    RemotingCommand(0, 4, 1),
]
_BODIES = [
    bodies.HeartbeatData("c@1", [bodies.ProducerData("p")], [bodies.ConsumerData("g")]),
    bodies.LockQueues("g", "c@1", mq_set=[bodies.QueueRef("T", "sparrow", 0)]),
    bodies.TopicConfig("T"),
    bodies.ConsumeStats(),
]


def _record(**fields: object) -> bytes:
    usual: dict[str, object] = {
        "topic": "T",
        "body": b"hello",
        "properties": _PROPERTIES,
        "queue_id": 1,
        "queue_offset": 5,
        "physical_offset": 100,
        "born_ms": 1,
        "born_host": _HOST,
        "store_ms": 2,
        "store_host": _HOST,
    }
    return record.encode_message(StoredMessage(**(usual | fields)))  # type: ignore[arg-type]


_RECORDS = [
    _record(),
    _record(born_host=_HOST_V6, store_host=_HOST_V6),
    _record(body=zlib.compress(b"hello"), sys_flag=1),
    _record(body=b"", properties={}) * 3,
    _record() + _record(topic="other", queue_offset=6),
]

SEEDS: dict[str, list[bytes]] = {
    "frames": [
        encode(RemotingCommand(r.code, r.opaque, r.flag, remark=r.remark, ext=r.ext, body=r.body, serialization=kind))
        for r in _REQUESTS
        for kind in Serialization
    ],
    "json_headers": [
        bytes([number]) + encoded
        for number in range(0, 80, 7)
        for encoded in (
            b'{"topic":"T","queueId":"1","consumerGroup":"g","queueOffset":5,"order":true,"maxMsgNums":"32"}',
            b'{"a":"p","b":"T","c":"TBW102","d":"4","e":"0","f":"0","g":"1","h":"0","i":"","m":"false"}',
            b"null",
        )
    ],
    "binary_headers": [binary_fields.encode(headers.write(_SEND)), binary_fields.encode({"topic": "T"})],
    "request_bodies": [bytes([number]) + bodies.write(body) for number in range(0, 80, 3) for body in _BODIES]
    + [b"\0" + b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}', b'\0{"x":{0:"a"}}'],
    "batches": [batch.encode([(0, b"a", b"x\x01y\x02"), (1, b"b", b"")]), batch.encode([(0, b"x", b"")])],
    "records": _RECORDS,
    "record_columns": _RECORDS,
    "property_strings": [b"KEYS\x01a b\x02TAGS\x01t\x02", b"a\x01b", b"TAGS\x01\x02TAGS\x01x\x01y\x02"],
    "sql92_conditions": [
        b"a > 5 AND b BETWEEN 1 AND 3.5",
        b"a IN ('x', 'y') OR NOT (b = 'it''s')",
        b"a IS NOT NULL AND c = TRUE",
        b"a CONTAINS 'x' AND b NOT STARTSWITH 'y' OR -a < -5",
    ],
    "http_requests": [
        b"GET /api/v1/clusters",
        b"GET /api/v1/clusters/default/topics?limit=5&search=a",
        b'POST /api/v1/clusters/default/topics\n\n{"name":"orders","queues":4}',
        b"GET /api/v1/clusters/default/topics/T/messages?from=2026-01-01T00:00:00Z&limit=10",
        b"DELETE /api/v1/clusters/default/groups/g",
        b"GET /topics?lang=de",
        b"GET /api/v1/openapi.json",
    ],
}
"""By the name of the target."""
