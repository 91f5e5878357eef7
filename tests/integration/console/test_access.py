"""Who may use the API: roles, sessions, requests of other sites, tokens of brokers."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest
from tests.support.consoles import running_console

from sparrow.client.aio import ClientSession
from sparrow.client.aio.admin.clusters import fetch_masters
from sparrow.model.access.token import Credentials
from sparrow.testing.platform import RunningPlatform, run_platform
from sparrow.wire import bodies
from sparrow.wire.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import AclRequest, UserRequest

V1 = "/api/v1"
TOKENS = {
    "vera": {"role": "viewer", "secret_key": "secret-of-vera"},
    "olga": {"role": "operator", "secret_key": "secret-of-olga"},
    "anna": {"role": "admin", "secret_key": "secret-of-anna"},
}


@pytest.fixture(scope="module")
def own_platform() -> Iterator[RunningPlatform]:
    with run_platform(broker={"auth": True, "admin_tokens": {"root": "root-secret"}}) as platform:
        yield platform


@pytest.fixture(scope="module")
def guarded(own_platform: RunningPlatform) -> Iterator[httpx.Client]:
    """Provide a console with log-in, for brokers that require tokens."""
    credentials = Credentials("root", "root-secret")
    with running_console(own_platform.name_servers, credentials=credentials, auth=True, tokens=TOKENS) as client:
        yield client


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer secret-of-{name}"}


def test_without_a_valid_token_nothing_is_shown(guarded: httpx.Client) -> None:
    paths = [f"{V1}/topics", f"{V1}/overview", f"{V1}/clusters", f"{V1}/audit", "/api/topics/a/messages?group=g"]
    for path in paths:
        assert guarded.get(path).status_code == 401, path
        assert guarded.get(path, headers=bearer("nobody")).status_code == 401, path
    assert guarded.post(f"{V1}/topics", json={"name": ""}).status_code == 401  # before the body is looked at
    assert guarded.get(f"{V1}/topics", headers=bearer("vera")).status_code == 200


def test_a_role_permits_what_it_says(guarded: httpx.Client) -> None:
    def create(name: str, topic: str) -> int:
        return guarded.post(f"{V1}/topics", json={"name": topic}, headers=bearer(name)).status_code

    assert create("vera", "roles") == 403
    assert create("olga", "roles") == 201
    assert guarded.get("/api/topics/roles/messages?group=g", headers=bearer("vera")).status_code == 403
    for name, status in (("vera", 403), ("olga", 403), ("anna", 200)):
        assert guarded.delete(f"{V1}/topics/roles?force=true", headers=bearer(name)).status_code == status
    line = guarded.get(f"{V1}/audit?limit=1", headers=bearer("vera")).json()["lines"][0]
    assert (line["who"], line["role"], line["action"]) == ("anna", "admin", "topic.delete")


def test_tokens_are_issued_changed_listed_and_revoked(guarded: httpx.Client) -> None:
    anna = bearer("anna")
    wanted = {"name": "shop", "type": "p", "topics": ["orders-*"], "addresses": ["192.168.1.5/32"]}
    issued = guarded.post(f"{V1}/tokens", json=wanted, headers=anna)
    assert (issued.status_code, issued.json()["access_key"]) == (201, "shop")
    secret_key = issued.json()["secret_key"]
    again = guarded.post(f"{V1}/tokens", json=wanted, headers=anna)
    assert (again.status_code, secret_key in again.text) == (422, False)
    assert [token["addresses"] for token in guarded.get(f"{V1}/tokens", headers=anna).json()] == [["192.168.1.5"]]
    assert secret_key not in guarded.get(f"{V1}/audit", headers=anna).text
    changed = {
        "type": "pc",
        "topics": ["orders-*", "invoices"],
        "groups": ["shop"],
        "addresses": ["::1", "10.1.2.3/8"],
    }
    assert guarded.put(f"{V1}/tokens/shop", json=changed, headers=anna).status_code == 204
    (token,) = guarded.get(f"{V1}/tokens", headers=anna).json()
    assert {name: token[name] for name in ("type", "topics", "groups", "addresses", "revoked")} == {
        "type": "pc",
        "topics": ["invoices", "orders-*"],
        "groups": ["shop"],
        "addresses": ["10.0.0.0/8", "::1"],
        "revoked": None,
    }
    lines = guarded.get(f"{V1}/audit", headers=anna).json()["lines"]
    assert next(line for line in lines if line["action"] == "token.change")["request"] == changed
    for addresses in (["localhost"], ["10.0.0.0/33"], ["10.0.0.1"] * 65):
        wrong = guarded.put(f"{V1}/tokens/shop", json={"type": "p", "addresses": addresses}, headers=anna)
        assert wrong.status_code == 422, addresses
    assert guarded.put(f"{V1}/tokens/shop", json={"type": "p", "topics": ["a b"]}, headers=anna).status_code == 422
    assert guarded.put(f"{V1}/tokens/shopp", json=changed, headers=anna).status_code == 404
    assert guarded.put(f"{V1}/tokens/shop", json=changed, headers=bearer("olga")).status_code == 403
    assert guarded.delete(f"{V1}/tokens/shop", headers=anna).status_code == 204
    assert guarded.delete(f"{V1}/tokens/shopp", headers=anna).status_code == 404


def test_the_form_of_tokens_sets_addresses_and_the_list_shows_them(guarded: httpx.Client) -> None:
    with httpx.Client(base_url=guarded.base_url, trust_env=False, timeout=60) as browser:
        session = browser.post(f"{V1}/session", json={"secret_key": "secret-of-anna"}).json()
        assert 'name="addresses"' in browser.get("/tokens/new").text

        def submit(name: str, addresses: str) -> httpx.Response:
            form = {"csrf_token": session["csrf_token"], "name": name, "kind": "p", "addresses": addresses}
            return browser.post("/tokens/new", data=form)

        wrong = submit("near", "10.0.0.0/8 localhost")
        assert wrong.status_code == 422
        assert "is no source address" in wrong.text
        assert 'value="10.0.0.0/8 localhost"' in wrong.text, "what was typed is still there"
        assert submit("near", " 10.0.0.0/8  192.168.1.5 ").status_code == 200
        assert submit("free", "").status_code == 200
        tokens = {token["name"]: token["addresses"] for token in browser.get(f"{V1}/tokens").json()}
        assert (tokens["near"], tokens["free"]) == (["10.0.0.0/8", "192.168.1.5"], [])
        for language, title, anywhere in (("en", "Source addresses", "anywhere"), ("zh", "来源地址", "不限")):
            page = browser.get("/tokens", headers={"Accept-Language": language}).text
            assert f'data-label="{title}">10.0.0.0/8 192.168.1.5</td>' in page
            assert f'data-label="{title}">{anywhere}</td>' in page


def test_the_list_of_tokens_shows_acls_and_disabled_tokens(
    own_platform: RunningPlatform, guarded: httpx.Client
) -> None:
    async def create() -> None:
        """Create a user as RocketMQ's tools do."""
        async with ClientSession(own_platform.name_servers, credentials=Credentials("root", "root-secret")) as session:
            (address,) = (await fetch_masters(session)).values()
            user = bodies.write(UserInfo("rocket", None, "disable", "a password"))
            await session.invoke(address, RequestCode.AUTH_CREATE_USER, UserRequest("rocket"), user)
            policy = PolicyInfo(None, [PolicyEntryInfo("Topic:orders", ["Pub"], None, "Allow")])
            acl = bodies.write(AclInfo("User:rocket", [policy]))
            await session.invoke(address, RequestCode.AUTH_CREATE_ACL, AclRequest("User:rocket"), acl)

    asyncio.run(create())
    (shown,) = [each for each in guarded.get(f"{V1}/tokens", headers=bearer("vera")).json() if each["name"] == "rocket"]
    assert (shown["type"], shown["acl"], shown["topics"]) == ("acl", ["Allow Pub on Topic:orders"], [])
    assert shown["disabled"] is not None
    with httpx.Client(base_url=guarded.base_url, trust_env=False, timeout=60) as browser:
        browser.post(f"{V1}/session", json={"secret_key": "secret-of-vera"})
        page = browser.get("/tokens", headers={"Accept-Language": "en"}).text
    assert ">Allow Pub on Topic:orders</td>" in page
    assert "by its ACL" in page
    assert "disabled" in page


def test_a_session_needs_its_csrf_token_for_changes(guarded: httpx.Client) -> None:
    with httpx.Client(base_url=guarded.base_url, trust_env=False, timeout=60) as browser:
        assert browser.post(f"{V1}/session", json={"secret_key": "wrong"}).status_code == 401
        answer = browser.post(f"{V1}/session", json={"secret_key": "secret-of-olga"})
        assert answer.json()["role"] == "operator"
        cookie = answer.headers["Set-Cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        token = answer.json()["csrf_token"]
        assert browser.get(f"{V1}/session").json() == answer.json()
        body = {"name": "by-session"}
        assert browser.post(f"{V1}/topics", json=body).json()["code"] == "CrossSiteRequest"
        assert browser.post(f"{V1}/topics", json=body, headers={"X-CSRF-Token": "guess"}).status_code == 403
        other = {"X-CSRF-Token": token, "Origin": "http://evil.example"}
        assert browser.post(f"{V1}/topics", json=body, headers=other).status_code == 403
        assert browser.post(f"{V1}/topics", json=body, headers={"X-CSRF-Token": token}).status_code == 201
        assert browser.delete(f"{V1}/session", headers={"X-CSRF-Token": token}).status_code == 204
        assert browser.get(f"{V1}/topics").status_code == 401


def test_pages_of_other_sites_cannot_steer_a_console_without_log_in(platform: RunningPlatform) -> None:
    with running_console(platform.name_servers) as console:
        body = {"name": "hijacked"}
        for headers in (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Host": "evil.example"},
        ):
            assert console.post(f"{V1}/topics", json=body, headers=headers).status_code == 403, headers
        crossing = {"Sec-Fetch-Site": "cross-site"}
        assert console.get("/api/topics/a/messages?group=g", headers=crossing).status_code == 403
        assert console.get(f"{V1}/topics", headers={"Host": "evil.example"}).status_code == 403
        same = {"Origin": str(console.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
        assert console.post(f"{V1}/topics", json={"name": "own"}, headers=same).status_code == 201
