"""Clients that cannot do their work say so: in the log, and to a program that asks."""

import asyncio
import gc
import logging
import socket

import pytest
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually, wait_until

from sparrow import (
    Admin,
    ConnectionLost,
    Consumer,
    Credentials,
    Message,
    PopConsumer,
    Producer,
    RemoteRefused,
    UnknownTopic,
    WrongServer,
    aio,
)
from sparrow.testing import run_platform
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import QueueRequest


@pytest.fixture(autouse=True)
def _logged(caplog):
    caplog.set_level(logging.INFO, "sparrow.client.health")


def said(caplog, level: str = "WARNING") -> list[str]:
    return [
        record.args["text"]  # type: ignore[index, call-overload]
        for record in caplog.records
        if record.name == "sparrow.client.health" and record.levelname == level
    ]


def causes(client) -> list[str]:
    return [finding.cause for finding in client.health().findings]


@pytest.fixture
def free_address():
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# -- name servers -----------------------------------------------------------------------------------------------------


def test_a_consumer_without_a_name_server_says_so_once_and_reports_it(free_address, caplog):
    with Consumer(free_address, group="readers") as consumer:
        assert consumer.health().ok, "nothing was tried yet"
        consumer.subscribe("orders")
        consumer.start(print)
        wait_until(lambda: not consumer.health().ok)
        [finding] = consumer.health().findings
        assert (finding.cause, finding.address, finding.topic) == ("unreachable", free_address, None)
        assert f"no name server can be used: no connection to {free_address}: " in finding.text
        assert "start the server, or check the address" in finding.text
        assert said(caplog) == [finding.text]


async def test_an_asyncio_producer_without_a_name_server_reports_it(free_address, caplog):
    async with aio.Producer(free_address) as producer:
        for _ in range(3):
            with pytest.raises(ConnectionLost):
                await producer.send(Message("orders", "a book"))
        assert causes(producer) == ["unreachable"]
    assert len(said(caplog)) == 1


@pytest.mark.parametrize("client", ["producer", "consumer", "admin", "pop"])
def test_the_port_of_a_broker_given_as_name_server_is_recognised(platform, client):
    wrong = rf"{platform.address} is the address of a broker, not of a name server: .*usually 9876"
    if client == "producer":
        with Producer(platform.address) as producer:
            with pytest.raises(WrongServer, match=wrong):
                producer.send(Message("orders", "a book"))
            assert causes(producer) == ["wrong server"]
    elif client == "consumer":
        with Consumer(platform.address, group="readers") as consumer:
            consumer.subscribe("orders")
            consumer.start(print)
            wait_until(lambda: causes(consumer) == ["wrong server"])
            assert "usually 9876" in str(consumer.health())
    elif client == "admin":
        with Admin(platform.address) as admin, pytest.raises(WrongServer, match=wrong):
            admin.create_topic("orders")
    else:
        with PopConsumer(platform.address, group="readers") as pops:
            with pytest.raises(WrongServer, match=wrong):
                pops.receive("orders")
            assert causes(pops) == ["wrong server"]


async def test_a_wrong_name_server_among_several_is_passed_over(platform):
    async with aio.Producer(f"{platform.address};{platform.name_servers}") as producer:
        for _ in range(4):
            assert (await producer.send(Message("orders", "a book"))).is_ok
        assert producer.health().ok


async def test_the_port_of_a_name_server_where_a_broker_is_meant_is_recognised(platform):
    async with aio.Admin(platform.name_servers) as admin:
        with pytest.raises(WrongServer, match=r"is the address of a name server, not of a broker: .*usually 10911"):
            await admin.session.invoke(platform.name_servers, RequestCode.GET_MAX_OFFSET, QueueRequest("orders", 0))


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["mute", "http"])
async def test_a_server_of_another_kind_is_one_finding_with_its_address(greeting, caplog):
    async def serve(reader, writer):
        writer.write(greeting)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with aio.Producer(address, timeout_ms=200) as producer:
            with pytest.raises(aio.Unavailable, match=address):
                await producer.send(Message("orders", "a book"))
            [finding] = producer.health().findings
            assert finding.address == address
            assert "no name server can be used" in finding.text
        gc.collect()
    assert "never retrieved" not in caplog.text


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_consumer_of_a_missing_topic_names_the_nearest_one_until_the_topic_exists(platform, caplog):
    with Admin(platform.name_servers) as admin:
        admin.create_topic("orders")
        with Consumer(platform.name_servers, group="readers") as consumer:
            consumer.subscribe("ordres")
            consumer.start(print)
            wait_until(lambda: not consumer.health().ok)
            [finding] = consumer.health().findings
            assert (finding.cause, finding.topic) == ("unknown topic", "ordres")
            assert finding.text == (
                "group 'readers' waits for a topic: topic 'ordres' does not exist (did you mean 'orders'?): create it "
                "with Admin.create_topic, or send its first message, if the brokers create topics"
            )
            admin.create_topic("ordres")
            wait_until(lambda: consumer.health().ok)
    assert (len(said(caplog)), len(said(caplog, "INFO"))) == (1, 1)


def test_a_topic_that_is_no_longer_subscribed_is_no_finding(platform):
    with Consumer(platform.name_servers, group="readers") as consumer:
        consumer.subscribe("ordres")
        consumer.subscribe("invoices")
        consumer.start(print)
        wait_until(lambda: causes(consumer) == ["unknown topic"] * 2)
        consumer.unsubscribe("ordres")
        wait_until(lambda: [finding.topic for finding in consumer.health().findings] == ["invoices"])


async def test_a_producer_of_a_missing_topic_names_the_nearest_one(tmp_path):
    with run_platform(tmp_path, broker={"auto_create_topics": False}) as platform:
        async with aio.Admin(platform.name_servers) as admin, aio.Producer(platform.name_servers) as producer:
            await admin.create_topic("orders")
            with pytest.raises(UnknownTopic) as caught:
                await producer.send(Message("ordres", "a book"))
            assert caught.value.__notes__ == ["did you mean 'orders'?"]
            assert causes(producer) == ["unknown topic"]
            await producer.send(Message("orders", "a book"))
            assert causes(producer) == ["unknown topic"], "another topic"


# -- filters and tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
async def test_a_refused_filter_is_raised_to_the_caller_of_subscribe(platform, flavour):
    async with aio.Producer(platform.name_servers) as producer:
        await producer.send(Message("orders", "a book"))
    condition, why = "amount >>> 10", r"SUBSCRIPTION_PARSE_FAILED: .*"
    if flavour == "asyncio":
        async with aio.Consumer(platform.name_servers, group="readers") as consumer:
            with pytest.raises(RemoteRefused, match=why):
                await consumer.subscribe("orders", condition, expression_type="SQL92")
            await consumer.subscribe("orders", "amount > 10", expression_type="SQL92")
            with pytest.raises(RemoteRefused, match=why):
                await consumer.subscribe("orders", condition, expression_type="SQL92")
            await consumer.start(RecordingHandler())
            await consumer.wait_for_assignment()
            assert consumer.health().ok, "the subscription before the refused one is kept"
    else:
        blocking = Consumer(platform.name_servers, group="readers")
        with blocking, pytest.raises(RemoteRefused, match=why):
            blocking.subscribe("orders", condition, expression_type="SQL92")


async def test_a_filter_of_a_topic_that_appears_later_is_reported(platform):
    async with aio.Consumer(platform.name_servers, group="readers") as consumer:
        await consumer.subscribe("orders", "amount >>> 10", expression_type="SQL92")
        await consumer.start(RecordingHandler())
        async with aio.Producer(platform.name_servers) as producer:
            await producer.send(Message("orders", "a book"))
        await eventually(lambda: "refused filter" in causes(consumer))


@pytest.mark.parametrize("credentials", [None, Credentials("reader", "wrong")], ids=["none", "wrong"])
def test_a_consumer_with_a_refused_token_says_so(tmp_path, credentials, caplog):
    operator = Credentials("operator", "a long secret")
    settings = {"auth": True, "admin_tokens": {operator.access_key: operator.secret_key}}
    with run_platform(tmp_path, broker=settings) as platform:
        with Admin(platform.name_servers, credentials=operator) as admin:
            admin.create_topic("orders")
        with Consumer(platform.name_servers, group="readers", credentials=credentials) as consumer:
            consumer.subscribe("orders")
            consumer.start(print)
            wait_until(lambda: "not permitted" in causes(consumer))
            finding = next(one for one in consumer.health().findings if one.cause == "not permitted")
            assert platform.address in finding.text
            assert "check credentials=" in finding.text
            assert finding.text in said(caplog)


# -- brokers ----------------------------------------------------------------------------------------------------------


def test_a_pull_that_fails_again_and_again_is_one_finding_until_it_works(platform, caplog):
    """The topic loses its read permission while a consumer reads all its queues."""
    with Admin(platform.name_servers) as admin:
        admin.create_topic("orders", 4)
        with Consumer(platform.name_servers, group="readers") as consumer, Producer(platform.name_servers) as producer:
            consumer.subscribe("orders")
            seen: list[bytes] = []
            consumer.start(lambda message: seen.append(message.body))
            producer.send(Message("orders", "first"))
            wait_until(lambda: seen)
            admin.create_topic("orders", 4, permission=2)
            for number in range(8):  # ends the long polls of all queues
                producer.send(Message("orders", f"{number}"))
            wait_until(lambda: causes(consumer) == ["not permitted"], within_s=40)
            text = consumer.health().findings[0].text
            assert "group 'readers' cannot pull topic 'orders' from broker sparrow" in text
            admin.create_topic("orders", 4, permission=6)
            wait_until(lambda: consumer.health().ok and len(seen) == 9, within_s=40)
    assert len([line for line in said(caplog) if "cannot pull" in line]) == 1


async def test_a_broker_that_stops_is_reported_with_its_address(tmp_path):
    with run_platform(tmp_path / "one") as platform:
        async with aio.Producer(platform.name_servers, timeout_ms=500) as producer:
            await producer.send(Message("orders", "a book"))
            platform.stop()
            with pytest.raises((ConnectionLost, aio.Unavailable)):
                await producer.send(Message("orders", "a book"))
            await eventually(lambda: "unreachable" in causes(producer))
            addresses = {finding.address for finding in producer.health().findings}
            assert addresses <= {platform.address, platform.name_servers}
