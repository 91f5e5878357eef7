"""Every refusal because of a limit or for want of access is counted, under a name that no peer can choose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import broker_settings, open_channel, send, try_send
from tests.support.queue_batches import encode_queue_batches
from tests.support.raw_connection import open_raw_connection
from tests.support.scrapes import scrape

from sparrow import Credentials
from sparrow.aio import Admin
from sparrow.cli.server.platform import Platform
from sparrow.net import Channel
from sparrow.net.access.signatures import make_signer
from sparrow.settings import LogSettings, NameServerSettings, TelemetrySettings
from sparrow.testing.platform import SMALL_LOG_SETTINGS
from sparrow.wire import batch, bodies, headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import Header

LIMITS = {
    "batch_keys",
    "batch_messages",
    "broken_frames",
    "client_groups",
    "connections",
    "database_backlog",
    "disk",
    "groups",
    "incomplete_frames",
    "kv_bytes",
    "long_polls",
    "message_size",
    "pops_in_flight",
    "queue_locks",
    "request_bytes",
    "request_size",
    "requests_in_progress",
    "stages",
    "token_bytes",
    "topic_queues",
    "topics",
    "unsent_bytes",
}
CAUSES = {"unsigned", "signature", "revoked", "disabled", "address", "permission", "tls"}
LIMITS_HIT, ACCESS = "sparrow_limits_hit_total", "sparrow_access_refusals_total"


@asynccontextmanager
async def platform(folder: Path, name_server: dict[str, Any] | None = None, **broker: Any) -> AsyncIterator[Platform]:
    async with Platform(
        folder,
        name_server=NameServerSettings.model_validate({"port": 0, **(name_server or {})}),
        broker=broker_settings(**broker),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS),
        telemetry=TelemetrySettings(metrics_port=0),
    ) as running:
        yield running


async def counts(running: Platform, metric: str, label: str) -> dict[str, float]:
    """Return the counts of a metric by its label, with those that are 0."""
    assert running.telemetry_server is not None
    found = await scrape(running.telemetry_server.address)
    return {sample.labels[label]: sample.value for sample in found.families[metric].samples}


async def request(channel: Channel, code: int, header: Header | None = None, body: bytes = b"") -> int:
    return (await channel.request(code, header, body, timeout_ms=10_000)).code


async def too_many_groups(channel: Channel) -> int:
    producers = [bodies.ProducerData(f"group-{number}") for number in range(3)]
    beat = bodies.write(bodies.HeartbeatData("c@1", producers))
    return await request(channel, RequestCode.HEART_BEAT, headers.Heartbeat(), beat)


async def too_large_a_request(channel: Channel) -> int:
    return await request(channel, RequestCode.HEART_BEAT, headers.Heartbeat(), bytes(2 << 20))


async def too_large_a_message(channel: Channel) -> int:
    return (await try_send(channel, "t", bytes(5 << 20))).code


async def too_many_messages(channel: Channel) -> int:
    body = batch.encode([(0, b"", b"")] * 4)
    return (await try_send(channel, "t", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)).code


async def too_much_staged(channel: Channel) -> int:
    records = encode_queue_batches("t", {0: [b"x"]})
    return await request(channel, RequestCode.STAGE_RECORDS, headers.StageRecords("stage", 0, False), records)


@pytest.mark.parametrize(
    ("refuse", "limit"),
    [
        (too_many_groups, "client_groups"),
        (too_large_a_request, "request_size"),
        (too_large_a_message, "message_size"),
        (too_many_messages, "batch_messages"),
        (too_much_staged, "stages"),
    ],
)
async def test_a_refused_request_is_counted_by_its_limit(
    refuse: Callable[[Channel], Awaitable[int]], limit: str, tmp_path: Path
) -> None:
    limits = {"client_groups_max": 2, "batch_messages_max": 3, "stage_bytes_max": 1}
    async with platform(tmp_path, **limits) as running, open_channel(running.address) as channel:
        await send(channel, "t", b"accepted")
        before = await counts(running, LIMITS_HIT, "limit")
        assert set(before) == LIMITS
        assert not any(before.values())
        for _ in range(2):
            assert await refuse(channel) != ResponseCode.SUCCESS
        after = await counts(running, LIMITS_HIT, "limit")
        assert {name: count for name, count in after.items() if count} == {limit: 2}


async def test_broken_frames_and_topics_beyond_their_limit_are_counted(tmp_path: Path) -> None:
    async with platform(tmp_path, topics_max=1) as running, open_channel(running.address) as channel:
        async with open_raw_connection(running.address) as garbage, open_raw_connection(running.address) as large:
            garbage.write(b"GET / HTTP/1.1\r\n\r\n")
            large.write((64 << 20).to_bytes(4, "big") + bytes(100))
            assert await garbage.is_closed_by_peer()
            assert await large.is_closed_by_peer()
        assert (await try_send(channel, "one-more", b"x")).code != ResponseCode.SUCCESS
        found = await counts(running, LIMITS_HIT, "limit")
        assert {name: count for name, count in found.items() if count} == {"broken_frames": 2, "topics": 1}


async def test_requests_without_access_are_counted_by_their_cause(tmp_path: Path) -> None:
    async with platform(tmp_path, **AUTH) as running, Admin(running.name_servers, credentials=ADMIN) as admin:
        sender = await admin.issue_token("sender", "p", topics=["mine"])
        abroad = await admin.issue_token("abroad", "p", addresses=["10.9.9.0/24"])
        revoked = await admin.issue_token("revoked", "p")
        await admin.revoke_token("revoked")

        async def try_as(credentials: Credentials | None, topic: str) -> None:
            async with open_channel(running.address) as channel:
                if credentials is not None:
                    channel.sign = await make_signer(channel, credentials, timeout_ms=10_000)
                assert (await try_send(channel, topic, b"x")).code == ResponseCode.NO_PERMISSION

        assert await counts(running, ACCESS, "cause") == dict.fromkeys(CAUSES, 0)
        await try_as(None, "mine")
        await try_as(Credentials("sender", "a wrong secret"), "mine")
        await try_as(Credentials("nobody-" + "x" * 100, "a wrong secret"), "mine")
        await try_as(abroad, "mine")
        await try_as(revoked, "mine")
        for topic in ("yours", "theirs", "ours"):
            await try_as(sender, topic)
        expected = {"unsigned": 1, "signature": 2, "address": 1, "revoked": 1, "disabled": 0, "permission": 3, "tls": 0}
        assert await counts(running, ACCESS, "cause") == expected
        assert set(await counts(running, LIMITS_HIT, "limit")) == LIMITS


async def test_a_name_server_counts_changes_that_nobody_signed(tmp_path: Path) -> None:
    async with platform(tmp_path, **AUTH) as running, open_channel(running.name_server.address) as channel:
        assert await request(channel, RequestCode.GET_BROKER_CLUSTER_INFO) == ResponseCode.SUCCESS
        header = headers.ChangeWritePermission("sparrow")
        for _ in range(3):
            assert await request(channel, RequestCode.WIPE_WRITE_PERM_OF_BROKER, header) == ResponseCode.NO_PERMISSION
        found = await counts(running, "sparrow_name_server_access_refusals_total", "cause")
        assert found == {**dict.fromkeys(CAUSES, 0), "unsigned": 3}
        assert await request(channel, RequestCode.GET_BROKER_CLUSTER_INFO, body=bytes(2 << 20)) != ResponseCode.SUCCESS
        limits = await counts(running, "sparrow_name_server_limits_hit_total", "limit")
        assert limits["request_size"] == 1
