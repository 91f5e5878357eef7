"""The cost of one frame: decode and type a send request, encode its response, compared with plain json."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

from _harness import Row, cpu_seconds, is_smoke, report
from sparrow.wire import headers
from sparrow.wire.connection import Connection
from sparrow.wire.frame import RemotingCommand, decode, encode, response_to

REQUEST = headers.SendMessageV2(
    "ProducerGroup",
    "TopicTest",
    "TBW102",
    4,
    1,
    0,
    1_700_000_000_000,
    0,
    "UNIQ_KEY\x01C0A8000100002A9F000000000001E240\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    broker_name="broker-a",
)
SENT = headers.SendMessageResponse("C0A8000100002A9F000000000001E240", 1, 123456, "C0A80001", "DefaultRegion", True)
FRAME = encode(RemotingCommand(310, 7, ext=headers.write(REQUEST), body=bytes(100)))
MANY = FRAME * 64


def decode_typed() -> object:
    command = decode(FRAME)
    return headers.read(headers.SendMessageV2, command.ext)


def decode_plainly() -> object:
    """Decode the same values with the standard library, and convert each field by hand."""
    length, mark = struct.unpack_from(">II", FRAME)
    body_at = 8 + (mark & 0xFFFFFF)
    header = json.loads(FRAME[8:body_at])
    ext = header["extFields"]
    return (
        header["code"],
        header["opaque"],
        FRAME[body_at : 4 + length],
        ext["a"],
        ext["b"],
        ext["c"],
        int(ext["d"]),
        int(ext["e"]),
        int(ext["f"]),
        int(ext["g"]),
        int(ext["h"]),
        ext.get("i", ""),
        int(ext.get("j", "0")),
        ext.get("k", "").lower() == "true",
        ext.get("m", "").lower() == "true",
        ext.get("n"),
    )


RECEIVED = decode(FRAME)


def encode_answer() -> bytes:
    return encode(response_to(RECEIVED, ext=headers.write(SENT)))


def encode_plainly() -> bytes:
    ext = {
        "msgId": SENT.message_id,
        "queueId": str(SENT.queue_id),
        "queueOffset": str(SENT.queue_offset),
        "transactionId": SENT.transaction_id,
        "MSG_REGION": SENT.region,
        "TRACE_ON": "true" if SENT.trace_on else "false",
    }
    header = json.dumps(
        {"code": 0, "flag": 1, "language": "JAVA", "opaque": RECEIVED.opaque, "version": 407, "extFields": ext},
        separators=(",", ":"),
    ).encode()
    return struct.pack(">II", 4 + len(header), len(header)) + header


def feed_many() -> object:
    return Connection().feed(MANY)


def microseconds(work: Callable[[], object], times: int) -> float:
    """Return the CPU time of one call."""

    def many() -> None:
        for _ in range(times):
            work()

    return cpu_seconds(many) / times * 1e6


def main() -> None:
    assert decode_typed() == REQUEST
    assert decode(encode_answer()).fields() == decode(encode_plainly()).fields()
    times = 500 if is_smoke() else 50_000
    decoding, plain_decoding = microseconds(decode_typed, times), microseconds(decode_plainly, times)
    encoding, plain_encoding = microseconds(encode_answer, times), microseconds(encode_plainly, times)
    feeding = microseconds(feed_many, max(1, times // 64)) / 64
    report(
        "frames",
        [
            Row("decode a send request, its header typed", decoding, "µs", 3.0, at_most=True),
            Row("encode its response", encoding, "µs", 2.0, at_most=True),
            Row("decode, against json.loads and typing by hand", plain_decoding / decoding, "x", 2.0),
            Row("encode, against json.dumps", plain_encoding / encoding, "x", 2.0),
            Row("a command out of a stream of 64, its header raw", feeding, "µs"),
        ],
    )


if __name__ == "__main__":
    main()
