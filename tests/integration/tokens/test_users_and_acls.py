"""RocketMQ 5's requests for users and ACLs, over real sockets and on both stores."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.admin_token import ADMIN, AUTH
from tests.support.platforms import broker_settings, running_platform
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow.cli.server.platform import Platform
from sparrow.client import Credentials, Message
from sparrow.client.aio import Admin, ClientSession, Consumer, Producer
from sparrow.model.errors import NotPermitted
from sparrow.settings import NameServerSettings, SqlSettings
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header

PASSWORD = "correct horse battery"
WEB = Credentials("web", PASSWORD)


class Mqadmin:
    """Makes the requests of RocketMQ's tool."""

    def __init__(self, platform: Platform, session: ClientSession) -> None:
        self.platform, self.session = platform, session

    async def ask(self, code: int, header: Header | None = None, body: object = None) -> RemotingCommand:
        content = b"" if body is None else bodies.write(body)
        return await self.session.invoke_unchecked(str(self.platform.address), code, header, content)

    async def do(self, code: int, header: Header | None = None, body: object = None) -> bytes:
        answer = await self.ask(code, header, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return bytes(answer.body)

    async def refused(self, code: int, header: Header | None = None, body: object = None) -> str:
        answer = await self.ask(code, header, body)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert PASSWORD not in (answer.remark or "")
        return answer.remark or ""

    async def create_user(self, name: str = "web", password: str | None = PASSWORD, kind: str | None = None) -> None:
        info = UserInfo(name, kind, None, password)
        await self.do(RequestCode.AUTH_CREATE_USER, headers.UserRequest(name), info)

    async def update_user(self, name: str = "web", **changes: str) -> None:
        await self.do(RequestCode.AUTH_UPDATE_USER, headers.UserRequest(name), UserInfo(name, **changes))

    async def users(self, filter_text: str | None = None) -> list[UserInfo]:
        body = await self.do(RequestCode.AUTH_LIST_USER, headers.ListUsers(filter_text))
        return bodies.read(list[UserInfo], body) if body else []

    async def user(self, name: str = "web") -> UserInfo | None:
        body = await self.do(RequestCode.AUTH_GET_USER, headers.UserRequest(name))
        return bodies.read(UserInfo, body) if body else None

    async def create_acl(self, *entries: PolicyEntryInfo, name: str = "web", policy: str | None = None) -> None:
        info = AclInfo(f"User:{name}", [PolicyInfo(policy, list(entries))])
        await self.do(RequestCode.AUTH_CREATE_ACL, headers.AclRequest(info.subject), info)

    async def delete_acl(self, resource: str | None = None, name: str = "web") -> None:
        await self.do(RequestCode.AUTH_DELETE_ACL, headers.DeleteAcl(f"User:{name}", None, resource))

    async def acl(self, name: str = "web") -> AclInfo | None:
        body = await self.do(RequestCode.AUTH_GET_ACL, headers.AclRequest(f"User:{name}"))
        return bodies.read(AclInfo, body) if body else None

    async def acls(self, subject: str | None = None, resource: str | None = None) -> list[AclInfo]:
        body = await self.do(RequestCode.AUTH_LIST_ACL, headers.ListAcls(subject, resource))
        return bodies.read(list[AclInfo], body) if body else []


def entry(resource: str, *actions: str, decision: str = "Allow", source: tuple[str, ...] = ()) -> PolicyEntryInfo:
    return PolicyEntryInfo(resource, list(actions), list(source) or None, decision)


@asynccontextmanager
async def running_mqadmin(folder: Path, url: str | None = None, **settings: object) -> AsyncIterator[Mqadmin]:
    """Start a broker on the log store, or on the SQL store of a URL."""
    broker = broker_settings(**({} if url is None else {"store": url}), **(AUTH | settings))
    platform = (
        running_platform(folder, **(AUTH | settings))
        if url is None
        else Platform(folder, name_server=NameServerSettings(port=0), broker=broker, sql=SqlSettings())
    )
    async with platform as running, ClientSession(running.name_servers, credentials=ADMIN) as session:
        async with Admin(running.name_servers, credentials=ADMIN) as admin:
            await admin.create_topic("orders", 1)
            await admin.create_topic("salaries", 1)
        yield Mqadmin(running, session)


@pytest.fixture(params=["log", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "log" else f"sqlite:///{tmp_path}/sparrow.db"


@pytest.fixture
async def mqadmin(tmp_path: Path, store_url: str | None) -> AsyncIterator[Mqadmin]:
    async with running_mqadmin(tmp_path, store_url) as running:
        yield running


async def is_served(mqadmin: Mqadmin, topic: str = "orders", credentials: Credentials = WEB) -> bool:
    async with Producer(mqadmin.platform.name_servers, credentials=credentials, retries=0) as producer:
        try:
            await producer.send(Message(topic, "a book"))
        except NotPermitted:
            return False
        return True


# -- users ------------------------------------------------------------------------------------------------------------


async def test_a_user_is_created_shown_without_password_and_deleted(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user()
    await mqadmin.create_user("chief", kind="Super")
    assert await mqadmin.user() == UserInfo("web", "Normal", "enable")
    assert await mqadmin.users() == [UserInfo("chief", "Super", "enable"), UserInfo("web", "Normal", "enable")]
    assert await mqadmin.users("hie") == [UserInfo("chief", "Super", "enable")]
    assert await mqadmin.users("nobody") == []
    assert b"password" not in await mqadmin.do(RequestCode.AUTH_LIST_USER, headers.ListUsers())
    await mqadmin.do(RequestCode.AUTH_DELETE_USER, headers.UserRequest("web"))
    await mqadmin.do(RequestCode.AUTH_DELETE_USER, headers.UserRequest("web"))
    assert await mqadmin.user() is None
    assert [user.username for user in await mqadmin.users()] == ["chief"]


async def test_a_new_user_may_do_nothing_and_a_super_user_everything(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user()
    await mqadmin.create_user("chief", kind="super")
    assert not await is_served(mqadmin)
    assert await is_served(mqadmin, credentials=Credentials("chief", PASSWORD))
    assert not await is_served(mqadmin, credentials=Credentials("chief", "guessed"))
    await mqadmin.update_user(user_type="Super")
    assert await is_served(mqadmin)
    await mqadmin.update_user(user_type="Normal")
    assert not await is_served(mqadmin)


async def test_a_disabled_user_is_refused_until_it_is_enabled_again(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user(kind="Super")
    await mqadmin.update_user(user_status="disable")
    assert await mqadmin.user() == UserInfo("web", "Super", "disable")
    async with Producer(mqadmin.platform.name_servers, credentials=WEB, retries=0) as producer:
        with pytest.raises(NotPermitted, match="token 'web' is disabled"):
            await producer.send(Message("orders", "a book"))
        await mqadmin.update_user(user_status="enable")
        await producer.send(Message("orders", "a book"))


async def test_a_new_password_counts_from_the_next_request_and_the_old_one_no_more(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user(kind="Super")
    await mqadmin.update_user(password="another one")
    assert not await is_served(mqadmin)
    assert await is_served(mqadmin, credentials=Credentials("web", "another one"))
    assert await mqadmin.user() == UserInfo("web", "Super", "enable"), "the rest stays"


async def test_a_deleted_user_is_refused_and_created_again_with_a_new_password_and_no_permission(
    mqadmin: Mqadmin,
) -> None:
    await mqadmin.create_user()
    await mqadmin.create_acl(entry("Topic:*", "Pub"))
    assert await is_served(mqadmin)
    tokens = mqadmin.platform.broker.broker.store.tokens
    number = tokens.id_nowait("web")
    await mqadmin.do(RequestCode.AUTH_DELETE_USER, headers.UserRequest("web"))
    assert not await is_served(mqadmin)
    await mqadmin.create_user(password="another one")
    again = Credentials("web", "another one")
    assert await mqadmin.acl() is None
    assert not await is_served(mqadmin, credentials=again)
    await mqadmin.create_acl(entry("Topic:*", "Pub"))
    assert await is_served(mqadmin, credentials=again)
    assert not await is_served(mqadmin)
    assert tokens.id_nowait("web") == number, "messages of before still refer to the user"


@pytest.mark.parametrize(
    ("name", "info", "sentence"),
    [
        ("web", UserInfo("web", None, None, "other"), "user 'web' exists: change it with updateUser"),
        ("new", UserInfo("new"), "user 'new' needs a password"),
        ("new", UserInfo("new", None, None, " "), "the password must have printable characters"),
        ("new", UserInfo("new", "Admin", None, "x"), "'Admin' is no type of user: use Super or Normal"),
        ("new", UserInfo("new", None, "off", "x"), "'off' is no status: use enable or disable"),
        (ADMIN.access_key, UserInfo(None, None, None, "x"), "is the name of an admin token in the broker's settings"),
    ],
)
async def test_what_cannot_be_created_is_refused_with_a_reason(
    tmp_path: Path, name: str, info: UserInfo, sentence: str
) -> None:
    async with running_mqadmin(tmp_path) as mqadmin:
        await mqadmin.create_user()
        assert sentence in await mqadmin.refused(RequestCode.AUTH_CREATE_USER, headers.UserRequest(name), info)
        assert [user.username for user in await mqadmin.users()] == ["web"]
        for empty in ("", " "):
            answer = await mqadmin.ask(RequestCode.AUTH_CREATE_USER, headers.UserRequest(empty), info)
            assert answer.code == ResponseCode.INVALID_PARAMETER
        missing = headers.UserRequest("nobody")
        assert "there is no user 'nobody'" in await mqadmin.refused(RequestCode.AUTH_UPDATE_USER, missing, UserInfo())


# -- ACLs -------------------------------------------------------------------------------------------------------------


async def test_an_acl_allows_and_denies_from_the_next_request_on(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user()
    await mqadmin.create_acl(entry("Topic:*", "Pub", "Sub"), entry("Group:billing", "Sub"))
    assert await is_served(mqadmin)
    assert await is_served(mqadmin, "salaries")
    await mqadmin.create_acl(entry("Topic:salaries", "All", decision="Deny"))
    assert await is_served(mqadmin)
    assert not await is_served(mqadmin, "salaries")
    await mqadmin.delete_acl("Topic:salaries")
    assert await is_served(mqadmin, "salaries")
    await mqadmin.create_acl(entry("Topic:*", "Pub", source=("192.168.0.0/16",)))
    assert not await is_served(mqadmin), "this machine is not in the network"
    await mqadmin.delete_acl()
    assert await mqadmin.acl() is None


async def test_a_user_consumes_with_the_topic_and_the_group_of_its_acl(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user()
    await mqadmin.create_acl(entry("Topic:orders", "Pub", "Sub"), entry("Group:bill*", "Sub"))
    name_servers, handler = mqadmin.platform.name_servers, RecordingHandler()
    assert await is_served(mqadmin)
    async with Consumer(name_servers, group="billing", credentials=WEB, consume_from="first") as consumer:
        await consumer.subscribe("orders")
        await consumer.start(handler)
        await eventually(lambda: handler.texts == ["a book"])
    async with ClientSession(name_servers, credentials=WEB) as session:
        said = await Mqadmin(mqadmin.platform, session).refused(
            RequestCode.QUERY_CONSUMER_OFFSET, headers.QueryOffset("shipping", "orders", 0)
        )
    assert "does not allow Get or Sub on Group:shipping" in said


async def test_acls_come_back_as_they_were_put_in_also_after_a_restart(tmp_path: Path, store_url: str | None) -> None:
    rules = [
        entry("Topic:orders-*", "Pub", "Sub", source=("10.0.0.0/8", "192.168.1.5")),
        entry("Group:billing", "Sub"),
        entry("Cluster:DefaultCluster", "Get", "List"),
        entry("*", "Delete", decision="Deny"),
    ]
    expected = AclInfo("User:web", [PolicyInfo("Custom", rules), PolicyInfo("Default", [entry("Topic:*", "All")])])
    async with running_mqadmin(tmp_path, store_url) as mqadmin:
        await mqadmin.create_user()
        await mqadmin.create_user("other")
        await mqadmin.create_acl(*rules)
        await mqadmin.create_acl(entry("Topic:*", "All"), policy="Default")
        await mqadmin.create_acl(entry("Topic:invoices", "Pub"), name="other")
        assert await mqadmin.acl() == expected
    async with running_mqadmin(tmp_path, store_url) as mqadmin:
        assert await mqadmin.acl() == expected
        other = AclInfo("User:other", [PolicyInfo("Custom", [entry("Topic:invoices", "Pub")])])
        assert await mqadmin.acls() == [other, expected]
        assert await mqadmin.acls("oth") == [other]
        assert await mqadmin.acls(None, "invo") == [other]
        assert await mqadmin.acls("User:web", "Group:") == [AclInfo("User:web", [PolicyInfo("Custom", [rules[1]])])]
        assert await mqadmin.acls("nobody") == []
        assert await is_served(mqadmin), "the password was stored, too"


async def test_a_token_of_sparrow_is_a_user_and_its_patterns_are_its_acl(mqadmin: Mqadmin) -> None:
    async with Admin(mqadmin.platform.name_servers, credentials=ADMIN) as admin:
        shop = await admin.issue_token("web", "p", topics=["orders"], addresses=["127.0.0.0/8"])
        await admin.issue_token("chief", "a")
        assert await mqadmin.users() == [UserInfo("chief", "Super", "enable"), UserInfo("web", "Normal", "enable")]
        local = ("127.0.0.0/8",)
        shown = AclInfo("User:web", [PolicyInfo("Custom", [entry("Topic:orders", "Pub", source=local)])])
        assert await mqadmin.acls() == [shown]
        await mqadmin.create_acl(entry("Topic:salaries", "Pub"))
        assert await is_served(mqadmin, "orders", shop)
        assert await is_served(mqadmin, "salaries", shop)
        (token,) = [token for token in await admin.tokens() if token.name == "web"]
        assert (token.type, token.topics, token.acl) == (
            "acl",
            [],
            ["Allow Pub on Topic:orders from 127.0.0.0/8", "Allow Pub on Topic:salaries"],
        )
        # A change of the token replaces its ACL.
        await admin.change_token("web", "p", topics=["orders"])
        assert await is_served(mqadmin, "orders", shop)
        assert not await is_served(mqadmin, "salaries", shop)
        assert [each.acl for each in await admin.tokens()] == [[], []]


async def test_what_an_acl_cannot_express_is_refused_with_the_value(mqadmin: Mqadmin) -> None:
    async def refusal(info: AclInfo, code: int = RequestCode.AUTH_CREATE_ACL) -> str:
        return await mqadmin.refused(code, headers.AclRequest(info.subject), info)

    await mqadmin.create_user()
    assert "the ACL has no entry" in await refusal(AclInfo("User:web"))
    assert "'web' is no subject of an ACL: use User:name" in await refusal(
        AclInfo("web", [PolicyInfo(None, [entry("Topic:a", "Pub")])])
    )
    for wrong, sentence in (
        (entry("Namespace:a", "Pub"), "'Namespace:a' is no resource"),
        (entry("Topic:a", "Publish"), "'Publish' is no action of an ACL"),
        (entry("Topic:a", "Pub", decision="Perhaps"), "'Perhaps' is no decision"),
        (entry("Topic:a", "Pub", source=("somewhere",)), "'somewhere' is no source address"),
    ):
        assert sentence in await refusal(AclInfo("User:web", [PolicyInfo(None, [wrong])]))
    right = PolicyInfo(None, [entry("Topic:a", "Pub")])
    assert "there is no user 'nobody'" in await refusal(AclInfo("User:nobody", [right]), RequestCode.AUTH_UPDATE_ACL)
    assert "there is no user 'nobody'" in await mqadmin.refused(
        RequestCode.AUTH_GET_ACL, headers.AclRequest("User:nobody")
    )
    assert "user 'web' has no ACL entry" in await mqadmin.refused(
        RequestCode.AUTH_DELETE_ACL, headers.DeleteAcl("User:web")
    )
    await mqadmin.create_acl(entry("Topic:a", "Pub"))
    assert "has no ACL entry for Topic:b in the policy Custom" in await mqadmin.refused(
        RequestCode.AUTH_DELETE_ACL, headers.DeleteAcl("User:web", None, "topic:b")
    )
    assert await mqadmin.acl() == AclInfo("User:web", [PolicyInfo("Custom", [entry("Topic:a", "Pub")])])


async def test_the_command_line_shows_acls_and_disabled_tokens(tmp_path: Path) -> None:
    async with running_mqadmin(tmp_path) as mqadmin:
        await mqadmin.create_user()
        await mqadmin.create_acl(entry("Topic:orders-*", "Pub", "Sub", source=("10.0.0.0/8",)))
        await mqadmin.update_user(user_status="disable")
        command = [sys.executable, "-m", "sparrow", "token", "show", "web"]
        keys = {"SPARROW_ACCESS_KEY": ADMIN.access_key, "SPARROW_SECRET_KEY": ADMIN.secret_key}
        environment = os.environ | keys | {"SPARROW_NAME_SERVERS": mqadmin.platform.name_servers}
        printed = []
        for options in ((), ("--json",)):
            process = await asyncio.create_subprocess_exec(
                *command, *options, env=environment, cwd=tmp_path, stdout=subprocess.PIPE
            )
            printed.append((await process.communicate())[0].decode())
    entry_text = "Allow Pub,Sub on Topic:orders-* from 10.0.0.0/8"
    columns, row = (line.split("\t") for line in printed[0].splitlines())
    shown = dict(zip(columns, row, strict=True))
    assert (shown["type"], shown["acl"], shown["revoked"]) == ("acl", entry_text, "")
    assert shown["disabled"]
    found = json.loads(printed[1])
    assert (found["acl"], found["type"], found["topics"]) == ([entry_text], "acl", [])
    assert found["disabled_ms"] >= found["issued_ms"] > 0


# -- who may, and what is logged --------------------------------------------------------------------------------------


async def test_only_super_users_administer_users_and_acls(mqadmin: Mqadmin) -> None:
    await mqadmin.create_user()
    await mqadmin.create_acl(entry("*", "All"))
    async with ClientSession(mqadmin.platform.name_servers, credentials=WEB) as session:
        web = Mqadmin(mqadmin.platform, session)
        for code in range(RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_LIST_ACL + 1):
            assert "is no Super user" in await web.refused(code)
        await mqadmin.update_user(user_type="Super")
        await web.create_user("more")
    async with Admin(mqadmin.platform.name_servers, credentials=ADMIN) as admin:
        limited = await admin.issue_token("limited", "a", topics=["orders"])
        async with ClientSession(mqadmin.platform.name_servers, credentials=limited) as session:
            assert "is limited to some topics" in await Mqadmin(mqadmin.platform, session).refused(
                RequestCode.AUTH_LIST_USER
            )


async def test_changes_are_in_the_audit_log_and_passwords_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_mqadmin(tmp_path) as mqadmin:
        await mqadmin.create_user()
        await mqadmin.update_user(password=PASSWORD + "2", user_status="enable")
        await mqadmin.create_acl(entry("Topic:orders", "Pub"))
        await mqadmin.refused(
            RequestCode.AUTH_CREATE_USER, headers.UserRequest("web"), UserInfo("web", None, None, PASSWORD)
        )
        await mqadmin.delete_acl()
        await mqadmin.do(RequestCode.AUTH_DELETE_USER, headers.UserRequest("web"))
        await mqadmin.users()
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name == "sparrow.audit" and record.getMessage().startswith("AUTH_")
    ]
    assert [(line.split()[0], line.partition(" is ")[2]) for line in lines] == [
        ("AUTH_CREATE_USER", "done: user 'web'"),
        ("AUTH_UPDATE_USER", "done: user 'web', status 'enable'"),
        ("AUTH_CREATE_ACL", """done: subject 'User:web', entry "Allow ['Pub'] on Topic:orders from anywhere\""""),
        ("AUTH_CREATE_USER", "not done (code 16): user 'web'"),
        ("AUTH_DELETE_ACL", "done: subject 'User:web'"),
        ("AUTH_DELETE_USER", "done: user 'web'"),
    ]
    assert PASSWORD not in caplog.text


async def test_without_auth_users_are_shown_and_not_changed(tmp_path: Path) -> None:
    async with running_mqadmin(tmp_path) as mqadmin:
        await mqadmin.create_user()
        await mqadmin.create_acl(entry("Topic:orders", "Pub"))
    async with running_mqadmin(tmp_path, auth=False) as mqadmin:
        assert await mqadmin.users() == [UserInfo("web", "Normal", "enable")]
        assert [acl.subject for acl in await mqadmin.acls()] == ["User:web"]
        acl = AclInfo("User:web", [PolicyInfo(None, [entry("Topic:a", "Pub")])])
        for code, header, body in (
            (RequestCode.AUTH_CREATE_USER, headers.UserRequest("new"), UserInfo("new", None, None, "x")),
            (RequestCode.AUTH_UPDATE_USER, headers.UserRequest("web"), UserInfo("web", "Super")),
            (RequestCode.AUTH_DELETE_USER, headers.UserRequest("web"), None),
            (RequestCode.AUTH_UPDATE_ACL, headers.AclRequest("User:web"), acl),
            (RequestCode.AUTH_DELETE_ACL, headers.DeleteAcl("User:web"), None),
        ):
            assert "broker.auth is off" in await mqadmin.refused(code, header, body)
