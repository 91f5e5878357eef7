"""Every page: in both languages and themes, on a desktop and a phone, without errors, and accessible.

The full run saves screenshots.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.browser.conftest import IS_SMOKE, ServedConsole, each_store
from tests.support.browser import TestBrowser, WatchedPage
from tests.support.console_traffic import (
    BILLING,
    HOSTILE_TOPIC,
    ORDERS,
    PAYMENTS,
    REMINDERS,
    REPORTING,
    SHIPPING,
    URGENT,
)
from tests.support.pipelines import NIGHTLY, REVENUE
from tests.support.wait import wait_until

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
LOOKS = {
    "desktop": ("en", "light", False),
    "phone-dark-zh": ("zh", "dark", True),
    "dark": ("en", "dark", False),
    "zh": ("zh", "light", False),
    "phone": ("en", "light", True),
    "dark-zh": ("zh", "dark", False),
    "phone-dark": ("en", "dark", True),
    "phone-zh": ("zh", "light", True),
}
"""Name of a look: language, theme, and whether it is a phone."""
SAMPLES_SHOWN = 60
"""Samples that the charts of the picture of the overview have at least."""
SMOKE_LOOKS = {"log": ("desktop",), "sql": ("phone-dark-zh",)}
"""Each store, language, theme and size once; all combinations at full scale."""


DESKTOP_ONLY = re.compile(r".*-(new|edit|send|delete|reset|resend|none|start|stop|system|lanes)")
"""Pages that the short run sees on a desktop only: forms and variants of other pages."""


def looks() -> list[object]:
    wanted = SMOKE_LOOKS if IS_SMOKE else dict.fromkeys(SMOKE_LOOKS, tuple(LOOKS))
    return [pytest.param(store, look, id=f"{store}-{look}") for store, names in wanted.items() for look in names]


def pages(console: ServedConsole) -> dict[str, str]:
    """Return the pages by the name of their screenshot."""
    traffic = console.traffic
    return {
        "topics": "/topics",
        "topics-system": "/topics?kind=all&sort=-messages",
        "topics-none": "/topics?q=nothing-like-this",
        "topic": f"/topics/{ORDERS}",
        "topic-lanes": f"/topics/{URGENT}",
        "topic-tail": f"/topics/{PAYMENTS}?tail=1",
        "topic-new": "/topics/new",
        "topic-edit": f"/topics/{ORDERS}/edit",
        "topic-send": f"/topics/{ORDERS}/send",
        "topic-delete": f"/topics/{PAYMENTS}/delete",
        "groups": "/groups?sort=-lag",
        "group": f"/groups/{BILLING}",
        "group-behind": f"/groups/{REPORTING}",
        "group-reset": f"/groups/{REPORTING}/reset",
        "group-resend": f"/groups/{REPORTING}/resend",
        "group-delete": f"/groups/{REPORTING}/delete",
        "messages-start": "/messages",
        "messages": f"/messages?topic={ORDERS}",
        "messages-none": f"/messages?topic={ORDERS}&text=nothing-like-this",
        "message": f"/topics/{ORDERS}/messages/{traffic.order_id}",
        "message-hostile": f"/topics/{HOSTILE_TOPIC}/messages/{traffic.hostile_id}",
        "message-binary": f"/topics/{HOSTILE_TOPIC}/messages/{traffic.binary_id}",
        "dead-letters": "/dead-letters",
        "dead-letters-group": f"/dead-letters/{SHIPPING}",
        "dead-letters-none": f"/dead-letters/{BILLING}",
        "delayed": "/delayed",
        "delayed-none": "/delayed?topic=nothing-like-this",
        "transactions": "/transactions",
        "bus-published": "/bus/published",
        "bus-received": "/bus/received",
        "pipelines": "/pipelines",
        "pipeline": f"/pipelines/{REVENUE}",
        "pipeline-none": f"/pipelines/{NIGHTLY}",
        "pipeline-stop": f"/pipelines/{REVENUE}/stop",
        "cluster": "/cluster",
        "broker": "/cluster/sparrow",
        "tokens": "/tokens",
        "token-new": "/tokens/new",
        "settings": "/settings",
        "audit": "/audit",
        "overview": "/",  # the last: by now its charts have samples
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("console", "look"), looks(), indirect=["console"])
def test_every_page_is_sound_and_accessible(browser: TestBrowser, console: ServedConsole, look: str) -> None:
    language, theme, is_phone = LOOKS[look]
    with browser.page(console.address, language=language, theme=theme, is_phone=is_phone) as watched:
        for name, path in pages(console).items():
            if IS_SMOKE and is_phone and DESKTOP_ONLY.fullmatch(name):
                continue
            watched.open(path)
            assert watched.page.locator("h1").count() == 1, path
            watched.check_accessibility()
            if not IS_SMOKE:
                watched.save(SCREENSHOTS / console.store / look / f"{name}.png")
            watched.check()
        assert watched.page.locator("html").get_attribute("lang") == {"en": "en", "zh": "zh-CN"}[language]


@pytest.mark.thorough
@each_store
def test_details_are_reached_by_links(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        for start, link, heading in (
            ("/topics", ORDERS, ORDERS),
            ("/groups", BILLING, BILLING),
            ("/dead-letters", SHIPPING, SHIPPING),
        ):
            watched.open(start)
            page.get_by_role("main").get_by_role("link", name=link, exact=True).click()
            page.get_by_role("heading", level=1, name=heading).wait_for()
        page.get_by_role("main").locator("tbody tr a").first.click()
        page.get_by_role("heading", name="Cause").wait_for()
        page.go_back()
        page.get_by_role("heading", level=1, name=SHIPPING).wait_for()
        watched.check()


@each_store
def test_a_page_that_does_not_exist_says_so(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        for path in ("/nothing", "/topics/no_such_topic", "/groups/no_such_group", "/topics/orders/messages/00"):
            watched.open(path, status=404)
            assert watched.page.get_by_role("heading", level=1).inner_text() == "There is nothing here"
        watched.check()


@pytest.mark.skipif(IS_SMOKE, reason="the pictures of the documentation are made at full scale")
@pytest.mark.parametrize("console", ["log"], indirect=True)
def test_pictures_of_the_documentation_are_made(browser: TestBrowser, console: ServedConsole) -> None:
    """Save what `docs/images` shows, each down to the end of a part of the page."""
    pictures = {
        "message": (f"/topics/{ORDERS}/messages/{console.traffic.order_id}", "main"),
        "delayed": (f"/delayed?topic={REMINDERS}", "main"),
        "transactions": ("/transactions", "main"),
        "pipeline": (f"/pipelines/{REVENUE}", "#queries"),
        "overview": ("/", "main"),
    }
    with browser.page(console.address) as watched:
        wait_until(lambda: sample_count(watched) >= SAMPLES_SHOWN, within_s=10 * SAMPLES_SHOWN)
        for name, (path, last_part) in pictures.items():
            watched.open(path)
            watched.save(SCREENSHOTS / "docs" / f"{name}.png", last_part=last_part)
            watched.check()


def sample_count(watched: WatchedPage) -> int:
    answer = watched.page.request.get(f"{watched.address}/api/v1/overview")
    return len(answer.json()["times_ms"])


def look_at(watched: WatchedPage, theme: str) -> str:
    watched.open("/topics")
    assert watched.page.locator("html").get_attribute("data-theme") == theme
    return watched.page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.thorough
@pytest.mark.parametrize("console", ["log"], indirect=True)
def test_theme_and_language_are_switched_and_kept(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        light = look_at(watched, "auto")
        page.get_by_role("button", name="Use the dark theme").click()
        page.wait_for_selector("html[data-theme=dark]")
        assert look_at(watched, "dark") != light
        page.get_by_role("button", name="Use the light theme").click()
        page.wait_for_selector("html[data-theme=light]")
        assert look_at(watched, "light") == light
        page.get_by_role("button", name="中文").click()
        page.get_by_role("heading", level=1, name="主题").wait_for()
        watched.open("/groups")
        assert page.get_by_role("heading", level=1).inner_text() == "消费组"
        watched.check()
