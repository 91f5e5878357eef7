"""mqadmin's commands of RocketMQ 5 for users and ACLs, and an official client that signs as such a user."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import official, platforms
from tests.interop.java import ClientError, JavaClient, java_client
from tests.interop.mqadmin import Mqadmin
from tests.interop.platforms import Platform

from sparrow.client import Admin, Credentials

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

VERSION = "5.5.0"
ADMIN = Credentials("operator", "a long secret")
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Sparrow with `auth` on."""
    settings = {"BROKER__AUTH": "true", f"BROKER__ADMIN_TOKENS__{ADMIN.access_key.upper()}": ADMIN.secret_key}
    with platforms.sparrow(tmp_path_factory.mktemp("guarded"), **settings) as running:
        with Admin(running.name_server, credentials=ADMIN) as admin:
            for topic in ("orders", "salaries"):
                admin.create_topic(topic, 1)
        yield running


@pytest.fixture(scope="module")
def java(guarded: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    with java_client(official.kit(VERSION), guarded.name_server, tmp_path_factory.mktemp("java")) as client:
        yield client


@pytest.fixture
def mqadmin(java: JavaClient) -> Mqadmin:
    return Mqadmin(java, ADMIN)


@pytest.fixture
def apache(tmp_path: Path) -> Iterator[Platform]:
    """Apache's broker with users and ACLs, and an administrator with the same keys."""
    package = "org.apache.rocketmq.auth"
    settings = {
        "authenticationEnabled": "true",
        "authenticationProvider": f"{package}.authentication.provider.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{package}.authentication.provider.LocalAuthenticationMetadataProvider",
        "authorizationEnabled": "true",
        "authorizationProvider": f"{package}.authorization.provider.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{package}.authorization.provider.LocalAuthorizationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
        ),
        "authConfigPath": tmp_path / "auth",
    }
    with platforms.apache(official.kit(VERSION), tmp_path, **settings) as running:
        yield running


def does(mqadmin: Mqadmin, guarded: Platform, verb: str, *words: str) -> None:
    printed = mqadmin.run(verb, "-b", guarded.broker, *words)
    assert "success" in printed, printed
    assert "Exception" not in printed, printed


def users(mqadmin: Mqadmin, guarded: Platform, *words: str) -> list[tuple[str, str, str, str]]:
    rows = mqadmin.table("listUser", "-b", guarded.broker, *words)
    return [(row["UserName"], row["Password"], row["UserType"], row["UserStatus"]) for row in rows]


def entries(mqadmin: Mqadmin, guarded: Platform, verb: str, *words: str) -> list[tuple[str, ...]]:
    columns = ("Subject", "PolicyType", "Resource", "Actions", "SourceIp", "Decision")
    return [tuple(row[column] for column in columns) for row in mqadmin.table(verb, "-b", guarded.broker, *words)]


def refusal(java: JavaClient, name: str, topic: str, password: str = PASSWORD) -> str:
    """Return why a message of the official producer is refused; nothing if it is sent."""
    with java.producer(f"{name}_producers", accessKey=name, secretKey=password) as producer:
        try:
            producer.send(topic, ["a book"], mode="async")  # a synchronous send reports only its number of attempts
        except ClientError as error:
            return str(error)
    return ""


def test_a_user_is_created_listed_changed_and_deleted(mqadmin: Mqadmin, guarded: Platform) -> None:
    does(mqadmin, guarded, "createUser", "-u", "anna", "-p", PASSWORD)
    does(mqadmin, guarded, "createUser", "-u", "otto", "-p", PASSWORD, "-t", "Super")
    assert users(mqadmin, guarded) == [("anna", "null", "Normal", "enable"), ("otto", "null", "Super", "enable")]
    assert users(mqadmin, guarded, "-f", "tt") == [("otto", "null", "Super", "enable")]
    does(mqadmin, guarded, "updateUser", "-u", "otto", "-s", "disable")
    does(mqadmin, guarded, "updateUser", "-u", "otto", "-t", "Normal")
    [row] = mqadmin.table("getUser", "-b", guarded.broker, "-u", "otto")
    assert (row["UserName"], row["UserType"], row["UserStatus"]) == ("otto", "Normal", "disable")
    assert "CODE: 16  DESC: user 'anna' exists" in mqadmin.run(
        "createUser", "-b", guarded.broker, "-u", "anna", "-p", "x"
    )
    for name in ("anna", "otto"):
        does(mqadmin, guarded, "deleteUser", "-u", name)
    assert mqadmin.run("listUser", "-b", guarded.broker).strip() == ""
    assert mqadmin.run("getUser", "-b", guarded.broker, "-u", "anna").strip() == ""


def test_the_whole_cluster_gets_a_user(mqadmin: Mqadmin, guarded: Platform) -> None:
    assert "success" in mqadmin.run("createUser", "-c", guarded.cluster, "-u", "clara", "-p", PASSWORD)
    assert "clara" in mqadmin.run("getUser", "-c", guarded.cluster, "-u", "clara")
    assert "success" in mqadmin.run("deleteUser", "-c", guarded.cluster, "-u", "clara")


def test_an_official_client_may_do_what_the_acl_of_its_user_allows(
    mqadmin: Mqadmin, guarded: Platform, java: JavaClient
) -> None:
    does(mqadmin, guarded, "createUser", "-u", "shop", "-p", PASSWORD)
    assert "does not allow Pub on Topic:orders" in refusal(java, "shop", "orders")
    does(mqadmin, guarded, "createAcl", "-s", "User:shop", "-r", "Topic:*,Group:bill*", "-a", "Pub,Sub", "-d", "Allow")
    assert refusal(java, "shop", "orders") == ""
    with java.push_consumer("billing", "orders", accessKey="shop", secretKey=PASSWORD) as consumer:
        assert [message.body for message in consumer.receive(1)] == ["a book"]
    assert refusal(java, "shop", "salaries") == ""
    does(mqadmin, guarded, "createAcl", "-s", "User:shop", "-r", "Topic:salaries", "-a", "All", "-d", "Deny")
    assert "does not allow Pub on Topic:salaries" in refusal(java, "shop", "salaries")
    assert refusal(java, "shop", "orders") == ""
    does(
        mqadmin,
        guarded,
        "updateAcl",
        "-s",
        "User:shop",
        "-r",
        "Topic:*",
        "-a",
        "Pub",
        "-d",
        "Allow",
        "-i",
        "10.0.0.0/8",
    )
    assert "does not allow Pub on Topic:orders from this address" in refusal(java, "shop", "orders")
    does(
        mqadmin, guarded, "updateAcl", "-s", "User:shop", "-r", "Topic:*", "-a", "Pub", "-d", "Allow", "-i", "127.0.0.1"
    )
    assert refusal(java, "shop", "orders") == ""
    does(mqadmin, guarded, "updateUser", "-u", "shop", "-s", "disable")
    assert "is disabled" in refusal(java, "shop", "orders")
    does(mqadmin, guarded, "updateUser", "-u", "shop", "-s", "enable")
    does(mqadmin, guarded, "updateUser", "-u", "shop", "-p", "another one")
    assert "signature" in refusal(java, "shop", "orders")
    assert refusal(java, "shop", "orders", "another one") == ""
    does(mqadmin, guarded, "deleteUser", "-u", "shop")
    assert "is revoked" in refusal(java, "shop", "orders", "another one")


def test_acls_are_shown_as_they_were_created(mqadmin: Mqadmin, guarded: Platform) -> None:
    does(mqadmin, guarded, "createUser", "-u", "ruth", "-p", PASSWORD)
    assert mqadmin.run("getAcl", "-b", guarded.broker, "-s", "User:ruth").strip() == ""
    does(
        mqadmin, guarded, "createAcl", "-s", "User:ruth", "-r", "Topic:orders-*,Group:*", "-a", "Pub,Sub",
        "-d", "Allow", "-i", "10.0.0.0/8,192.168.1.5",
    )  # fmt: skip
    does(mqadmin, guarded, "createAcl", "-s", "User:ruth", "-r", "*", "-a", "Delete", "-d", "Deny")
    shown = [
        ("User:ruth", "Custom", "Topic:orders-*", "[Pub, Sub]", "[10.0.0.0/8, 192.168.1.5]", "Allow"),
        ("User:ruth", "Custom", "Group:*", "[Pub, Sub]", "[10.0.0.0/8, 192.168.1.5]", "Allow"),
        ("User:ruth", "Custom", "*", "[Delete]", "null", "Deny"),
    ]
    assert entries(mqadmin, guarded, "getAcl", "-s", "User:ruth") == shown
    assert entries(mqadmin, guarded, "listAcl") == shown
    assert entries(mqadmin, guarded, "listAcl", "-s", "ruth", "-r", "Group") == shown[1:2]
    assert entries(mqadmin, guarded, "listAcl", "-s", "nobody") == []
    does(mqadmin, guarded, "deleteAcl", "-s", "User:ruth", "-r", "Group:*")
    assert entries(mqadmin, guarded, "getAcl", "-s", "User:ruth") == [shown[0], shown[2]]
    does(mqadmin, guarded, "deleteAcl", "-s", "User:ruth")
    assert mqadmin.run("getAcl", "-b", guarded.broker, "-s", "User:ruth").strip() == ""
    printed = mqadmin.run(
        "createAcl", "-b", guarded.broker, "-s", "User:ruth", "-r", "Topic:a", "-a", "Any", "-d", "Allow"
    )
    assert re.search(r"CODE: 16  DESC: 'Any' is no action of an ACL", printed)
    does(mqadmin, guarded, "deleteUser", "-u", "ruth")


def test_only_super_users_administer(mqadmin: Mqadmin, guarded: Platform, java: JavaClient) -> None:
    does(mqadmin, guarded, "createUser", "-u", "nora", "-p", PASSWORD)
    does(mqadmin, guarded, "createAcl", "-s", "User:nora", "-r", "*", "-a", "All", "-d", "Allow")
    nora = Mqadmin(java, Credentials("nora", PASSWORD))
    assert "CODE: 16" in nora.run("createUser", "-b", guarded.broker, "-u", "more", "-p", PASSWORD)
    assert "is no Super user" in nora.run("listUser", "-b", guarded.broker)
    assert "is not signed" in Mqadmin(java).run("listUser", "-b", guarded.broker)
    does(mqadmin, guarded, "updateUser", "-u", "nora", "-t", "Super")
    assert [name for name, *_ in users(nora, guarded)] == ["nora"]
    does(mqadmin, guarded, "deleteUser", "-u", "nora")


def test_users_and_acls_of_an_apache_broker_are_copied(
    mqadmin: Mqadmin, guarded: Platform, apache: Platform, java: JavaClient
) -> None:
    does(mqadmin, apache, "createUser", "-u", "mary", "-p", PASSWORD)
    rule = ("-s", "User:mary", "-a", "Pub,Sub", "-d", "Allow")
    does(mqadmin, apache, "createAcl", *rule, "-r", "Topic:*,Group:*", "-i", "127.0.0.1")
    does(mqadmin, apache, "createAcl", "-s", "User:mary", "-a", "All", "-d", "Deny", "-r", "Topic:salaries")
    shown = entries(mqadmin, apache, "getAcl", "-s", "User:mary")
    assert len(shown) == 3
    between = ("-f", apache.broker, "-t", guarded.broker)
    assert "copy user of mary" in mqadmin.run("copyUser", *between, "-u", "mary")
    assert "copy acl of User:mary" in mqadmin.run("copyAcl", *between, "-s", "User:mary")
    assert entries(mqadmin, guarded, "getAcl", "-s", "User:mary") == shown
    assert refusal(java, "mary", "orders") == ""
    assert "does not allow Pub on Topic:salaries" in refusal(java, "mary", "salaries")
    does(mqadmin, guarded, "deleteUser", "-u", "mary")
