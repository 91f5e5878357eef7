"""One browser, and one console per store with real traffic, for all tests of this folder, in one worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from tests.support.browser import TestBrowser, run_browser
from tests.support.chromium import MAJOR_MIN, find_chromium, read_major_version
from tests.support.console_traffic import ConsoleTraffic, console_traffic
from tests.support.consoles import running_console
from tests.support.databases import ServerNotInstalled
from tests.support.pipelines import declare_pipelines, reporting_pipeline

from sparrow import Admin, Credentials
from sparrow.testing import run_platform

STORES = ("log", "sql")
IS_SMOKE = os.environ.get("SPARROW_SCALE", "smoke") == "smoke"
each_store = pytest.mark.parametrize("console", STORES[:1] if IS_SMOKE else STORES, indirect=True)
"""For claims that hardly depend on the store: the short run checks them on one, besides the walk over all pages."""
TIMEOUT_S = 300 if IS_SMOKE else 1_800
BROWSER_THREAD = ThreadPoolExecutor(1, thread_name_prefix="browser")


class ServedConsole(NamedTuple):
    """A console, and what was sent to its platform."""

    store: str
    address: str
    name_servers: str
    traffic: ConsoleTraffic
    pipelines: Path
    """The folder of declared pipelines."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in item.path.parts[-2:]:
            item.add_marker(pytest.mark.xdist_group("browser"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run the test in the thread of the browser: Playwright's objects belong to one thread, which has a loop."""
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    BROWSER_THREAD.submit(pyfuncitem.obj, **arguments).result()
    return True


@pytest.fixture(scope="session")
def browser() -> Iterator[TestBrowser]:
    """Provide Debian's Chromium, or skip with the reason why there is none."""
    try:
        chromium = find_chromium()
    except ServerNotInstalled as missing:
        pytest.skip(str(missing))
    major = read_major_version(chromium)
    if major < MAJOR_MIN:
        pytest.skip(f"{chromium} is version {major}; these tests need {MAJOR_MIN} or newer")
    with ExitStack() as stack:
        yield BROWSER_THREAD.submit(stack.enter_context, run_browser(chromium)).result()
        BROWSER_THREAD.submit(stack.close).result()


@pytest.fixture(scope="session", params=STORES)
def console(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConsole]:
    """Provide a console for a platform with traffic, on either store."""
    folder = tmp_path_factory.mktemp("console")
    store = f"sqlite:///{folder}/messages.db" if request.param == "sql" else None
    bus = f"sqlite:///{folder}/shop.db"
    declare_pipelines(folder / "pipelines")
    issue_tokens(folder / "sparrow", store)
    with (
        run_platform(folder / "sparrow", store=store) as platform,
        console_traffic(platform.name_servers, bus) as traffic,
        reporting_pipeline(folder / "pipelines"),
        running_console(
            platform.name_servers,
            bus_database=bus,
            pipelines_folder=str(folder / "pipelines"),
            sample_interval_ms=1_000,
        ) as client,
    ):
        # For the page of the audit: a change that fails, because a broker without auth issues no tokens.
        assert client.post("/api/v1/tokens", json={"name": "shipping", "type": "p"}).status_code == 422
        yield ServedConsole(request.param, address_of(client), platform.name_servers, traffic, folder / "pipelines")


def issue_tokens(folder: Path, store: str | None) -> None:
    """Issue the tokens that the page of tokens shows, by a broker with auth on the same store."""
    operator = Credentials("operator", "a long secret")
    broker = {"auth": True, "admin_tokens": {operator.access_key: operator.secret_key}}
    with run_platform(folder, store=store, broker=broker) as platform:
        with Admin(platform.name_servers, credentials=operator) as admin:
            admin.issue_token(
                "checkout", "p", topics=["orders", "invoices-*"], addresses=["10.0.0.0/8", "2001:db8::/32"]
            )
            admin.issue_token("warehouse", "c")
            admin.revoke_token("warehouse")


def address_of(client: httpx.Client) -> str:
    """Return the address of a console, without a slash at its end."""
    return str(client.base_url).rstrip("/")
