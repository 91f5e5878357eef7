"""The page of a cluster with a replica set and the hand-over there, and a console for several clusters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import IS_SMOKE, address_of
from tests.browser.test_pages import LOOKS, SCREENSHOTS
from tests.support.browser import TIMEOUT_MS, TestBrowser
from tests.support.consoles import running_console
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_servers import equal_logs, leader_of, replica_set

from sparrow.client.blocking.loop_thread import LoopThread
from sparrow.testing import run_platform

expect.set_options(timeout=TIMEOUT_MS)
LOOKS_SEEN = ("desktop", "phone-dark-zh") if IS_SMOKE else tuple(LOOKS)


class RunningSet(NamedTuple):
    """A replica set with a leader."""

    name_servers: str
    name: str
    leader: int


@contextmanager
def running_set(etcd: EtcdServer, folder: Path) -> Iterator[RunningSet]:
    """Run a replica set in a thread of its own."""
    loop, running = LoopThread("replicas"), AsyncExitStack()
    try:
        name_servers, servers = loop.run(running.enter_async_context(replica_set(etcd, folder)))
        leader = loop.run(leader_of(servers))
        loop.run(equal_logs(servers))
        yield RunningSet(name_servers, leader.settings.name, leader.node.options.replica_id)
    finally:
        loop.run(running.aclose())
        loop.stop()


@pytest.mark.thorough
def test_a_replica_set_is_shown_and_hands_over(browser: TestBrowser, tmp_path: Path) -> None:
    with (
        etcd_cluster() as (etcd,),
        running_set(etcd, tmp_path) as replicas,
        running_console(replicas.name_servers) as client,
    ):
        for look in LOOKS_SEEN:
            language, theme, is_phone = LOOKS[look]
            with browser.page(address_of(client), language=language, theme=theme, is_phone=is_phone) as watched:
                for name, path in (("replica-set", "/cluster"), ("hand-over", f"/cluster/{replicas.name}/transfer")):
                    watched.open(path)
                    watched.check_accessibility()
                    watched.save(SCREENSHOTS / "log" / look / f"{name}.png")
                    watched.check()
        if not IS_SMOKE:
            with browser.page(address_of(client)) as watched:
                watched.open("/cluster")
                watched.save(SCREENSHOTS / "docs" / "replica-set.png", last_part="main")
        successor = 1 + replicas.leader % 3
        with browser.page(address_of(client)) as watched:
            page = watched.page
            watched.open("/cluster")
            rows = page.locator("#replica-sets tbody tr")
            expect(rows).to_have_count(3)
            expect(rows.nth(replicas.leader - 1)).to_contain_text("leader")
            rows.nth(successor - 1).get_by_role("link", name="Let it lead").click()
            dialog = page.get_by_role("dialog")
            expect(dialog).to_contain_text("Nothing is lost")
            dialog.get_by_role("button", name=f"Hand over to replica {successor}").click()
            expect(page.locator(".toasts")).to_contain_text(f"Replica {successor} leads {replicas.name}.")
            expect(rows.nth(successor - 1)).to_contain_text("leader")
            expect(rows.nth(replicas.leader - 1)).to_contain_text("follower")
            watched.check()


@pytest.mark.thorough
def test_another_cluster_is_one_click_away(browser: TestBrowser, tmp_path: Path) -> None:
    with run_platform(tmp_path / "berlin") as berlin, run_platform(tmp_path / "oslo") as oslo:
        clusters = {"berlin": berlin.name_servers, "oslo": oslo.name_servers}
        with running_console(clusters) as client, browser.page(address_of(client)) as watched:
            client.post("/api/v1/topics", json={"name": "fjords"}, params={"cluster": "oslo"}).raise_for_status()
            page = watched.page
            watched.open("/topics")
            expect(page.locator(".switcher summary")).to_contain_text("berlin")
            expect(page.get_by_role("heading", name="No topics yet")).to_be_visible()
            page.locator(".switcher summary").click()
            watched.check_accessibility()
            page.get_by_role("link", name="oslo").click()
            expect(page.locator(".switcher summary")).to_contain_text("oslo")
            page.get_by_role("link", name="fjords").click()
            page.get_by_role("heading", level=1, name="fjords").wait_for()
            assert "cluster=oslo" in page.url
            watched.check()
