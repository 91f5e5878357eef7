"""A real Chromium for tests: pages are watched for errors, requests to other hosts, and accessibility.

Playwright's blocking interface keeps an event loop running in its thread, which asyncio tests of the same process could
not bear. So it lives in a thread of its own, and `tests/browser/conftest.py` runs the tests of that folder there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, FloatRect, Page, Playwright, Request, sync_playwright
from tests.support.chromium import LAUNCH_ARGUMENTS

DESKTOP = {"width": 1440, "height": 900}
PHONE = "iPhone 13"
AXE_OPTIONS = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
MARGIN_PX, NAVIGATION_PX = 24, 620
"""Below a part of a page, and the height of the navigation."""
SEVERE = ("serious", "critical")
TIMEOUT_MS = 30_000
"""A generous timeout for busy machines."""


class WatchedPage:
    """A page of the console, and what went wrong on it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.problems: list[str] = []
        self._forgiven: list[str] = []
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        page.context.on("request", self._on_request)  # unlike a route, this leaves the browser its cache

    def forgive(self, pattern: str) -> None:
        """Ignore console errors that match: a test that stops a broker expects answers with status 503."""
        self._forgiven.append(pattern)

    def open(self, path: str, *, status: int = 200) -> None:
        """Go to a page of the console."""
        if status != 200:
            self.forgive(f"status of {status}")
        answer = self.page.goto(self.address + path, wait_until="load")
        assert answer is not None
        assert answer.status == status, f"{path} answered {answer.status}"

    def check(self) -> None:
        """Fail if the page reported an error, ran what it should not, or is wider than the window."""
        assert self.problems == [], self.page.url
        assert self.page.evaluate("window.hacked") is None, f"a script of a message ran on {self.page.url}"
        widths = self.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1], f"{self.page.url} is {widths[0]} px wide in a window of {widths[1]} px"

    def check_accessibility(self) -> None:
        """Fail if axe finds a serious or critical issue."""
        found = Axe().run(self.page, options=AXE_OPTIONS).response["violations"]
        severe = [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in SEVERE]
        assert severe == [], self.page.url

    def save(self, path: Path, *, last_part: str | None = None) -> None:
        """Save a screenshot of the whole page, or of the page down to the end of a part (a CSS selector)."""
        path.parent.mkdir(parents=True, exist_ok=True)
        clip = None
        if last_part is not None:
            box = self.page.locator(last_part).first.bounding_box()
            assert box is not None
            height = max(box["y"] + box["height"] + MARGIN_PX, NAVIGATION_PX)
            clip = FloatRect(x=0, y=0, width=DESKTOP["width"], height=height)
        self.page.screenshot(path=path, full_page=True, animations="disabled", clip=clip)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(re.search(pattern, message.text) for pattern in self._forgiven):
            self.problems.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _on_request(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.address).netloc:
            self.problems.append(f"a request to another host: {request.url}")


class TestBrowser:
    """A running Chromium."""

    __test__ = False

    def __init__(self, playwright: Playwright, browser: Browser) -> None:
        self._playwright, self._browser = playwright, browser

    @contextmanager
    def page(
        self, address: str, *, language: str = "en", theme: str = "light", is_phone: bool = False
    ) -> Iterator[WatchedPage]:
        """Open a window with a language, a colour scheme and a size; it has no cookies."""
        size: dict[str, Any] = dict(self._playwright.devices[PHONE]) if is_phone else {"viewport": DESKTOP}
        size.pop("default_browser_type", None)
        size["device_scale_factor"] = 1  # three times as many pixels would show nothing more
        locale = {"en": "en-US", "zh": "zh-CN"}[language]
        with self._browser.new_context(**size, locale=locale, color_scheme=theme, reduced_motion="reduce") as context:
            yield WatchedPage(context.new_page(), address)


@contextmanager
def run_browser(chromium: Path) -> Iterator[TestBrowser]:
    """Run Chromium inside the context."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(LAUNCH_ARGUMENTS))
        try:
            yield TestBrowser(playwright, browser)
        finally:
            browser.close()
