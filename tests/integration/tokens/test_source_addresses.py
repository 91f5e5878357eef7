"""Tokens that are limited to source addresses, on a live broker."""

import contextlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import broker_settings, running_broker, running_platform
from tests.support.raw_connection import open_raw_connection

import sparrow.testing
from sparrow import client
from sparrow.cli.server.platform import Platform
from sparrow.client import Credentials, Message
from sparrow.client.aio import Admin, ClientSession, Producer
from sparrow.model.errors import NotPermitted, Refused
from sparrow.net import Address
from sparrow.settings import NameServerSettings, SqlSettings
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import IssueToken
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.signing import sign

ELSEWHERE = ["10.0.0.0/8", "2001:db8::/32"]


async def is_served(name_servers: str, token: Credentials) -> bool:
    """Return whether a producer of this machine may send with the token."""
    async with Producer(name_servers, credentials=token, retries=0) as producer:
        try:
            await producer.send(Message("orders", b"1"))
        except NotPermitted as refusal:
            assert f"token {token.access_key!r} may not be used from 127.0.0.1" in str(refusal)  # noqa: PT017
            return False
        return True


@pytest.mark.parametrize("addresses", [["127.0.0.1/8"], ["127.0.0.1"], ["::ffff:127.0.0.1"], [*ELSEWHERE, "0.0.0.0/0"]])
async def test_a_token_is_used_from_an_address_in_its_list(
    platform: Platform, admin: Admin, addresses: list[str]
) -> None:
    assert await is_served(platform.name_servers, await admin.issue_token("shop", "p", addresses=addresses))


@pytest.mark.parametrize("addresses", [ELSEWHERE, ["127.0.0.2"], ["::1"], ["::/0"]])
async def test_a_token_is_refused_from_an_address_outside_its_list(
    platform: Platform, admin: Admin, addresses: list[str]
) -> None:
    assert not await is_served(platform.name_servers, await admin.issue_token("shop", "p", addresses=addresses))
    assert "orders" not in platform.broker.broker.topics


@pytest.mark.parametrize("addresses", [None, []])
async def test_a_token_without_a_list_is_used_from_anywhere(
    platform: Platform, admin: Admin, addresses: Iterable[str] | None
) -> None:
    assert await is_served(platform.name_servers, await admin.issue_token("shop", "p", addresses=addresses))
    assert [token.addresses for token in await admin.tokens()] == [[]]


async def test_a_changed_list_applies_to_the_next_request_and_survives_a_restart(tmp_path: Path) -> None:
    async with running_platform(tmp_path, **AUTH) as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        token = await admin.issue_token("shop", "p", addresses=["127.0.0.0/8"])
        async with Producer(platform.name_servers, credentials=token, retries=0) as producer:
            await producer.send(Message("orders", b"1"))
            await admin.change_token("shop", "p", addresses=ELSEWHERE)
            with pytest.raises(NotPermitted, match=r"may not be used from 127\.0\.0\.1"):
                await producer.send(Message("orders", b"2"))
            await admin.change_token("shop", "p")
            await producer.send(Message("orders", b"3"))
            await admin.change_token("shop", "p", addresses=ELSEWHERE)
    async with running_platform(tmp_path, **AUTH) as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        assert [token.addresses for token in await admin.tokens()] == [ELSEWHERE]
        assert not await is_served(platform.name_servers, token)


async def test_a_list_in_a_database_is_applied_and_survives_a_restart(tmp_path: Path) -> None:
    def running() -> Platform:
        store = f"sqlite:///{tmp_path}/messages.db"
        return Platform(
            tmp_path,
            name_server=NameServerSettings(port=0),
            broker=broker_settings(store=store, **AUTH),
            sql=SqlSettings(),
        )

    async with running() as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        near = await admin.issue_token("near", "p", addresses=["127.0.0.1"])
        far = await admin.issue_token("far", "p", addresses=ELSEWHERE)
        assert await is_served(platform.name_servers, near)
        assert not await is_served(platform.name_servers, far)
    async with running() as platform, Admin(platform.name_servers, credentials=ADMIN) as admin:
        assert {token.name: token.addresses for token in await admin.tokens()} == {
            "near": ["127.0.0.1"],
            "far": ELSEWHERE,
        }
        assert await is_served(platform.name_servers, near)
        assert not await is_served(platform.name_servers, far)
        await admin.change_token("far", "p")
        assert await is_served(platform.name_servers, far)


async def test_a_peer_of_ipv6_is_compared_with_the_networks_of_ipv6(tmp_path: Path) -> None:
    async with running_broker(tmp_path, host="::1", **AUTH) as server:
        async with open_raw_connection(Address("::1", server.address.port)) as wire:

            async def ask(code: int, credentials: Credentials, body: bytes = b"") -> RemotingCommand:
                return await wire.request(
                    RemotingCommand(code, ext=headers.write(sign(None, body, credentials)), body=body)
                )

            served = {}
            for name, addresses in {"six": ["::1"], "four": ["127.0.0.0/8", "0.0.0.0/0"], "both": ["::/0"]}.items():
                issue = bodies.write(IssueToken(name, "a", "ab" * 32, addresses=addresses))
                assert (await ask(RequestCode.ISSUE_TOKEN, ADMIN, issue)).code == ResponseCode.SUCCESS
                served[name] = (await ask(RequestCode.LIST_TOKENS, Credentials(name, "ab" * 32))).code
    assert served == {"six": 0, "four": ResponseCode.NO_PERMISSION, "both": 0}


async def test_a_refusal_is_the_same_whatever_the_request_names_and_does_not_tell_the_list(
    platform: Platform, admin: Admin
) -> None:
    await admin.create_topic("orders", 1)
    token = await admin.issue_token("shop", "pc", topics=["orders"], groups=["shop"], addresses=ELSEWHERE)
    answers = set()
    async with ClientSession(platform.name_servers, credentials=token) as session:
        for topic in ("orders", "secrets"):
            header = headers.PullMessage("shop", topic, 0, 0, 32, 4, 0, 0, 0, subscription="*")
            answer = await session.invoke_unchecked(str(platform.address), RequestCode.PULL_MESSAGE, header)
            answers.add((answer.code, answer.remark, bytes(answer.body)))
    ((code, remark, body),) = answers
    assert (code, body) == (ResponseCode.NO_PERMISSION, b"")
    assert not any(network in (remark or "") for network in ELSEWHERE)


async def test_lists_and_refusals_are_in_the_audit_log(
    platform: Platform, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sparrow.audit")
    token = await admin.issue_token("shop", "p", addresses=["10.0.0.0/8"])
    await admin.change_token("shop", "p")
    await admin.change_token("shop", "p", addresses=["10.0.0.1", "10.0.0.2"])
    async with Producer(platform.name_servers, credentials=token, retries=0) as producer:
        with contextlib.suppress(NotPermitted):
            await producer.send(Message("orders", b"1"))
    lines = [line for line in caplog.records if line.name == "sparrow.audit"]
    done = [line.args["targets"] for line in lines if line.levelname == "INFO"]
    assert [targets.partition("groups '*', ")[2] for targets in done] == [
        "from '10.0.0.0/8'",
        "from 'anywhere'",
        "from '10.0.0.1', from '10.0.0.2'",
    ]
    refused = [line.args for line in lines if line.levelname == "WARNING"]
    assert {(args["cause"], args["access_key"]) for args in refused} == {("address", "'shop'")}
    assert "SEND_MESSAGE_V2" in {args["request"] for args in refused}
    assert all(args["peer"].startswith("127.0.0.1:") for args in refused)


@pytest.mark.parametrize("addresses", [["localhost"], ["10.0.0.0/33"], [f"10.0.0.{number}" for number in range(65)]])
async def test_an_illegal_list_is_refused_and_changes_nothing(admin: Admin, addresses: list[str]) -> None:
    await admin.issue_token("web", "p", addresses=ELSEWHERE)
    for wish in (
        admin.issue_token("shop", "p", addresses=addresses),
        admin.change_token("web", "p", addresses=addresses),
    ):
        with pytest.raises(Refused, match=r"source address.* use "):
            await wish
    assert [(token.name, token.addresses) for token in await admin.tokens()] == [("web", ELSEWHERE)]


async def test_issuing_a_name_again_with_another_list_is_refused(admin: Admin) -> None:
    token = await admin.issue_token("shop", "p", addresses=ELSEWHERE)
    key = token.secret_key
    assert await admin.issue_token("shop", "p", addresses=reversed(ELSEWHERE), secret_key=key) == token
    with pytest.raises(Refused, match=r"from 10\.0\.0\.0/8, 2001:db8::/32: change it with `sparrow token change`"):
        await admin.issue_token("shop", "p", secret_key=key)


# -- blocking client and command line ---------------------------------------------------------------------------------


def test_the_blocking_client_and_the_command_line_set_and_show_lists(tmp_path: Path) -> None:
    keys = {"SPARROW_ACCESS_KEY": ADMIN.access_key, "SPARROW_SECRET_KEY": ADMIN.secret_key}
    with sparrow.testing.run_platform(broker=AUTH) as platform:

        def sparrow_token(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "sparrow", "token", *words, "--name-servers", platform.name_servers],
                cwd=tmp_path,
                env=os.environ | keys,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

        with client.Admin(platform.name_servers, credentials=ADMIN) as admin:
            admin.issue_token("web", "p", addresses=["127.0.0.1"])
            admin.change_token("web", "p", addresses=["10.0.0.9/8"])
            assert [token.addresses for token in admin.tokens()] == [["10.0.0.0/8"]]

        issued = sparrow_token("issue", "shop", "--type", "p", "--from", "192.168.1.5", "--from", "10.0.0.0/8")
        assert issued.returncode == 0, issued.stderr
        wrong = sparrow_token("change", "shop", "--type", "p", "--from", "localhost")
        assert wrong.returncode == 1
        assert "'localhost' is no source address: use an IP address" in wrong.stderr
        assert json.loads(sparrow_token("show", "shop", "--json").stdout)["addresses"] == ["10.0.0.0/8", "192.168.1.5"]
        changed = sparrow_token("change", "web", "--type", "p")
        assert changed.returncode == 0, changed.stderr
        shop, web = [line for line in sparrow_token("list").stdout.splitlines() if line.startswith(("shop", "web"))]
        assert "10.0.0.0/8 192.168.1.5" in shop
        assert "anywhere" in web
