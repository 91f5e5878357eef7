"""Tokens are state updates in the log, like topics and groups; retention does not delete them."""

import msgspec
import pytest
from tests.support.drafts import make_draft
from tests.support.log_stores import loaded, small_settings

from sparrow.model.access.acl_entry import AclAction, AclEntry
from sparrow.model.access.token import Token, parse_password
from sparrow.model.errors import Busy, IllegalName
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.state.tables import StateTables
from sparrow.store.log.state.updates import TokenUpdate, decode_updates, encode_updates

P = Token(id=1, name="appid-340101;sid-p0912", kind="p", secret=bytes(range(32)), created_ms=5)
C = Token(id=2, name="billing", kind="c", secret=bytes(32), created_ms=6)
GONE = msgspec.structs.replace(C, revoked_ms=9)
NEAR = msgspec.structs.replace(P, addresses=("10.0.0.0/8", "2001:db8::1"))


def test_the_newest_update_of_a_token_counts():
    state = StateTables()
    state.apply([TokenUpdate(P), TokenUpdate(C)], 100)
    state.apply([TokenUpdate(GONE)], 200)
    assert state.tokens == {P.name: P, C.name: GONE}
    assert state.updates_before(150) == [TokenUpdate(P)]


def test_a_token_is_restored_from_its_record_and_from_a_snapshot():
    ((_, body),) = encode_updates([TokenUpdate(P), TokenUpdate(GONE)])
    assert decode_updates(body, 0) == [TokenUpdate(P), TokenUpdate(GONE)]
    state, again = StateTables(), StateTables()
    state.apply([TokenUpdate(P), TokenUpdate(GONE)], 100)
    again.restore(loaded(state.snapshot(7, 400)))
    assert again.tokens == state.tokens
    assert again.updates_before(1000) == state.updates_before(1000)
    again.clear()
    assert again.tokens == {}


async def test_tokens_are_stored_and_returned_unchanged(tmp_path):
    async with LogStore(tmp_path, small_settings()) as store:
        assert await store.tokens.all() == {}
        await store.tokens.put(P)
        await store.tokens.put(C)
        before = await store.tokens.all()
        await store.tokens.put(GONE)
        assert before == {P.name: P, C.name: C}, "a returned value must not change afterwards"
        assert await store.tokens.all() == {P.name: P, C.name: GONE}
    async with LogStore(tmp_path, small_settings()) as store:
        assert await store.tokens.all() == {P.name: P, C.name: GONE}


async def test_a_change_of_what_a_token_is_no_longer_is_refused(tmp_path):
    async with LogStore(tmp_path, small_settings()) as store:
        await store.tokens.put(C)
        await store.tokens.put(GONE, before=C)
        with pytest.raises(Busy, match="'billing' was changed at the same time"):
            await store.tokens.put(msgspec.structs.replace(C, topics=("a",)), before=C)
        assert await store.tokens.all() == {C.name: GONE}


async def test_source_addresses_survive_a_restart(tmp_path):
    async with LogStore(tmp_path, small_settings()) as store:
        await store.tokens.put(P)
        await store.tokens.put(NEAR)
    async with LogStore(tmp_path, small_settings()) as store:
        assert await store.tokens.all() == {P.name: NEAR}
        await store.tokens.put(P)
    async with LogStore(tmp_path, small_settings()) as store:
        assert await store.tokens.all() == {P.name: P}


def test_a_token_that_was_stored_before_there_were_addresses_is_used_from_anywhere():
    ((_, body),) = encode_updates([TokenUpdate(NEAR)])
    stored = msgspec.json.decode(body)
    assert stored[0]["token"].pop("addresses") == ["10.0.0.0/8", "2001:db8::1"]
    assert decode_updates(msgspec.json.encode(stored), 0) == [TokenUpdate(P)]


async def test_a_change_is_visible_at_once_in_all_nowait(tmp_path):
    async with LogStore(tmp_path, small_settings()) as store:
        looking = store.tokens.all_nowait()
        await store.tokens.put(C)
        assert looking == {C.name: C}
        await store.tokens.put(GONE)
        assert looking == {C.name: GONE}
        with pytest.raises(TypeError):
            looking["another"] = P  # type: ignore[index]


async def test_an_invalid_token_name_is_refused(tmp_path):
    async with LogStore(tmp_path, small_settings()) as store:
        with pytest.raises(IllegalName):
            await store.tokens.put(msgspec.structs.replace(P, name="a\nb"))
        assert await store.tokens.all() == {}


async def test_retention_deletes_messages_and_keeps_tokens(tmp_path):
    now = [1_700_000_000_000]
    settings = small_settings(retention_hours=1)
    async with LogStore(tmp_path, settings, now_ms=lambda: now[0]) as store:
        await store.tokens.put(P)
        await store.tokens.put(GONE)
        await store.catalog.put_topic(Topic(name="T"))
        for _ in range(3 * settings.segment_bytes // 1024):
            await store.append(Queue("T", 0), [make_draft(bytes(1000))])
        now[0] += 2 * 3_600_000
        assert await store.trim() > 0
        assert store.first > 0, "the segment with the first updates must be deleted"
    async with LogStore(tmp_path, settings, now_ms=lambda: now[0]) as store:
        assert await store.tokens.all() == {P.name: P, C.name: GONE}


async def test_acl_password_and_state_survive_a_restart(tmp_path):
    entry = AclEntry(resource="Topic:a*", actions=(AclAction.PUB, AclAction.SUB), decision="Deny", addresses=("::1",))
    user = msgspec.structs.replace(P, secret=parse_password("correct horse"), acl=(entry,), disabled_ms=7)
    async with LogStore(tmp_path, small_settings()) as store:
        await store.tokens.put(P)
        await store.tokens.put(user, replaces_secret=True)
    async with LogStore(tmp_path, small_settings()) as store:
        assert await store.tokens.all() == {P.name: user}
        assert (await store.tokens.all())[P.name].secret_key == "correct horse"


def test_a_token_that_was_stored_before_there_were_acls_has_none_and_is_enabled():
    ((_, body),) = encode_updates([TokenUpdate(P)])
    stored = msgspec.json.decode(body)
    assert (stored[0]["token"].pop("acl"), stored[0]["token"].pop("disabled_ms")) == (None, None)
    assert decode_updates(msgspec.json.encode(stored), 0) == [TokenUpdate(P)]
