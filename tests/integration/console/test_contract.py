"""The OpenAPI document against a live platform: every route keeps its contract, whatever it is sent."""

import os
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from tests.support.consoles import running_console

from sparrow.testing.platform import run_platform

IS_FULL = os.environ.get("SPARROW_SCALE", "smoke") != "smoke"
EXAMPLES = 50 if IS_FULL else 2
V1 = "/api/v1"

URL_BYTES_MAX = 32 << 10
"""The HTTP server closes connections with longer request lines before the API sees them."""


@pytest.fixture(scope="module")
def live() -> Iterator[httpx.Client]:
    with run_platform() as platform, running_console(platform.name_servers) as client:
        client.post(f"{V1}/topics", json={"name": "orders", "queues": 1}).raise_for_status()
        client.post(f"{V1}/groups", json={"name": "billing"}).raise_for_status()
        client.post(f"{V1}/topics/orders/messages", json={"text": "a", "keys": ["k"]}).raise_for_status()
        yield client


@pytest.fixture
def api(live: httpx.Client) -> schemathesis.BaseSchema:
    document = live.get(f"{V1}/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    found = schemathesis.openapi.from_dict(document)
    found.config.update(base_url=str(live.base_url))
    found.config.phases.coverage.enabled = IS_FULL  # dozens of cases for each route
    return found


schema = schemathesis.pytest.from_fixture("api").exclude(path_regex="/events$")  # streams do not end


@pytest.mark.thorough
@pytest.mark.timeout(3_600 if IS_FULL else 300)
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[*HealthCheck],
)
def test_every_route_keeps_its_contract(case: schemathesis.Case) -> None:
    query = dict(case.query or {})
    if "wait_ms" in query:  # a wait is no error, and takes its time
        query["wait_ms"] = 0
        case.query = query
    if sum(len(quote(str(value), errors="replace")) for value in query.values()) > URL_BYTES_MAX:
        return
    case.call_and_validate(excluded_checks=[checks.positive_data_acceptance], timeout=60)


HOSTILE = ["\0", "a\0b", "\ud800", "\u202e", "%00", "../../etc/passwd", "<script>", "🐦" * 100, "9" * 400, "-1", "NaN"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_text_is_a_problem_and_never_an_internal_error(live: httpx.Client, text: str) -> None:
    printable = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    calls = [
        live.get(f"{V1}/topics/{httpx.QueryParams({'a': printable})!s}"),
        live.get(f"{V1}/messages/x", params={"topic": printable}),
        live.get(f"{V1}/topics/orders/messages", params={"key": printable, "tag": printable}),
        live.get(f"{V1}/topics/orders/messages", params={"text": printable, "from": printable}),
        live.get(f"{V1}/groups", params={"q": printable, "cursor": printable}),
        live.get(f"{V1}/dead-letters/billing", params={"cursor": printable}),
        live.post(f"{V1}/topics", json={"name": printable}),
        live.post(f"{V1}/tokens", json={"name": printable, "type": "p"}),
        live.post(
            f"{V1}/topics",
            content=b'{"name": "' + text.encode("utf-8", "surrogatepass") + b'"}',
            headers={"Content-Type": "application/json"},
        ),
        live.post(
            f"{V1}/topics/orders/messages",
            json={"text": printable, "properties": {"p": printable}, "sharding_key": printable[:200]},
        ),
        live.post(f"{V1}/groups/billing/reset", json={"topic": "orders", "time": printable}),
    ]
    for answer in calls:
        assert answer.status_code < 500, (answer.request.method, answer.request.url, answer.text)
    assert live.get(f"{V1}/topics/orders/messages").status_code == 200


@pytest.mark.parametrize("number", [2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 1e308])
def test_huge_numbers_are_refused(live: httpx.Client, number: float) -> None:
    for answer in (
        live.get(f"{V1}/topics/orders/messages", params={"limit": str(number)}),
        live.get(f"{V1}/topics/orders/messages", params={"from": str(number)}),
        live.post(f"{V1}/topics", json={"name": "many", "queues": number}),
        live.post(
            f"{V1}/groups/billing/reset", json={"topic": "orders", "offset": number, "broker": "sparrow", "queue_id": 0}
        ),
        live.post(f"{V1}/topics/orders/messages", json={"text": "late", "delay_ms": number}),
    ):
        assert answer.status_code == 422, (answer.request.url, answer.text)
