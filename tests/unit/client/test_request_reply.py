"""Request-reply: the properties of a request and of its reply."""

import pytest

from sparrow.client.produce.delayed_delivery import with_properties
from sparrow.client.request_reply import decode_pushed_reply, make_reply, make_request
from sparrow.model.errors import ProtocolError, Refused
from sparrow.model.message import LOOPBACK_HOST, Host, Message
from sparrow.wire.compression import compress
from sparrow.wire.headers import PushReply

ASKED = make_request(Message("prices", b"?", tags="fx"), correlation_id="C1", client_id="me@1", timeout_ms=500)


def push(**others: object) -> PushReply:
    fields: dict[str, object] = {
        "group": "g",
        "topic": "c_REPLY_TOPIC",
        "template_topic": "TBW102",
        "default_topic_queues": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_ms": 1,
        "flag": 0,
        "born_host": "/10.0.0.1:4711",
        "store_host": "10.0.0.2:10911",
        "store_ms": 2,
        "properties": "CORRELATION_ID\x01C1\x02",
    }
    return PushReply(**(fields | others))  # type: ignore[arg-type]


def test_a_request_carries_its_correlation_id_client_id_and_time_to_live():
    assert ASKED.properties == {"TAGS": "fx", "CORRELATION_ID": "C1", "REPLY_TO_CLIENT": "me@1", "TTL": "500"}


def test_a_reply_goes_to_the_reply_topic_of_the_cluster_of_the_request():
    reply = make_reply(with_properties(ASKED, {"CLUSTER": "north"}), "42")
    assert (reply.topic, reply.body) == ("north_REPLY_TOPIC", b"42")
    assert reply.properties == {"MSG_TYPE": "reply", "CORRELATION_ID": "C1", "REPLY_TO_CLIENT": "me@1", "TTL": "500"}


def test_a_reply_to_an_ordinary_message_is_refused():
    with pytest.raises(Refused, match="CLUSTER, CORRELATION_ID, REPLY_TO_CLIENT"):
        make_reply(Message("prices", b"?"), b"42")


def test_a_pushed_reply_is_decoded_and_decompressed():
    body, bits = compress(b"x" * 5000)
    reply = decode_pushed_reply(push(sys_flag=bits), body)
    assert (reply.body, reply.sys_flag, reply.properties) == (b"x" * 5000, 0, {"CORRELATION_ID": "C1"})
    assert (reply.born_host, reply.store_host) == (Host(b"\x0a\0\0\1", 4711), Host(b"\x0a\0\0\2", 10911))


def test_a_host_name_in_a_pushed_reply_is_not_resolved():
    assert decode_pushed_reply(push(born_host="somewhere:1"), b"").born_host == LOOPBACK_HOST
    assert decode_pushed_reply(push(born_host="somewhere/10.0.0.1:4711"), b"").born_host == Host(b"\x0a\0\0\1", 4711)


def test_a_body_that_does_not_match_its_compression_flag_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="zlib"):
        decode_pushed_reply(push(sys_flag=1), b"plain")
