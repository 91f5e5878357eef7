from __future__ import annotations

import pytest
from tests.support.cases import each_case

from sparrow import clock
from sparrow.model.errors import Refused
from sparrow.spark.source.options import SOURCE_OPTIONS, SourceOptions

LEAST = {"nameServers": "127.0.0.1:9876", "subscribe": "orders"}


def test_only_a_name_server_and_a_topic_are_required() -> None:
    options = SourceOptions.parse(LEAST)
    assert (options.subscribe, options.batch_rows_max, options.access) == (("orders",), 1_000_000, "pull")


def test_option_names_are_case_insensitive() -> None:
    assert SourceOptions.parse({**LEAST, "maxoffsetspertrigger": "5"}).batch_rows_max == 5


@each_case(
    ("given", "sentence"),
    [
        ({**LEAST, "nameserver": "x:1"}, "remove 'nameserver'"),
        ({**LEAST, "kafka.bootstrap.servers": "x:9092"}, "use 'nameServers', with the address of a name server"),
        ({**LEAST, "kafka.group.id": "g"}, "use 'groupId'"),
        ({**LEAST, "kafka.sasl.jaas.config": "secret"}, "use 'sparrow.accessKey'"),
        ({**LEAST, "kafka.linger.ms": "5"}, "is Kafka's and has no counterpart here: remove it"),
        ({"nameServers": "x:1"}, "exactly one of the options"),
        ({**LEAST, "subscribePattern": "o.*"}, "exactly one of the options"),
        ({**LEAST, "maxOffsetPerTrigger": "5"}, "Did you mean 'maxOffsetsPerTrigger'"),
        ({**LEAST, "maxOffsetsPerTrigger": "many"}, "'many' for option 'maxOffsetsPerTrigger'"),
        ({**LEAST, "startingOffsets": "begin"}, "use earliest, latest, group:NAME or JSON"),
        ({**LEAST, "startingOffsets": '{"orders": 5}'}, "use JSON such as"),
        ({**LEAST, "startingTimestamp": "yesterday"}, "-10m"),
        ({**LEAST, "failOnDataLoss": "maybe"}, "use true or false"),
        ({**LEAST, "access": "disk"}, "use one of pull, files, auto"),
        ({"subscribe": "orders", "access": "files"}, "needs the option 'path'"),
        ({"nameServers": "x:1", "subscribePattern": "("}, "not a regular expression"),
        ({**LEAST, "sparrow.accesKey": "me"}, "Did you mean 'sparrow.accessKey'"),
        ({**LEAST, "maxTriggerDelay": "soon"}, "use a duration such as 30s"),
        ({**LEAST, "pullMaxBytes": "0"}, "use a size such as"),
    ],
)
def test_invalid_options_are_refused_with_a_remedy(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        SourceOptions.parse(given)
    assert sentence in str(refused.value)


def test_times_are_milliseconds_iso_or_relative() -> None:
    def at(value: str) -> int | None:
        return SourceOptions.parse({**LEAST, "startingTimestamp": value}).starting_ms

    assert at("1767225600000") == 1767225600000
    assert at("2026-01-01T00:00:00Z") == 1767225600000
    assert at("2026-01-01T01:00:00+01:00") == 1767225600000
    assert at("2026-01-01") == 1767225600000
    ago = at("-10m")
    assert ago is not None
    assert abs(clock.now_ms() - 600_000 - ago) < 5_000


def test_sizes_and_durations_have_units() -> None:
    options = SourceOptions.parse(
        {**LEAST, "pullMaxBytes": "2m", "maxTriggerDelay": "30s", "maxBytesPerTrigger": "64k"}
    )
    assert (options.pull_bytes, options.batch_delay_max_ms, options.batch_bytes_max) == (2 << 20, 30_000, 65_536)


def test_every_option_has_a_description_and_a_field() -> None:
    fields = set(SourceOptions.__struct_fields__)
    for option in SOURCE_OPTIONS:
        assert option.doc.endswith((".", "..."))
        assert option.field in fields


def test_name_servers_have_a_default_and_an_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SourceOptions.parse({"subscribe": "orders"}).client.name_servers == "127.0.0.1:9876"
    monkeypatch.setenv("SPARROW_NAME_SERVERS", "mq-1:9876;mq-2:9876")
    assert SourceOptions.parse({"subscribe": "orders"}).client.name_servers == "mq-1:9876;mq-2:9876"
    with pytest.warns(FutureWarning, match="nameserver is now called nameServers"):
        assert SourceOptions.parse({"nameserver": "x:1", "subscribe": "orders"}).client.name_servers == "x:1"
