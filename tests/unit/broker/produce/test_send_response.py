"""The frames of successful sends: the templates say what the encoder of any header would."""

from sparrow.broker.produce.send_response import SendResponseEncoder
from sparrow.model.message import Host
from sparrow.model.queue import PhysicalOffset, Queue, QueueOffset
from sparrow.store.spi import AppendResult
from sparrow.wire import headers
from sparrow.wire.frame import RemotingCommand, Serialization, decode
from sparrow.wire.headers import SendMessageResponse
from sparrow.wire.message_ids import offset_id_prefix

QUEUE = Queue("orders", 12)
HOSTS = (Host(b"\x7f\0\0\1", 10911), Host(bytes(15) + b"\1", 10911))


def test_the_answer_contains_the_position_and_the_unique_id_in_both_serializations():
    for host in HOSTS:
        encode = SendResponseEncoder(host, "broker-a").encode
        for serialization in Serialization:
            for unique in ("C0A80001", "A" * 256, "needs-escaping\\"):
                for offset, at in ((0, 0), (123_456_789_012, 0xABC_DEF0)):
                    appended = AppendResult(
                        QUEUE, QueueOffset(offset), (PhysicalOffset(at),), PhysicalOffset(at + 100), 1
                    )
                    request = RemotingCommand(310, 77, serialization=serialization)
                    frame = encode(request, QUEUE, appended, f"UNIQ_KEY\x01{unique}\x02".encode())
                    assert frame is not None
                    answer = decode(frame)
                    assert (answer.code, answer.opaque, answer.flag) == (0, 77, 1)
                    assert answer.serialization is serialization
                    assert headers.read(SendMessageResponse, answer.ext) == SendMessageResponse(
                        f"{offset_id_prefix(host)}{at:016X}", 12, offset, unique, "DefaultRegion", True
                    )
