"""Tokens that are limited to some topics and groups, on a live broker."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.platforms import running_platform

from sparrow.cli.server.platform import Platform
from sparrow.client import Credentials, Message
from sparrow.client.aio import Admin, ClientSession, Consumer, PopConsumer, Producer
from sparrow.client.consume.retry import RetryLater
from sparrow.model.errors import NotPermitted, Refused
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import PROPERTY_PRODUCER_GROUP, PROPERTY_TRANSACTION_PREPARED
from sparrow.model.topic import Group
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.message_ids import parse_offset_id
from sparrow.wire.record import TRANSACTION_COMMITTED, TRANSACTION_PREPARED

ADMIN = Credentials("operator", "a long secret")
AUTH = {"auth": True, "admin_tokens": {ADMIN.access_key: ADMIN.secret_key}}


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with running_platform(tmp_path, **AUTH) as running:
        yield running


@pytest.fixture
async def admin(platform: Platform) -> AsyncIterator[Admin]:
    async with Admin(platform.name_servers, credentials=ADMIN) as admin:
        for topic in ("orders", "secrets"):
            await admin.create_topic(topic, 1)
        yield admin


async def test_an_application_with_one_limited_token_sends_consumes_and_retries(
    platform: Platform, admin: Admin
) -> None:
    token = await admin.issue_token("shop", "pc", topics=["orders"], groups=["shop"])
    seen = asyncio.Queue[tuple[bytes, int]]()

    async def handle(message: StoredMessage) -> None:
        await seen.put((message.body, message.reconsume_times))
        if not message.reconsume_times:
            raise RetryLater(1)

    async with (
        Producer(platform.name_servers, credentials=token) as producer,
        Consumer(platform.name_servers, group="shop", credentials=token, consume_from="first") as consumer,
    ):
        await producer.send(Message("orders", b"1"))
        await consumer.subscribe("orders")
        await consumer.start(handle)
        async with asyncio.timeout(60):
            assert [await seen.get(), await seen.get()] == [(b"1", 0), (b"1", 1)]


async def test_a_limited_token_pops_and_its_unacknowledged_messages_return(platform: Platform, admin: Admin) -> None:
    token = await admin.issue_token("shop", "pc", topics=["orders"], groups=["shop"])
    async with (
        Producer(platform.name_servers, credentials=token) as producer,
        PopConsumer(platform.name_servers, group="shop", credentials=token, invisible_ms=1_000) as consumer,
    ):
        await producer.send(Message("orders", b"1"))
        bodies = []
        async with asyncio.timeout(60):
            while len(bodies) < 2:
                for receipt in await consumer.receive("orders"):
                    bodies.append(receipt.message.body)
                    if len(bodies) == 2:
                        await consumer.ack(receipt)
        assert bodies == [b"1", b"1"]
        with pytest.raises(Refused):
            await consumer.receive("secrets")


async def test_a_refusal_is_the_same_whether_a_topic_or_group_exists_or_not(platform: Platform, admin: Admin) -> None:
    token = await admin.issue_token("shop", "pc", topics=["orders"], groups=["shop"])
    remarks = set()
    async with ClientSession(platform.name_servers, credentials=token) as session:
        for name in ("secrets", "nothing"):
            for header in (
                headers.PullMessage("shop", name, 0, 0, 32, 4, 0, 0, 0, subscription="*"),
                headers.PullMessage(name, "orders", 0, 0, 32, 4, 0, 0, 0, subscription="*"),
            ):
                answer = await session.invoke_unchecked(str(platform.address), RequestCode.PULL_MESSAGE, header)
                assert (answer.code, bytes(answer.body)) == (ResponseCode.NO_PERMISSION, b"")
                remarks.add((answer.remark or "").replace(name, "…"))
    assert len(remarks) == 2, remarks


async def test_a_message_of_another_topic_cannot_be_read_through_a_retry_topic(
    platform: Platform, admin: Admin
) -> None:
    """A consumer names the message that it sends back by its physical offset only."""
    async with Producer(platform.name_servers, credentials=ADMIN) as producer:
        secret = await producer.send(Message("secrets", b"hidden"))
        order = await producer.send(Message("orders", b"1"))
    await admin.create_group(Group(name="shop"))
    token = await admin.issue_token("shop", "c", topics=["orders"], groups=["shop"])
    async with ClientSession(platform.name_servers, credentials=token) as session:
        answers = []
        for sent in (secret, order):
            _, physical_offset = parse_offset_id(sent.offset_id)
            header = headers.SendMessageBack(physical_offset, "shop", -1, origin_topic="orders")
            answers.append(
                await session.invoke_unchecked(str(platform.address), RequestCode.CONSUMER_SEND_MSG_BACK, header)
            )
    assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS]
    assert "there is no message at physical offset" in (answers[0].remark or ""), "as if there was none"
    assert platform.broker._listener.budgets.counts.by_access == {"permission": 1}
    assert [letter.body for letter in await admin.dead_letters("shop")] == [b"1"]


async def test_a_transaction_of_another_topic_cannot_be_ended(platform: Platform, admin: Admin) -> None:
    address = str(platform.address)
    properties = f"{PROPERTY_TRANSACTION_PREPARED}\x01true\x02{PROPERTY_PRODUCER_GROUP}\x01g\x02"
    half = headers.SendMessageV2("g", "secrets", "TBW102", 4, 0, TRANSACTION_PREPARED, 1, 0, properties)
    stranger = await admin.issue_token("shop", "p", topics=["orders"])
    owner = await admin.issue_token("vault", "p", topics=["secrets"])
    async with (
        ClientSession(platform.name_servers, credentials=stranger) as shop,
        ClientSession(platform.name_servers, credentials=owner) as vault,
    ):
        answer = await vault.invoke(address, RequestCode.SEND_MESSAGE_V2, half, b"hidden")
        placed = headers.read(headers.SendMessageResponse, answer.ext)
        _, physical_offset = parse_offset_id(placed.message_id)
        end = headers.EndTransaction(
            "g", placed.queue_offset, physical_offset, TRANSACTION_COMMITTED, "id", topic="orders"
        )
        outcomes = []
        for session in (shop, vault):
            ended = await session.invoke(address, RequestCode.END_TRANSACTION, end)
            outcomes.append(headers.read(headers.EndTransactionResponse, ended.ext).outcome)
    assert outcomes == ["not_found", "committed"]


async def test_a_limited_administrator_manages_its_names_and_nothing_else(platform: Platform, admin: Admin) -> None:
    token = await admin.issue_token("team", "a", topics=["team-*"], groups=["team-*"])
    async with Admin(platform.name_servers, credentials=token) as team:
        await team.create_topic("team-a", 1)
        assert [bounds.end for bounds in (await team.topic_bounds("team-a")).values()] == [0]
        for wish in (
            team.create_topic("mine", 1),
            team.topic_bounds("orders"),
            team.issue_token("chief", "a"),
            team.change_token("team", "a"),
            team.tokens(),
        ):
            with pytest.raises(NotPermitted):
                await wish
    assert "mine" not in platform.broker.broker.topics


async def test_changed_permissions_apply_to_the_next_request_and_survive_a_restart(tmp_path: Path) -> None:
    async with running_platform(tmp_path, **AUTH) as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        token = await admin.issue_token("shop", "p", topics=["orders"])
        async with Producer(platform.name_servers, credentials=token, retries=0) as producer:
            await producer.send(Message("orders", b"1"))
            await admin.change_token("shop", "p", topics=["invoices-*"])
            with pytest.raises(NotPermitted, match="no permission to publish to topic 'orders'"):
                await producer.send(Message("orders", b"2"))
            await producer.send(Message("invoices-eu", b"3"))
    async with running_platform(tmp_path, **AUTH) as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        (found,) = await admin.tokens()
        assert (found.topics, found.groups) == (["invoices-*"], ["*"])
        async with Producer(platform.name_servers, credentials=token, retries=0) as producer:
            with pytest.raises(NotPermitted):
                await producer.send(Message("orders", b"4"))


async def test_what_administrators_change_and_what_is_refused_is_in_the_audit_log(
    platform: Platform, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparrow.audit")
    token = await admin.issue_token("shop", "p", topics=["orders"])
    await admin.create_group(Group(name="billing"))
    await admin.tokens()  # reads are not logged
    await admin.delete_topic("secrets")
    guess = Credentials("shop", "guessed")
    for credentials, topic in ((token, "orders"), (token, "invoices"), (guess, "orders")):
        async with Producer(platform.name_servers, credentials=credentials, retries=0) as producer:
            with contextlib.suppress(NotPermitted):
                await producer.send(Message(topic, b"1"))
    lines = [line for line in caplog.records if line.name == "sparrow.audit"]
    text = "\n".join(line.getMessage() for line in lines)
    assert "ISSUE_TOKEN" in text and "token 'shop', type 'p', topics 'orders', groups '*'" in text  # noqa: PT018
    assert "group 'billing'" in text
    assert "DELETE_TOPIC_IN_BROKER" in text and "with access key 'operator' is done: topic 'secrets'" in text  # noqa: PT018
    assert "LIST_TOKENS" not in text
    assert {line.args["cause"] for line in lines if line.levelname == "WARNING"} == {"permission", "signature"}
    assert all(line.args["peer"].startswith("127.0.0.1:") for line in lines)
    assert token.secret_key not in text


@pytest.mark.parametrize("topics", [[], ["a b"], ["*x"], ["%RETRY%shop"]])
async def test_an_illegal_pattern_is_refused_and_issues_nothing(admin: Admin, topics: list[str]) -> None:
    with pytest.raises(Refused):
        await admin.issue_token("shop", "p", topics=topics)
    assert await admin.tokens() == []
