"""Tokens in a database: every kind of message refers to its sender's, and secrets are encrypted with a key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cryptography.fernet import Fernet
from pydantic import SecretStr
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import broker_settings
from tests.support.queue_batches import encode_queue_batches
from tests.support.recording_handlers import RecordingHandler
from tests.support.sql_brokers import sql_store_of
from tests.support.wait import eventually

from sparrow.cli.server.platform import Platform
from sparrow.client.aio import Admin, ClientSession, Consumer, PopConsumer, Producer
from sparrow.client.aio.produce.staging import append_once, commit_stages, seal_stage, stage_records
from sparrow.client.consume.retry import DeadLetter, RetryLater
from sparrow.model.access.acl_entry import AclAction, AclEntry
from sparrow.model.access.token import Credentials, Token, parse_password
from sparrow.model.errors import Busy, MissingExtra, Refused, SettingsError
from sparrow.model.message import Message, StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import CHECK_LIMIT_TOPIC
from sparrow.model.topic import Group
from sparrow.model.transaction import TransactionState
from sparrow.settings import NameServerSettings, SqlSettings
from sparrow.store.sql.engine import SqlStore
from sparrow.store.sql.schema.table_names import table_name, table_suffix
from sparrow.store.sql.state.token_secrets import UnreadableSecret

pytestmark = pytest.mark.one_database

MIDDLE = 1
IMPATIENT = {"transaction_timeout_ms": 0, "transaction_scan_ms": 10, "transaction_checks_max": 0}


class Shop:
    """A platform with `auth` on, a producer's token, and a consumer's."""

    def __init__(self, platform: Platform, admin: Admin, sender: Credentials, reader: Credentials) -> None:
        self.platform, self.admin, self.sender, self.reader = platform, admin, sender, reader
        self.name_servers = platform.name_servers
        self.store = sql_store_of(platform.broker)

    def number(self, credentials: Credentials) -> int:
        return self.store.tokens.id_nowait(credentials.access_key)

    async def senders(self, topic: str = "t") -> dict[str, int]:
        """Return the token of each message of a topic in its middle lane, by body; references have none."""
        table = table_name("msg", table_suffix(topic), 0, Priority.MIDDLE)
        rows = await self.store.database.fetch(f'SELECT body, token FROM "{table}" ORDER BY id')
        return {bytes(body).decode(): token for body, token in rows}

    async def wait_for(self, topic: str, count: int = 1) -> dict[str, int]:
        async with asyncio.timeout(30):
            while topic not in self.store.catalog.topics or len(await self.senders(topic)) < count:
                await asyncio.sleep(0.02)
        return await self.senders(topic)


@asynccontextmanager
async def running_shop(folder: Path, url: str, **settings: object) -> AsyncIterator[Shop]:
    async with Platform(
        folder,
        name_server=NameServerSettings(port=0),
        broker=broker_settings(store=url, **AUTH, **settings),
        sql=SqlSettings(),
    ) as platform:
        async with Admin(platform.name_servers, credentials=ADMIN) as admin:
            await admin.create_topic("t", 1)
            sender, reader = await admin.issue_token("shop", "p"), await admin.issue_token("billing", "c")
            yield Shop(platform, admin, sender, reader)


@pytest.fixture
async def shop(tmp_path: Path, database_url: str) -> AsyncIterator[Shop]:
    async with running_shop(tmp_path, database_url) as running:
        yield running


# -- who sent a message ------------------------------------------------------------------------------------------------


async def test_plain_delayed_transactional_and_staged_messages_refer_to_the_token_of_their_sender(shop: Shop) -> None:
    async with Producer(shop.name_servers, group="p", credentials=shop.sender) as producer:
        await producer.send(Message("t", "plain"))
        await producer.send_batch([Message("t", "batch 1"), Message("t", "batch 2")])
        await producer.send(Message("t", "delayed"), deliver_after_ms=50)
        async with producer.transaction(Message("t", "committed")):
            pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("t", "rolled back")):
                raise ZeroDivisionError
    async with ClientSession(shop.name_servers, credentials=shop.sender) as session:
        address = str(shop.platform.address)
        once, staged = (encode_queue_batches("t", {0: [body]}) for body in (b"once", b"staged"))
        await append_once(session, address, "scope", 0, once, fills_checksum=False)
        await stage_records(session, address, "stage", 0, staged, fills_checksum=False)
        await seal_stage(session, address, "stage", 1)
        assert await commit_stages(session, address, "scope", 1, ["stage"])
    async with Producer(shop.name_servers, credentials=ADMIN) as producer:
        await producer.send(Message("t", "by an admin"))
    found = await shop.wait_for("t", 8)
    assert found.pop("by an admin") == shop.number(ADMIN) > 0
    assert found == dict.fromkeys(
        ("plain", "batch 1", "batch 2", "delayed", "committed", "once", "staged"), shop.number(shop.sender)
    )
    rows = await shop.store.database.fetch("SELECT state, token FROM hermes_half")
    assert [tuple(row) for row in rows] == [("rolled_back", shop.number(shop.sender))]


async def test_a_transaction_that_is_given_up_keeps_its_sender(tmp_path: Path, database_url: str) -> None:
    async with running_shop(tmp_path, database_url, **IMPATIENT) as shop:
        async with Producer(shop.name_servers, group="p", credentials=shop.sender) as producer:
            await producer.send_in_transaction(Message("t", "forgotten"), lambda _: TransactionState.UNKNOWN)
        assert await shop.wait_for(CHECK_LIMIT_TOPIC) == {"forgotten": shop.number(shop.sender)}


async def test_retries_and_dead_letters_refer_to_the_token_of_the_first_sender(shop: Shop) -> None:
    async def handle(message: StoredMessage) -> None:
        raise DeadLetter("no") if message.reconsume_times else RetryLater(1)

    async with Producer(shop.name_servers, credentials=shop.sender) as producer:
        await producer.send(Message("t", "hard"))
    async with Consumer(shop.name_servers, group="readers", credentials=shop.reader) as consumer:
        await consumer.subscribe("t")
        await consumer.start(handle)
        assert await shop.wait_for("%DLQ%readers") == {"hard": shop.number(shop.sender)}
        assert await shop.senders("%RETRY%readers") == {"hard": shop.number(shop.sender)}


async def test_a_message_that_was_popped_and_not_acknowledged_keeps_its_sender(shop: Shop) -> None:
    async with Producer(shop.name_servers, credentials=shop.sender) as producer:
        await producer.send(Message("t", "unacknowledged"))
    await shop.admin.create_group(Group(name="poppers", retries_max=0))
    async with PopConsumer(shop.name_servers, group="poppers", credentials=shop.reader, invisible_ms=1_000) as consumer:
        async with asyncio.timeout(30):
            while not await consumer.receive("t"):
                pass
    assert await shop.wait_for("%DLQ%poppers") == {"unacknowledged": shop.number(shop.sender)}


async def test_a_resend_records_the_token_that_requested_it_and_the_reference_that_of_the_sender(shop: Shop) -> None:
    handler = RecordingHandler()
    async with Producer(shop.name_servers, credentials=shop.sender) as producer:
        await producer.send(Message("t", "again"))
    async with Consumer(
        shop.name_servers, group="readers", credentials=shop.reader, commit_interval_ms=10, consume_from="first"
    ) as consumer:
        await consumer.subscribe("t")
        await consumer.start(handler)
        await eventually(lambda: handler.texts == ["again"])
        await shop.admin.resend("t", group="readers", begin=0, end=0, queue_id=MIDDLE, force=True)
        await eventually(lambda: handler.texts == ["again", "again"])
    rows = await shop.store.database.fetch("SELECT token FROM resend_middle_t")
    assert [row[0] for row in rows] == [shop.number(ADMIN)]
    assert await shop.senders("%RETRY%readers") == {"": shop.number(shop.sender)}


async def test_permissions_are_stored_with_the_token_and_old_rows_have_all_of_their_type(database_url: str) -> None:
    limited = Token(
        id=0, name="web", kind="pc", secret=SECRET, created_ms=1, topics=("a", "orders-*"), groups=("billing",)
    )
    async with await SqlStore.open(database_url) as store:
        await store.tokens.put(shop_token())
        await store.tokens.put(limited)
        rows = dict(await store.database.fetch("SELECT token, permissions FROM meta_token WHERE secret IS NOT NULL"))
        assert rows["shop"] is None, "as brokers before version 6 of the schema have stored it"
        found = await store.tokens.all()
        assert (found["shop"].kind, found["shop"].topics, found["shop"].groups) == ("p", ("*",), ("*",))
        assert msgspec.structs.replace(found["web"], id=0) == limited
        # A token of the same name with another secret was issued elsewhere: it changes nothing.
        await store.tokens.put(msgspec.structs.replace(limited, secret=bytes(32), kind="a", topics=("*",)))
        assert (await store.tokens.all())["web"].kind == "pc"
        await store.tokens.put(msgspec.structs.replace(limited, kind="a", topics=("*",), groups=("*",)))
    async with await SqlStore.open(database_url) as store:
        changed = (await store.tokens.all())["web"]
        assert (changed.kind, changed.topics, changed.groups, changed.secret) == ("a", ("*",), ("*",), SECRET)


async def test_source_addresses_are_stored_with_the_token_and_old_rows_have_none(database_url: str) -> None:
    near = msgspec.structs.replace(shop_token("web"), addresses=("10.0.0.0/8", "2001:db8::1"))
    async with await SqlStore.open(database_url) as store:
        await store.tokens.put(shop_token())
        await store.tokens.put(near)
        rows = dict(await store.database.fetch("SELECT token, addresses FROM meta_token WHERE secret IS NOT NULL"))
        assert rows["shop"] is None, "as brokers before version 7 of the schema have stored it"
        found = await store.tokens.all()
        assert found["shop"].addresses == ()
        assert msgspec.structs.replace(found["web"], id=0) == near
    async with await SqlStore.open(database_url) as store:
        assert (await store.tokens.all())["web"].addresses == near.addresses
        await store.tokens.put(msgspec.structs.replace(near, addresses=("::1",), revoked_ms=5))
        assert (await store.tokens.all())["web"].addresses == ("::1",)
        await store.tokens.put(msgspec.structs.replace(near, addresses=()))
    async with await SqlStore.open(database_url) as store:
        assert (await store.tokens.all())["web"].addresses == ()


async def test_the_acl_of_a_token_is_stored_and_old_rows_have_none(database_url: str) -> None:
    entry = AclEntry(resource="Topic:é*", actions=(AclAction.PUB,), decision="Deny", addresses=("10.0.0.0/8",))
    user = msgspec.structs.replace(shop_token("web"), topics=(), groups=(), acl=(entry,), disabled_ms=7)
    async with await SqlStore.open(database_url) as store:
        await store.tokens.put(shop_token())
        await store.tokens.put(user)
        await store.tokens.put(msgspec.structs.replace(user, name="empty", acl=(), disabled_ms=None))
        rows = await store.database.fetch("SELECT token, acl FROM meta_token WHERE secret IS NOT NULL")
        assert dict(rows)["shop"] is None, "as brokers before version 8 of the schema have stored it"
    async with await SqlStore.open(database_url) as store:
        found = await store.tokens.all()
        assert (found["shop"].acl, found["shop"].disabled_ms) == (None, None)
        assert msgspec.structs.replace(found["web"], id=0) == user
        assert found["empty"].acl == ()
        await store.tokens.put(msgspec.structs.replace(user, acl=None, disabled_ms=None, topics=("a",)))
        changed = (await store.tokens.all())["web"]
        assert (changed.acl, changed.disabled_ms, changed.topics) == (None, None, ("a",))


async def test_a_change_of_a_token_that_another_broker_has_revoked_meanwhile_does_not_bring_it_back(
    database_url: str,
) -> None:
    async with await SqlStore.open(database_url) as store, await SqlStore.open(database_url) as other:
        await store.tokens.put(shop_token())
        seen = (await store.tokens.all())["shop"]
        await other.tokens.all()
        await other.tokens.put(msgspec.structs.replace(seen, revoked_ms=5), before=seen)
        with pytest.raises(Busy, match="'shop' was changed by another broker"):
            await store.tokens.put(msgspec.structs.replace(seen, topics=("a",)), before=seen)
        with pytest.raises(Busy):
            changed = msgspec.structs.replace(seen, secret=parse_password("correct horse"))
            await store.tokens.put(changed, before=seen, replaces_secret=True)
        found = (await store.tokens.all())["shop"]
        assert (found.revoked_ms, found.topics, found.secret) == (5, ("*",), SECRET)
        await store.tokens.put(msgspec.structs.replace(found, topics=("a",)), before=found)
        assert (await other.tokens.all())["shop"].topics == ("a",)


async def test_of_concurrent_changes_of_an_acl_by_two_brokers_none_is_lost(database_url: str) -> None:
    async with await SqlStore.open(database_url) as store, await SqlStore.open(database_url) as other:
        await store.tokens.put(msgspec.structs.replace(shop_token(), topics=(), groups=(), acl=()))

        async def add(at: SqlStore, resource: str) -> None:
            entry = AclEntry(resource=resource, actions=(AclAction.PUB,), decision="Allow")
            while True:
                before = (await at.tokens.all())["shop"]
                try:
                    after = msgspec.structs.replace(before, acl=(*(before.acl or ()), entry))
                    await at.tokens.put(after, before=before)
                    return
                except Busy:
                    pass

        async def add_all(at: SqlStore, name: str) -> None:
            for number in range(10):
                await add(at, f"Topic:{name}{number}")

        await asyncio.gather(add_all(store, "a"), add_all(other, "b"))
        entries = (await store.tokens.all())["shop"].acl or ()
        assert sorted(entry.resource for entry in entries) == sorted(f"Topic:{n}{i}" for n in "ab" for i in range(10))


async def test_a_secret_is_replaced_only_on_request_and_other_brokers_use_the_new_one(database_url: str) -> None:
    async with await SqlStore.open(database_url) as store, await SqlStore.open(database_url) as other:
        await store.tokens.put(shop_token())
        number = store.tokens.id_nowait("shop")
        changed = msgspec.structs.replace(shop_token(), secret=parse_password("correct horse"), created_ms=9)
        await store.tokens.put(changed)
        assert (await store.tokens.all())["shop"].secret == SECRET
        await store.tokens.put(changed, replaces_secret=True)
        for each in (store, other):
            found = (await each.tokens.all())["shop"]
            assert (found.id, found.secret_key, found.created_ms) == (number, "correct horse", 9)


@pytest.mark.parametrize("length", [1, 31, 32, 33, 96])
async def test_a_password_of_any_length_is_stored_as_it_is_and_encrypted_with_a_key(
    database_url: str, length: int
) -> None:
    user = msgspec.structs.replace(shop_token(), secret=parse_password("p" * length))
    async with await SqlStore.open(database_url) as store:
        await store.tokens.put(user)
    async with await SqlStore.open(database_url) as store:
        assert (await store.tokens.all())["shop"].secret_key == "p" * length
    for keys in (keyed(OLD_KEY), keyed(NEW_KEY, OLD_KEY)):
        async with await SqlStore.open(database_url, keys) as store:
            assert len(await stored_secret(store)) >= 100
            assert (await store.tokens.all())["shop"].secret_key == "p" * length


async def test_the_name_of_a_former_admin_token_cannot_be_issued(tmp_path: Path, database_url: str) -> None:
    async with await SqlStore.open(database_url, admin_tokens=["operator"]) as store:
        assert await store.tokens.all() == {}
        assert store.tokens.id_nowait("operator") > 0
    async with await SqlStore.open(database_url) as store:
        with pytest.raises(Refused, match="is taken by an admin token"):
            await store.tokens.put(Token(id=0, name="operator", kind="c", secret=bytes(32), created_ms=1))


# -- secrets at rest ---------------------------------------------------------------------------------------------------

SECRET = bytes(range(32))
OLD_KEY, NEW_KEY, OTHER_KEY = (Fernet.generate_key().decode() for _ in range(3))


def keyed(*keys: str) -> SqlSettings:
    return SqlSettings(token_keys=SecretStr(", ".join(keys)))


async def stored_secret(store: SqlStore, name: str = "shop") -> bytes:
    ((stored,),) = await store.database.fetch("SELECT secret FROM meta_token WHERE token = :name", name=name)
    return bytes(stored)


def shop_token(name: str = "shop", *, revoked_ms: int | None = None) -> Token:
    return Token(id=0, name=name, kind="p", secret=SECRET, created_ms=1, revoked_ms=revoked_ms)


async def test_secrets_are_encrypted_with_the_first_key_and_read_with_any(database_url: str) -> None:
    async with await SqlStore.open(database_url) as store:
        await store.tokens.put(shop_token())
        assert await stored_secret(store) == SECRET
    # Without a key before: opening the store with one encrypts what is there.
    async with await SqlStore.open(database_url, keyed(OLD_KEY)) as store:
        assert Fernet(OLD_KEY).decrypt(await stored_secret(store)) == SECRET
        await store.tokens.put(shop_token("web"))
        assert SECRET not in await stored_secret(store, "web")
        assert {name: token.secret for name, token in (await store.tokens.all()).items()} == {
            "shop": SECRET,
            "web": SECRET,
        }
    async with await SqlStore.open(database_url, keyed(OLD_KEY, NEW_KEY)) as store:
        assert Fernet(OLD_KEY).decrypt(await stored_secret(store)) == SECRET, "the first key is still the old one"
    async with await SqlStore.open(database_url, keyed(NEW_KEY, OLD_KEY)) as store:
        assert Fernet(NEW_KEY).decrypt(await stored_secret(store)) == SECRET
    async with await SqlStore.open(database_url, keyed(NEW_KEY)) as store:
        assert (await store.tokens.all())["web"].secret == SECRET


@pytest.mark.parametrize(
    ("settings", "why"),
    [(SqlSettings(), "sql.token_keys is empty"), (keyed(OTHER_KEY), "no key in sql.token_keys decrypts it")],
    ids=["no key", "another key"],
)
async def test_a_store_whose_secrets_cannot_be_decrypted_is_not_opened(
    database_url: str, settings: SqlSettings, why: str
) -> None:
    async with await SqlStore.open(database_url, keyed(OLD_KEY)) as store:
        await store.tokens.put(shop_token())
        before = await stored_secret(store)
    with pytest.raises(UnreadableSecret) as refused:
        await SqlStore.open(database_url, settings)
    assert str(refused.value).startswith("the secret of token 'shop' in ")
    assert str(refused.value).endswith(f"is encrypted, and {why}: add the key that it was encrypted with")
    assert OTHER_KEY not in str(refused.value)
    async with await SqlStore.open(database_url, keyed(OLD_KEY)) as store:
        assert await stored_secret(store) == before


async def test_a_broker_without_the_new_key_keeps_the_tokens_it_knows_and_refuses_new_ones(database_url: str) -> None:
    async with await SqlStore.open(database_url, keyed(OLD_KEY)) as behind:
        await behind.tokens.put(shop_token())
        async with await SqlStore.open(database_url, keyed(NEW_KEY, OLD_KEY)) as ahead:
            await ahead.tokens.put(shop_token("web"))
            await ahead.tokens.put(shop_token(revoked_ms=5))
            known = await behind.tokens.all()
            assert known.keys() == {"shop"}
            assert (known["shop"].secret, known["shop"].revoked_ms) == (SECRET, 5)
            with pytest.raises(UnreadableSecret):
                await behind.tokens.put(shop_token("web"))
            assert (await ahead.tokens.all())["web"].revoked_ms is None


async def test_a_key_that_cannot_be_used_is_refused_and_not_shown(database_url: str) -> None:
    with pytest.raises(SettingsError, match="32 random bytes in URL-safe base64") as refused:
        await SqlStore.open(database_url, keyed("my password"))
    assert "my password" not in str(refused.value)


async def test_the_missing_package_is_named(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrow.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'sql.token_keys needs cryptography: pip install "sparrowmq\[encryption\]"'):
        await SqlStore.open(database_url, keyed(OLD_KEY))
