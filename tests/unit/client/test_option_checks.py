"""Options of clients are checked where they are given."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.cases import each_case

import sparrow
from sparrow import Prefetch, aio
from sparrow.client.options import CONSUMER_DEFAULTS, POP_CONSUMER_DEFAULTS, PRODUCER_DEFAULTS
from sparrow.client.produce import delayed_delivery
from sparrow.model.errors import SettingsError
from sparrow.model.message import Message

FLAVOURS = pytest.mark.parametrize("client", [sparrow, aio], ids=["blocking", "asyncio"])


async def coroutine_function(*_):
    """Return nothing."""


@FLAVOURS
@each_case(
    ("options", "said"),
    [
        (
            {"mode": "broadcasting"},
            r"mode = 'broadcasting' .* use 'cluster' or 'broadcast'; did you mean 'broadcast'\?",
        ),
        ({"mode": "CLUSTERING"}, r"did you mean 'cluster'\?"),
        ({"mode": "clustr"}, r"did you mean 'cluster'\?"),
        ({"mode": None}, r"use 'cluster' or 'broadcast'"),
        ({"consume_from": "earliest"}, r"use 'first', 'last' or a datetime with a time zone; did you mean 'first'\?"),
        ({"consume_from": "latest"}, r"did you mean 'last'\?"),
        ({"consume_from": "CONSUME_FROM_LAST_OFFSET"}, r"did you mean 'last'\?"),
        ({"consume_from": datetime(2026, 1, 1)}, r"a datetime with a time zone: moment\.astimezone\(\)"),
        ({"consume_from": 0}, r"use 'first', 'last' or a datetime"),
        ({"timeout_ms": -1}, r"timeout_ms = -1 .* use a whole number from 1"),
        ({"timeout_ms": "3000"}, r"a whole number from 1, without quotes"),
        ({"timeout_ms": True}, r"a whole number from 1"),
        ({"commit_interval_ms": 0}, r"a whole number from 1"),
        ({"retries_max": -1}, r"a whole number from 0 or None"),
        ({"prefetch": 32}, r"a Prefetch or None"),
        ({"strategy": "averagely"}, r"a plain function"),
        ({"strategy": coroutine_function}, r"a plain function: it is called on the event loop"),
        ({"credentials": "secret"}, r"a Credentials or None"),
        ({"trace": "yes"}, r"True or False"),
    ],
)
def test_a_value_of_a_consumer_that_cannot_be_used_is_refused(client, options, said):
    with pytest.raises(SettingsError, match=said):
        client.Consumer(group="readers", **options)


@FLAVOURS
@each_case(
    ("options", "said"),
    [
        ({"linger_ms": "2"}, r"linger_ms = '2' .* use a number from 0 or None, without quotes"),
        ({"linger_ms": -1}, r"a number from 0 or None"),
        ({"retries": 1.5}, r"a whole number from 0"),
        ({"batch_count_max": 0}, r"a whole number from 1"),
        ({"selector": "round_robin"}, r"a plain function or None"),
        ({"selector": coroutine_function}, r"must return at once"),
        ({"idempotent": 1}, r"True or False"),
    ],
)
def test_a_value_of_a_producer_that_cannot_be_used_is_refused(client, options, said):
    with pytest.raises(SettingsError, match=said):
        client.Producer(**options)


@FLAVOURS
@each_case(
    ("kind", "name", "meant"),
    [
        ("Consumer", "auto_offset_reset", "consume_from"),
        ("Consumer", "start", "consume_from"),
        ("Consumer", "max_retries", "retries_max"),
        ("Consumer", "group_id", "group"),
        ("Producer", "lingerms", "linger_ms"),
        ("Producer", "bootstrap_servers", "name_servers"),
        ("PopConsumer", "visibility_timeout", "invisible_ms"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_meant(client, kind, name, meant):
    with pytest.raises(TypeError, match=rf"{kind} has no option {name}; did you mean {meant}\?$"):
        getattr(client, kind)(group="some", **{name: "x"})


@FLAVOURS
def test_the_defaults_and_usual_values_are_accepted(client):
    client.Consumer(group="g", **CONSUMER_DEFAULTS)
    client.Producer(**PRODUCER_DEFAULTS)
    client.PopConsumer(group="g", **POP_CONSUMER_DEFAULTS)
    client.Producer(linger_ms=2, timeout_ms=1, compress_above_bytes=None, selector=sparrow.round_robin())
    client.Consumer(group="g", consume_from=datetime.now(UTC), offsets_path=Path("some.json"), mode="broadcast")


@each_case("field", ["count_max", "bytes_max", "span_max", "pull_count_max", "pull_bytes_max"])
def test_a_prefetch_limit_is_at_least_one(field):
    with pytest.raises(SettingsError, match=rf"{field} = 0 \(from Prefetch\)"):
        Prefetch(**{field: 0})


@FLAVOURS
@each_case("given", [["127.0.0.1:9876"], ""])
def test_name_servers_are_one_text(client, given):
    with pytest.raises(SettingsError, match=r"use one text, such as '10\.0\.0\.1:9876;10\.0\.0\.2:9876'"):
        client.Producer(given)


@each_case(
    ("delay", "said"),
    [
        (
            {"deliver_at": datetime(2030, 1, 1)},
            r"use a datetime with a time zone or a whole number: moment\.astimezone",
        ),
        ({"deliver_at": "2030-01-01"}, r"deliver_at = '2030-01-01' \(from send\)"),
        ({"deliver_after_ms": "500"}, r"a whole number, without quotes"),
    ],
)
def test_a_delivery_time_without_a_zone_or_of_another_type_is_refused(delay, said):
    with pytest.raises(SettingsError, match=said):
        delayed_delivery.with_delivery_time(Message("T"), **delay)
