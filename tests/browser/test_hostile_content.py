"""What clients send is shown and never run: bodies, keys, tags, properties, errors and names; large bodies are cut."""

from __future__ import annotations

import time

import pytest
from tests.browser.conftest import ServedConsole, each_store
from tests.support.browser import TestBrowser
from tests.support.console_traffic import BODY_MAX, HOSTILE, HOSTILE_TOPIC, SHIPPING

LARGE_PAGE_S = 20
"""A page with a body of 4 MiB must be usable by then, on a busy machine; it takes less than a second on a quiet one."""


@each_store
def test_hostile_text_is_shown_as_it_is(browser: TestBrowser, console: ServedConsole) -> None:
    hostile = f"/topics/{HOSTILE_TOPIC}/messages/{console.traffic.hostile_id}"
    with browser.page(console.address) as watched:
        page = watched.page
        watched.open(hostile + "?view=text")
        assert page.locator("#payload").inner_text() == HOSTILE
        assert page.get_by_text(HOSTILE).count() >= 2  # the body and a property
        watched.check()
        watched.open(f"/messages?topic={HOSTILE_TOPIC}")
        assert page.locator("td", has_text="window.hacked").count() >= 1
        page.mouse.move(400, 500)
        watched.check()
        watched.open(f"/dead-letters/{SHIPPING}")
        assert page.locator("td", has_text="onerror=").count() >= 1
        watched.check()
        watched.open(f"/topics/{HOSTILE_TOPIC}?tail=1")
        page.locator("#tail pre", has_text="window.hacked").first.wait_for()
        watched.check()


@pytest.mark.thorough
@pytest.mark.parametrize("console", ["log"], indirect=True)
def test_hostile_text_in_an_address_is_shown_as_it_is(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        for path in ("/topics?q=", "/groups?q=", "/messages?topic=orders&text=", "/search?q="):
            watched.open(f"{path}%22%3E%3Cscript%3Ewindow.hacked=1%3C/script%3E")
            assert watched.page.locator("main script").count() == 0, path
            watched.check()


@pytest.mark.thorough
@pytest.mark.parametrize("console", ["log"], indirect=True)
def test_an_address_of_another_site_is_no_target_of_a_redirect(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        watched.open("/topics")
        watched.page.evaluate("document.querySelector('input[name=next]').value = '//example.com/'")
        watched.page.get_by_role("button", name="Use the dark theme").click()
        watched.page.get_by_role("heading", level=1, name="Overview").wait_for()
        watched.check()


@pytest.mark.thorough
@each_store
def test_a_large_body_is_cut_and_does_not_hang_the_page(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        begun = time.monotonic()
        watched.open(f"/topics/{HOSTILE_TOPIC}/messages/{console.traffic.large_id}")
        watched.page.get_by_role("link", name="Hexadecimal").click()
        watched.page.locator("pre.hex").wait_for()
        assert time.monotonic() - begun < LARGE_PAGE_S
        watched.open(f"/messages?topic={HOSTILE_TOPIC}")
        assert watched.page.get_by_text("4.0 MiB").count() == 1
        assert len(watched.page.content()) < BODY_MAX / 8
        watched.check()
