"""Log-in where it is on, and platforms that are away: pages say so, and recover by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import address_of
from tests.support.browser import TIMEOUT_MS, TestBrowser
from tests.support.consoles import running_console

from sparrow.cli.server.platform import Platform
from sparrow.client import Message, Producer
from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings
from sparrow.testing.platform import SMALL_LOG_SETTINGS, RunningPlatform

expect.set_options(timeout=TIMEOUT_MS)
TOKENS = {
    "olga": {"role": "operator", "secret_key": "operator-secret"},
    "victor": {"role": "viewer", "secret_key": "viewer-secret"},
}


def log_in(browser_page, secret: str) -> None:
    browser_page.get_by_label("Secret key").fill(secret)
    browser_page.get_by_role("button", name="Log in").click()


@pytest.mark.thorough
def test_a_visitor_logs_in_and_does_what_the_role_allows(browser: TestBrowser, platform: RunningPlatform) -> None:
    with running_console(platform.name_servers, auth=True, tokens=TOKENS) as client:
        with browser.page(address_of(client)) as watched:
            page = watched.page
            watched.forgive("status of 401")
            watched.open("/topics?kind=all")
            page.get_by_role("heading", level=1, name="Log in").wait_for()
            watched.check_accessibility()
            log_in(page, "wrong")
            expect(page.get_by_role("alert")).to_contain_text("not valid")
            log_in(page, "operator-secret")
            page.get_by_role("heading", level=1, name="Topics").wait_for()
            assert page.url.endswith("/topics?kind=all")
            (session,) = [cookie for cookie in page.context.cookies() if cookie["name"] == "sparrow_session"]
            assert (session["httpOnly"], session["sameSite"]) == (True, "Lax")
            page.get_by_role("link", name="New topic").click()
            page.get_by_label("Topic", exact=True).fill("made_by_olga")
            page.get_by_role("button", name="Create topic").click()
            page.get_by_role("heading", level=1, name="made_by_olga").wait_for()
            watched.check()

            page.evaluate("document.cookie = 'x=1'")
            watched.forgive("status of 403")
            watched.open("/topics/made_by_olga/send")
            page.evaluate("document.querySelector('main form [name=csrf_token]').value = 'forged'")
            page.get_by_label("Body").fill("never stored")
            page.locator("main form button").click()
            expect(page.locator(".sheet [role=alert]")).to_contain_text("X-CSRF-Token")
            page.get_by_role("button", name="Log out").click()
            page.get_by_role("heading", level=1, name="Log in").wait_for()
            log_in(page, "viewer-secret")
            page.get_by_role("heading", level=1, name="Overview").wait_for()
            watched.open("/topics/made_by_olga/send")
            page.get_by_label("Body").fill("never stored")
            page.locator("main form button").click()
            expect(page.locator(".sheet [role=alert]")).to_contain_text("operator")
            watched.check()


@pytest.mark.thorough
def test_a_page_says_that_brokers_are_away_and_recovers(browser: TestBrowser, tmp_path: Path) -> None:
    with run_on_ports(tmp_path, 0, 0) as first:
        name_server_port, broker_port = (
            int(str(text).rpartition(":")[2]) for text in (first.name_servers, first.address)
        )
        with Producer(first.name_servers) as producer:
            producer.send(Message("orders", "before the outage"))
        with running_console(first.name_servers) as client, browser.page(address_of(client)) as watched:
            page, address = watched.page, watched.address
            watched.forgive("status of 50|status of 404|ERR_")  # a name server that has just started knows no topic yet
            watched.open("/topics/orders")
            first.stop()
            expect(page.locator("#offline")).to_be_visible()
            page.goto(address + "/")
            expect(page.locator("#alerts")).to_contain_text("The figures are not up to date")
            page.goto(address + "/topics/orders")
            expect(page.get_by_role("heading", level=1)).to_have_text("Not reachable at the moment")
            watched.check_accessibility()
            with run_on_ports(tmp_path, name_server_port, broker_port):
                page.get_by_role("heading", level=1, name="orders").wait_for()
                watched.check()


@contextmanager
def run_on_ports(folder: Path, name_server_port: int, broker_port: int) -> Iterator[RunningPlatform]:
    """Run a platform on given ports: another one after an outage has the addresses of the first."""
    platform = Platform(
        folder,
        name_server=NameServerSettings(port=name_server_port),
        broker=BrokerSettings(port=broker_port),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS),
    )
    loop = LoopThread("platform")
    loop.run(platform.start())
    running = RunningPlatform(platform, loop, folder)
    try:
        yield running
    finally:
        running.stop()
