"""Signatures on real connections: replays are refused, and name servers accept changes of administrators only."""

import asyncio
from pathlib import Path

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import open_channel, running_platform
from tests.support.raw_connection import open_raw_connection

from sparrow import Credentials, Message
from sparrow.cli.server.platform import Platform
from sparrow.client.aio import Admin, Producer
from sparrow.model.errors import Refused
from sparrow.net.channel import Channel
from sparrow.net.dialer import connect
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import DeleteTopic, EmptyHeader
from sparrow.wire.signing import sign


def recorded_frames(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list of all frames that the channel sends from now on."""
    frames: list[bytes] = []
    write = channel.write

    def record(data: bytes | memoryview) -> None:
        frames.append(bytes(data))
        write(data)

    monkeypatch.setattr(channel, "write", record)
    return frames


async def test_a_recorded_request_is_refused_on_its_connection_and_on_others(
    platform: Platform, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await admin.create_topic("orders", 1)
    channel = await connect(platform.address, credentials=ADMIN)
    frames = recorded_frames(channel, monkeypatch)
    answer = await channel.request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic("orders"), timeout_ms=20_000)
    assert answer.code == ResponseCode.SUCCESS
    await admin.create_topic("orders", 1)
    channel.write(frames[0])  # the answer has a number that nobody waits for
    assert (await channel.request(RequestCode.GET_ALL_TOPIC_CONFIG)).code == ResponseCode.SUCCESS
    async with open_raw_connection(platform.address) as attacker:
        attacker.write(RemotingCommand(RequestCode.GET_CHALLENGE, 1))
        assert (await attacker.read())[0].code == ResponseCode.SUCCESS
        attacker.write(frames[0])
        refusal = (await attacker.read())[0]
    assert refusal.code == ResponseCode.NO_PERMISSION
    assert platform.broker.broker.topics.get("orders") is not None
    channel.close()


async def test_a_broker_that_requires_challenges_refuses_the_signatures_of_rocketmq(tmp_path: Path) -> None:
    async with running_platform(tmp_path, **AUTH, auth_requires_challenge=True) as platform:
        async with Admin(platform.name_servers, credentials=ADMIN) as admin:
            await admin.create_topic("orders", 1)
            sender = await admin.issue_token("web", "p")
        async with Producer(platform.name_servers, credentials=sender) as producer:
            await producer.send(Message("orders", b"signed"))
        async with open_channel(platform.address) as channel:
            answer = await channel.request(RequestCode.GET_ALL_TOPIC_CONFIG, sign(EmptyHeader(), b"", ADMIN))
    assert answer.code == ResponseCode.NO_PERMISSION
    assert "auth_requires_challenge" in answer.remark


async def test_a_name_server_beside_a_guarded_broker_accepts_changes_of_administrators_only(
    platform: Platform, admin: Admin
) -> None:
    await admin.create_topic("orders", 1)
    address = platform.name_server.address
    changes = [
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    ]
    stranger = Credentials("stranger", "any secret at all")
    forger = Credentials(ADMIN.access_key, "a guessed secret")
    async with open_channel(address) as unsigned:
        channels = [unsigned, *[await connect(address, credentials=who) for who in (stranger, forger)]]
        for channel in channels:
            for code in changes:
                answer = await channel.request(code, DeleteTopic("orders"))
                assert answer.code == ResponseCode.NO_PERMISSION, (code, answer.remark)
            route = await channel.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute("orders"))
            assert route.code == ResponseCode.SUCCESS, "everyone may read routes"
        for channel in channels[1:]:
            channel.close()
    await admin.delete_topic("orders")
    async with open_channel(address) as reader:
        route = await reader.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRoute("orders"))
        assert route.code == ResponseCode.TOPIC_NOT_EXIST


async def test_signed_requests_of_many_tasks_keep_their_order(platform: Platform, admin: Admin) -> None:
    """Sends, one-way requests and long polls share one connection, and their numbers rise in the order of the wire."""
    await admin.create_topic("orders", 4)
    sender = await admin.issue_token("web", "p")
    async with Producer(platform.name_servers, credentials=sender, retries=0, timeout_ms=20_000) as producer:
        results = await asyncio.gather(*(producer.send(Message("orders", bytes([n]) * 1000)) for n in range(250)))
        assert len({result.message_id for result in results}) == 250
    guessed = Credentials("web", "not the secret")
    async with Producer(platform.name_servers, credentials=guessed, retries=0) as wrong:
        with pytest.raises(Refused):
            await wrong.send(Message("orders", b"forged"))
