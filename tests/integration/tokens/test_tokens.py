"""Tokens over real sockets: issuing, listing, revoking, and a broker with `auth` on that requires them."""

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import SMALL_LOG, broker_settings, open_channel, running_platform, try_pull, try_send
from tests.support.raw_connection import open_raw_connection

import sparrow.testing
from sparrow import client
from sparrow.broker import dispatch
from sparrow.broker.server import BrokerServer
from sparrow.cli.server.platform import Platform
from sparrow.cli.settings import load_settings
from sparrow.client import Credentials, Message
from sparrow.client.aio import Admin, ClientSession, Consumer, PopConsumer, Producer
from sparrow.client.consume.retry import DeadLetter
from sparrow.model.errors import Refused, SettingsError
from sparrow.model.message import StoredMessage
from sparrow.model.queue import Queue
from sparrow.model.topic import Group
from sparrow.model.transaction import TransactionState
from sparrow.net.access.guarded_dispatcher import GuardedRequestDispatcher
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Slice
from sparrow.wire import bodies, headers, record
from sparrow.wire.bodies import IssueToken, TokenDescription
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import RemoteRefused
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.signing import sign


@pytest.fixture
async def sender(admin: Admin) -> Credentials:
    return await admin.issue_token("appid-340101;sid-p0912", "p")


@pytest.fixture
async def reader(admin: Admin) -> Credentials:
    return await admin.issue_token("billing", "c")


def is_no_permission(error: BaseException) -> bool:
    return isinstance(error, RemoteRefused) and error.code == ResponseCode.NO_PERMISSION


# -- issuing ----------------------------------------------------------------------------------------------------------


async def test_a_secret_is_shown_once(platform: Platform, admin: Admin) -> None:
    first = await admin.issue_token("billing", "c")
    with pytest.raises(Refused, match="its secret key was shown when it was issued"):
        await admin.issue_token("billing", "c")
    for secret_key in (None, "ab" * 32):  # a client that does not look first, or guesses
        body = bodies.write(IssueToken("billing", "c", secret_key))
        answer = await admin.session.invoke_unchecked(str(platform.address), RequestCode.ISSUE_TOKEN, None, body)
        assert answer.code != ResponseCode.SUCCESS
        assert "its secret key is shown only once" in (answer.remark or "")
        assert first.secret_key not in f"{answer.remark}{bytes(answer.body)!r}"
    # Whoever has the secret may issue the token again; the answer does not contain it.
    body = bodies.write(IssueToken("billing", "c", first.secret_key))
    answer = await admin.session.invoke(str(platform.address), RequestCode.ISSUE_TOKEN, None, body)
    assert first.secret_key.encode() not in bytes(answer.body)
    assert await admin.issue_token("billing", "c", secret_key=first.secret_key) == first
    other = await admin.issue_token("shipping", "c")
    assert other.secret_key != first.secret_key
    assert [(token.id, token.name, token.type) for token in await admin.tokens()] == [
        (1, "billing", "c"),
        (2, "shipping", "c"),
    ]


async def test_issuing_a_name_again_with_other_permissions_is_refused(admin: Admin, sender: Credentials) -> None:
    with pytest.raises(Refused, match="is a producer's"):
        await admin.issue_token(sender.access_key, "c", secret_key=sender.secret_key)
    assert [token.type for token in await admin.tokens()] == ["p"]


async def test_an_unknown_token_type_is_refused(admin: Admin) -> None:
    with pytest.raises(Refused, match="use p for producing, c for consuming"):
        await admin.issue_token("billing", "x")  # type: ignore[arg-type]
    assert await admin.tokens() == []


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 200, "operator"])
async def test_illegal_token_names_and_names_of_admin_tokens_are_refused(admin: Admin, name: str) -> None:
    with pytest.raises(Refused):
        await admin.issue_token(name, "p")
    assert await admin.tokens() == []


async def test_a_token_list_contains_no_secrets(platform: Platform, admin: Admin, reader: Credentials) -> None:
    answer = await admin.session.invoke(str(platform.address), RequestCode.LIST_TOKENS)
    assert reader.access_key.encode() in bytes(answer.body)
    assert reader.secret_key.encode() not in bytes(answer.body)
    assert [token.secret_key for token in await admin.tokens()] == [None]


async def test_a_malformed_token_body_is_refused(platform: Platform, admin: Admin) -> None:
    for body in (b"", b"{", b'{"name":"a"}', b'{"name":"a","type":"p","secretKey":"short"}'):
        for code in (RequestCode.ISSUE_TOKEN, RequestCode.REVOKE_TOKEN):
            if body.endswith(b"}") and code == RequestCode.REVOKE_TOKEN:
                continue
            answer = await admin.session.invoke_unchecked(str(platform.address), code, None, body)
            assert answer.code != ResponseCode.SUCCESS
            assert answer.remark
    assert await admin.tokens() == []


async def test_consumers_and_admins_read_dead_letters_and_only_admins_redrive_them(
    platform: Platform, admin: Admin, sender: Credentials, reader: Credentials
) -> None:
    async def fail(_: StoredMessage) -> None:
        raise DeadLetter("no such customer")

    async with Producer(platform.name_servers, credentials=sender) as producer:
        await producer.send(Message("orders", b"1"))
    async with Consumer(
        platform.name_servers, group="billing", credentials=reader, consume_from="first", retries_max=0
    ) as consumer:
        await consumer.subscribe("orders")
        await consumer.start(fail)
        async with asyncio.timeout(30):
            while not (letters := await admin.dead_letters("billing")):
                await asyncio.sleep(0.02)
    async with Admin(platform.name_servers, credentials=reader) as allowed:
        assert [letter.body for letter in await allowed.dead_letters("billing")] == [b"1"]
        with pytest.raises(RemoteRefused) as refused:
            await allowed.redrive("billing", everything=True)
        assert is_no_permission(refused.value)
    async with Admin(platform.name_servers, credentials=sender) as other:
        with pytest.raises(RemoteRefused) as refused:
            await other.dead_letters("billing")
        assert is_no_permission(refused.value)
    assert await admin.redrive("billing", ids=[letters[0].unique_key or ""]) == 1


async def test_tokens_survive_a_restart(tmp_path: Path) -> None:
    async with running_platform(tmp_path, **AUTH) as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        kept = await admin.issue_token("kept", "p")
        await admin.issue_token("gone", "p")
        await admin.revoke_token("gone")
    async with running_platform(tmp_path, **AUTH) as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        assert await admin.issue_token("kept", "p", secret_key=kept.secret_key) == kept
        assert {token.name: token.revoked_ms is not None for token in await admin.tokens()} == {
            "kept": False,
            "gone": True,
        }
        async with Producer(platform.name_servers, credentials=kept) as producer:
            await producer.send(Message("orders", b"1"))


async def test_brokers_share_one_secret_even_if_one_joins_later(tmp_path: Path) -> None:
    async with running_platform(tmp_path / "a", name="a", **AUTH) as platform:
        async with Admin(platform.name_servers, credentials=ADMIN) as admin:
            first = await admin.issue_token("billing", "c")
            settings = broker_settings(name="0-first-by-name", name_servers=platform.name_servers, **AUTH)
            async with BrokerServer(settings, tmp_path / "b", SMALL_LOG) as other:
                assert len((await admin.clusters())["DefaultCluster"].masters) == 2
                with pytest.raises(Refused, match="exists on broker 'a'"):
                    await admin.issue_token("billing", "c")
                assert "billing" not in await other.broker.store.tokens.all()
                assert await admin.issue_token("billing", "c", secret_key=first.secret_key) == first
                assert (await other.broker.store.tokens.all())["billing"].secret_key == first.secret_key
                both = await admin.issue_token("shipping", "p")
                stores = [platform.broker.broker.store, other.broker.store]
                assert {(await store.tokens.all())["shipping"].secret_key for store in stores} == {both.secret_key}
                await admin.revoke_token("shipping")
                assert all([(await store.tokens.all())["shipping"].is_revoked for store in stores])


async def test_different_secrets_on_two_brokers_are_reported(tmp_path: Path) -> None:
    async with running_platform(tmp_path / "a", name="a", **AUTH) as platform:
        settings = BrokerSettings.model_validate(
            {"port": 0, "name": "b", "name_servers": platform.name_servers, **AUTH}
        )
        async with (
            BrokerServer(settings, tmp_path / "b", SMALL_LOG) as other,
            Admin(platform.name_servers, credentials=ADMIN) as admin,
        ):
            given = []
            for address in (platform.address, other.address):
                answer = await admin.session.invoke(
                    str(address), RequestCode.ISSUE_TOKEN, None, bodies.write(IssueToken("billing", "c"))
                )
                given.append(bodies.read(TokenDescription, answer.body).secret_key)
            for secret_key in given:
                with pytest.raises(Refused, match="its secret key is shown only once"):
                    await admin.issue_token("billing", "c", secret_key=secret_key)


# -- with auth on -----------------------------------------------------------------------------------------------------


async def test_a_producer_and_a_consumer_work_with_their_tokens(
    platform: Platform, sender: Credentials, reader: Credentials
) -> None:
    async with Producer(platform.name_servers, credentials=sender) as producer:
        for number in range(3):
            await producer.send(Message("orders", f"{number}"))
        await producer.send_one_way(Message("orders", "3"))
        await producer.send_batch([Message("orders", "4"), Message("orders", "5")])
    async with Consumer(platform.name_servers, group="group", credentials=reader) as consumer:
        await consumer.subscribe("orders")
        got = [(await anext(aiter(consumer))).body for _ in range(6)]
        await consumer.commit()
    assert sorted(got) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    async with Consumer(platform.name_servers, group="group", credentials=reader) as consumer:
        await consumer.subscribe("orders")
        assert await consumer.poll(timeout_ms=100) == [], "committed offsets must remain"


async def test_transactions_can_be_ended_with_a_producer_token(
    platform: Platform, sender: Credentials, reader: Credentials
) -> None:
    def listener(_message: object) -> TransactionState:
        return TransactionState.COMMIT

    async with Producer(
        platform.name_servers, group="tx", transaction_checker=listener, credentials=sender
    ) as producer:
        await producer.send_in_transaction(Message("orders", "tx"), lambda _: TransactionState.COMMIT)
    async with Consumer(platform.name_servers, group="group", credentials=reader) as consumer:
        await consumer.subscribe("orders")
        assert (await anext(aiter(consumer))).body == b"tx"


async def test_a_check_back_is_answered_with_a_signed_request(tmp_path: Path) -> None:
    patience = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 10, "transaction_scan_ms": 10}
    async with (
        running_platform(tmp_path, **AUTH, **patience) as platform,
        Admin(platform.name_servers, credentials=ADMIN) as admin,
        Producer(
            platform.name_servers,
            group="tx",
            transaction_checker=lambda _: TransactionState.COMMIT,
            credentials=await admin.issue_token("sender", "p"),
        ) as producer,
        Consumer(platform.name_servers, group="group", credentials=await admin.issue_token("reader", "c")) as consumer,
    ):
        await producer.send_in_transaction(Message("orders", "asked after"), lambda _: TransactionState.UNKNOWN)
        await consumer.subscribe("orders")
        assert (await anext(aiter(consumer))).body == b"asked after"


async def test_pop_works_with_a_consumer_token(platform: Platform, sender: Credentials, reader: Credentials) -> None:
    async with Producer(platform.name_servers, credentials=sender) as producer:
        await producer.send(Message("orders", "popped"))
    async with PopConsumer(platform.name_servers, group="group", credentials=reader) as consumer:
        (receipt,) = await consumer.receive("orders")
        await consumer.ack(receipt)
        assert receipt.message.body == b"popped"


async def test_every_unsigned_request_is_refused(platform: Platform) -> None:
    async with open_channel(platform.address) as channel:
        refused = [await channel.request(code) for code in (*dispatch.HANDLERS, 424242)]
        refused += [await try_send(channel, "orders", b"1"), await try_pull(channel, "orders")]
    assert {answer.code for answer in refused} == {ResponseCode.NO_PERMISSION}
    assert all("is not signed" in (answer.remark or "") for answer in refused)
    assert "orders" not in await platform.broker.broker.store.catalog.list_topics()


async def test_a_consumer_token_cannot_send(platform: Platform, admin: Admin, reader: Credentials) -> None:
    await admin.create_topic("orders")
    async with Producer(platform.name_servers, credentials=reader, retries=0) as producer:
        with pytest.raises(RemoteRefused, match="a consumer's") as caught:
            await producer.send(Message("orders", b"1"))
    assert is_no_permission(caught.value)
    assert sum(bounds.end for bounds in (await admin.topic_bounds("orders")).values()) == 0


async def test_a_producer_token_cannot_read(platform: Platform, admin: Admin, sender: Credentials) -> None:
    async with Producer(platform.name_servers, credentials=sender) as producer:
        sent = await producer.send(Message("orders", b"1", keys="k"))
    address = str(platform.address)
    async with ClientSession(platform.name_servers, credentials=sender) as session:
        for code, header in {
            RequestCode.PULL_MESSAGE: headers.PullMessage(
                "g", "orders", sent.queue_id, 0, 32, 4, 0, 0, 0, subscription="*"
            ),
            RequestCode.QUERY_MESSAGE: headers.QueryMessage("orders", "k", 1, 0, 1 << 60),
            RequestCode.VIEW_MESSAGE_BY_ID: headers.ViewMessage(0),
        }.items():
            answer = await session.invoke_unchecked(address, code, header)
            assert (answer.code, bytes(answer.body)) == (ResponseCode.NO_PERMISSION, b"")


@pytest.mark.parametrize("kind", ["p", "c"])
async def test_producer_and_consumer_tokens_cannot_administer(platform: Platform, admin: Admin, kind: str) -> None:
    own = await admin.issue_token("own", kind)  # type: ignore[arg-type]
    async with Admin(platform.name_servers, credentials=own) as wanting:
        for wish in (
            wanting.create_topic("mine"),
            wanting.issue_token("mine", "p"),
            wanting.revoke_token("own"),
            wanting.tokens(),
        ):
            with pytest.raises(RemoteRefused) as caught:
                await wish
            assert is_no_permission(caught.value)
    assert [token.name for token in await admin.tokens()] == ["own"]


async def test_a_consumer_token_cannot_read_the_secrets_in_the_log(
    platform: Platform, admin: Admin, reader: Credentials
) -> None:
    """The secrets are stored in a system topic of the store."""
    store, topic = platform.broker.broker.store, "rmq_sys_SPARROW_STATE"
    found = await store.read(Queue(topic, 0), (await store.bounds(Queue(topic, 0))).end - 1)
    assert isinstance(found, Slice)
    word = record.decode(found.tobytes())
    assert base64.b64encode(bytes.fromhex(reader.secret_key)) in word.body, "here it is"
    await admin.create_group(Group(name="g"))
    wishes: dict[int, headers.Header] = {
        RequestCode.PULL_MESSAGE: headers.PullMessage("g", topic, 0, 0, 32, 4, 0, 0, 0, subscription="*"),
        RequestCode.PEEK_MESSAGE: headers.PeekMessage("g", topic, 0, 32),
        RequestCode.VIEW_MESSAGE_BY_ID: headers.ViewMessage(word.physical_offset),
        RequestCode.CONSUMER_SEND_MSG_BACK: headers.SendMessageBack(word.physical_offset, "g", 0),
    }
    async with ClientSession(platform.name_servers, credentials=reader) as session:
        for code, header in wishes.items():
            answer = await session.invoke_unchecked(str(platform.address), code, header)
            assert (answer.code == ResponseCode.SUCCESS, bytes(answer.body)) == (False, b""), code


async def test_revoking_takes_effect_with_the_next_request(
    platform: Platform, admin: Admin, sender: Credentials, reader: Credentials
) -> None:
    async with (
        Producer(platform.name_servers, credentials=sender, retries=0) as producer,
        Consumer(platform.name_servers, group="group", credentials=reader) as consumer,
    ):
        await producer.send(Message("orders", b"1"))
        await consumer.subscribe("orders")
        assert (await anext(aiter(consumer))).body == b"1"
        await admin.revoke_token(sender.access_key)
        with pytest.raises(RemoteRefused, match="is revoked") as caught:
            await producer.send(Message("orders", b"2"))
        assert is_no_permission(caught.value)
    with pytest.raises(Refused, match="was revoked"):
        await admin.issue_token(sender.access_key, "p", secret_key=sender.secret_key)
    revoked = {token.name for token in await admin.tokens() if token.revoked_ms is not None}
    assert revoked == {sender.access_key}
    await admin.revoke_token(sender.access_key)  # revoking again is harmless
    with pytest.raises(Refused, match="there is no token 'nobody'"):
        await admin.revoke_token("nobody")


async def test_a_wrong_secret_and_an_unknown_name_have_the_same_error_without_secrets(
    platform: Platform, sender: Credentials
) -> None:
    for credentials in (Credentials(sender.access_key, "guessed"), Credentials("nobody", "guessed")):
        async with Producer(platform.name_servers, credentials=credentials, retries=0) as producer:
            with pytest.raises(RemoteRefused, match="check the access key and the secret key") as caught:
                await producer.send(Message("orders", b"1"))
        assert is_no_permission(caught.value)
        assert "guessed" not in str(caught.value)
        assert sender.secret_key not in str(caught.value)


async def test_a_request_modified_after_signing_is_refused(
    platform: Platform, admin: Admin, sender: Credentials
) -> None:
    await admin.create_topic("orders")
    header = headers.SendMessageV2("g", "orders", "TBW102", 4, 0, 0, 1, 0, "")
    ext = headers.write(sign(header, b"body", sender))
    asked = [(ext, b"body"), (ext | {"e": "1"}, b"body"), (ext, b"Body")]
    async with open_raw_connection(platform.address) as wire:
        answers = [
            await wire.request(RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext=fields, body=body))
            for fields, body in asked
        ]
    assert [answer.code for answer in answers] == [
        ResponseCode.SUCCESS,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_PERMISSION,
    ]


# -- with auth off ----------------------------------------------------------------------------------------------------


async def test_without_auth_requests_are_not_checked_and_use_the_plain_dispatcher(tmp_path: Path) -> None:
    async with running_platform(tmp_path) as platform:
        assert type(platform.broker._serving) is RequestDispatcher
        async with Producer(platform.name_servers, credentials=Credentials("nobody", "any")) as producer:
            await producer.send(Message("orders", b"signed all the same"))
        async with Admin(platform.name_servers) as anyone:
            for wish in (anyone.issue_token("billing", "c"), anyone.issue_token("chief", "a")):
                with pytest.raises(Refused, match=r"broker\.auth is off"):
                    await wish
    async with running_platform(tmp_path, **AUTH) as platform:
        assert type(platform.broker._serving) is GuardedRequestDispatcher
        async with Admin(platform.name_servers, credentials=ADMIN) as admin:
            assert await admin.tokens() == []
            issued = await admin.issue_token("billing", "c")
        async with Consumer(platform.name_servers, group="group", credentials=issued) as consumer:
            await consumer.subscribe("orders")
            assert (await anext(aiter(consumer))).body == b"signed all the same"


def test_a_too_short_admin_secret_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARROW_BROKER__ADMIN_TOKENS__OPERATOR", "short")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "broker.admin_tokens.operator" in str(caught.value)
    assert "'short'" not in str(caught.value)
    settings = BrokerSettings.model_validate(AUTH)
    assert ADMIN.secret_key not in f"{settings} {settings!r} {settings.model_dump()}"


# -- blocking client and command line ---------------------------------------------------------------------------------


@pytest.fixture
def running() -> Iterator[sparrow.testing.RunningPlatform]:
    with sparrow.testing.run_platform(broker=AUTH) as platform:
        yield platform


def test_the_blocking_client_signs_requests(running: sparrow.testing.RunningPlatform) -> None:
    with client.Admin(running.name_servers, credentials=ADMIN) as admin:
        sender, reader = admin.issue_token("s", "p"), admin.issue_token("r", "c")
        with client.Producer(running.name_servers, credentials=sender) as producer:
            producer.send(Message("orders", b"1"))
        with client.Consumer(running.name_servers, group="group", credentials=reader) as consumer:
            consumer.subscribe("orders")
            assert next(iter(consumer)).body == b"1"
        with client.PopConsumer(running.name_servers, group="popping", credentials=reader) as popping:
            assert [receipt.message.body for receipt in popping.receive("orders")] == [b"1"]
        admin.revoke_token("s")
        assert [(token.name, token.revoked_ms is not None) for token in admin.tokens()] == [("r", False), ("s", True)]


@pytest.mark.thorough
def test_the_command_line_issues_lists_and_revokes_tokens(
    running: sparrow.testing.RunningPlatform, tmp_path: Path
) -> None:
    keys = {"SPARROW_ACCESS_KEY": ADMIN.access_key, "SPARROW_SECRET_KEY": ADMIN.secret_key}

    def sparrow_token(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sparrow", "token", *words, "--name-servers", running.name_servers],
            cwd=tmp_path,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    issued = sparrow_token("issue", "billing", "--type", "c", **keys)
    assert issued.returncode == 0, issued.stderr
    (access_key, secret_key) = [line.split()[-1] for line in issued.stdout.splitlines()]
    assert (access_key, len(secret_key)) == ("billing", 64)
    again = sparrow_token("issue", "billing", "--type", "c", **keys)
    assert (again.returncode, secret_key in again.stdout + again.stderr) == (1, False)
    assert "its secret key was shown when it was issued" in again.stderr

    changed = sparrow_token("change", "billing", "--type", "c", "--topic", "orders-*", "--group", "b", **keys)
    assert changed.returncode == 0, changed.stderr
    shown = sparrow_token("show", "billing", "--json", **keys)
    row = json.loads(shown.stdout)
    assert (row["type"], row["topics"], row["groups"]) == ("c", ["orders-*"], ["b"])
    wrong = sparrow_token("issue", "billing", "--type", "x", **keys)
    assert wrong.returncode == 1
    assert "use p for producing, c for consuming" in wrong.stderr
    unsigned = sparrow_token("list")
    assert unsigned.returncode == 4
    assert "is not signed" in unsigned.stderr

    revoked = sparrow_token("revoke", "billing", "--access-key", ADMIN.access_key, "--secret-key", ADMIN.secret_key)
    assert revoked.returncode == 0, revoked.stderr
    listed = sparrow_token("list", **keys)
    assert "billing" in listed.stdout
    assert secret_key not in listed.stdout
