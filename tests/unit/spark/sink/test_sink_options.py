import pickle

import pytest

from sparrow.model.errors import IllegalName, Refused
from sparrow.spark.sink.options import SINK_OPTIONS, DeliveryGuarantee, SinkOptions, parse_sink_options
from sparrow.wire.compression import Compression

GIVEN = {"nameServers": "127.0.0.1:9876"}


def test_every_option_has_a_field():
    fields = {option.field for option in SINK_OPTIONS} - {"name_servers"} | {"client"}
    assert fields == set(SinkOptions.__struct_fields__)
    assert len({option.name.lower() for option in SINK_OPTIONS}) == len(SINK_OPTIONS)


def test_the_default_delivery_is_exactly_once():
    options = parse_sink_options(GIVEN)
    assert options.delivery is DeliveryGuarantee.EXACTLY_ONCE
    assert options.max_in_flight_bytes == 16 << 20
    assert options.fills_checksum
    assert options.compression is None


def test_option_names_are_case_insensitive():
    options = parse_sink_options(
        {
            **GIVEN,
            "DELIVERY": "ATLEASTONCE",
            "maxinflightbytes": "1m",
            "CheckSum": "client",
            "sparrow.accesskey": "me",
            "SPARROW.secretKey": "s",
        }
    )
    assert options.delivery is DeliveryGuarantee.AT_LEAST_ONCE
    assert options.max_in_flight_bytes == 1 << 20
    assert not options.fills_checksum
    assert options.client.credentials is not None


def test_options_survive_pickling():
    options = parse_sink_options(
        {**GIVEN, "topic": "t", "compress": "zstd", "sparrow.secretKey": "s", "sparrow.accessKey": "me"}
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert options.compression is Compression.ZSTD


@pytest.mark.parametrize(
    ("given", "named"), [({}, "default"), ({"topic": "t"}, "t"), ({"topic": "t", "sinkName": "audit"}, "audit")]
)
def test_a_sink_is_named_after_its_topic_unless_it_has_a_name(given: dict[str, str], named: str):
    assert parse_sink_options(GIVEN | given).sink_name == named


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"delivery": "sometimes"}, "exactlyOnce, idempotent, atLeastOnce"),
        ({"sinkName": "a/b"}, "without '/'"),
        ({"sinkName": "a" * 121}, "120"),
        ({"jobKey": "a" * 100, "sinkName": "b" * 100}, "160"),
        ({"deliverry": "exactlyOnce"}, "Did you mean 'delivery'"),
        ({"kafka.bootstrap.servers": "x:9092"}, "use 'nameServers'"),
        ({"kafka.acks": "all"}, "use 'delivery'"),
        ({"kafka.group.id": "g"}, "has no counterpart"),
        ({"delivery": "atLeastOnce", "compress": "zlib"}, "compress"),
        ({"delivery": "atLeastOnce", "jobKey": "monday"}, "jobKey"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(given: dict[str, str], words: str):
    with pytest.raises(Refused, match=words):
        parse_sink_options(GIVEN | given)


def test_name_servers_have_a_default_and_the_topic_must_be_legal(monkeypatch: pytest.MonkeyPatch):
    assert parse_sink_options({"topic": "t"}).client.name_servers == "127.0.0.1:9876"
    monkeypatch.setenv("SPARROW_NAME_SERVERS", "mq:9876")
    assert parse_sink_options({"topic": "t"}).client.name_servers == "mq:9876"
    with pytest.raises(IllegalName):
        parse_sink_options({**GIVEN, "topic": "no spaces"})
