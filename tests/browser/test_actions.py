"""What an operator does on pages: create, send, follow, reset, redrive, execute again, delete; the plan comes first."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import ServedConsole
from tests.support.browser import TIMEOUT_MS, TestBrowser
from tests.support.console_traffic import ORDER_COUNT, ORDERS, REPORTING, SHIPPING
from tests.support.pipelines import REVENUE
from tests.support.wait import wait_until

from sparrow.client import Admin, Message, Producer

pytestmark = pytest.mark.parametrize("console", ["log"], indirect=True)
expect.set_options(timeout=TIMEOUT_MS)


@pytest.mark.thorough
def test_a_topic_is_created_used_and_deleted(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        watched.forgive("status of 422")
        watched.open("/topics")
        page.get_by_role("link", name="New topic").click()
        page.get_by_label("Topic", exact=True).fill("no blanks allowed")
        page.get_by_role("button", name="Create topic").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
        page.get_by_label("Topic", exact=True).fill("parcels")
        page.get_by_role("button", name="Create topic").click()
        page.get_by_role("heading", level=1, name="parcels").wait_for()
        expect(page.locator(".toasts")).to_contain_text("Topic parcels was created.")

        page.get_by_role("link", name="Send a message").click()
        page.get_by_label("Body").fill('{"parcel": 7}')
        page.get_by_label("Keys").fill("parcel-7")
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.locator(".toasts")).to_contain_text("The message was sent.")

        def is_found() -> bool:
            watched.open("/messages?topic=parcels&key=parcel-7")
            return page.locator("tbody tr a").count() > 0

        wait_until(is_found, within_s=30)
        page.locator("tbody tr a").first.click()
        expect(page.locator("#payload")).to_contain_text('"parcel": 7')
        expect(page.locator(".timeline")).to_contain_text("Stored")

        watched.open("/topics/parcels")
        page.get_by_role("link", name="Delete").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("Messages that are lost")
        dialog.get_by_label("Type parcels to confirm").fill("parcel")
        dialog.get_by_role("button", name="Delete the topic").click()
        expect(dialog.get_by_role("alert")).to_contain_text("nothing was changed")
        dialog.get_by_label("Type parcels to confirm").fill("parcels")
        dialog.get_by_role("button", name="Delete the topic").click()
        page.get_by_role("heading", level=1, name="Topics").wait_for()
        expect(page.locator(".toasts")).to_contain_text("Topic parcels was deleted.")

        watched.open("/audit")
        expect(page.locator("main")).to_contain_text("delete topic")
        watched.check()


@pytest.mark.thorough
def test_a_live_tail_shows_messages_as_they_arrive(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched, Producer(console.name_servers) as producer:
        page = watched.page
        watched.open("/topics/urgent_orders")
        page.get_by_role("link", name="Follow new messages").click()
        expect(page.locator("#tail-state")).to_contain_text("live")
        producer.send(Message("urgent_orders", "arrives while you look"))
        expect(page.locator("#tail")).to_contain_text("arrives while you look")
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#tail-state")).to_contain_text("stopped")
        watched.check()


@pytest.mark.thorough
def test_live_parts_follow_the_platform(browser: TestBrowser, console: ServedConsole) -> None:
    def stored() -> str:
        with Admin(console.name_servers) as admin:
            return str(sum(bounds.end - bounds.first for bounds in admin.topic_bounds("urgent_orders").values()))

    with browser.page(console.address) as watched, Producer(console.name_servers) as producer:
        page = watched.page
        watched.open("/topics?q=orders")
        row = page.locator("tr", has=page.get_by_role("link", name="urgent_orders", exact=True))
        expect(row.locator("td").nth(1)).to_have_text(stored())
        for number in range(5):
            producer.send(Message("urgent_orders", f"more {number}"))
        expect(row.locator("td").nth(1)).to_have_text(stored())
        watched.check()


@pytest.mark.thorough
def test_a_reset_shows_each_queue_before_it_happens(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched, Admin(console.name_servers) as admin:
        page = watched.page
        assert 0 < admin.progress(REPORTING, ORDERS).lag < ORDER_COUNT
        watched.open(f"/groups/{REPORTING}")
        page.get_by_role("link", name="Reset offsets").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Continue at").select_option("first")
        dialog.get_by_role("button", name="Show what will happen").click()
        expect(dialog.get_by_role("row")).to_have_count(5)  # the heading and four queues
        expect(dialog).to_contain_text(re.compile(r"delivered again: \d+, skipped: 0"))
        assert admin.progress(REPORTING, ORDERS).lag < ORDER_COUNT
        dialog.get_by_label(f"Type {REPORTING} to confirm").fill(REPORTING)
        dialog.get_by_role("button", name="Reset the offsets").click()
        expect(page.locator(".toasts")).to_contain_text(f"The offsets of {REPORTING} were reset.")
        assert admin.progress(REPORTING, ORDERS).lag >= ORDER_COUNT
        watched.check()


@pytest.mark.thorough
def test_chosen_dead_letters_are_redriven(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        watched.open(f"/dead-letters/{SHIPPING}")
        boxes = page.locator("tbody input[type=checkbox]")
        boxes.nth(0).check()
        boxes.nth(1).check()
        page.get_by_role("button", name="Redrive the chosen").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("once more: 2")
        dialog.get_by_role("button", name="Redrive (2)").click()
        expect(page.locator(".toasts")).to_contain_text("Redriven: 2")
        watched.check()


@pytest.mark.thorough
def test_a_delayed_message_is_recalled(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        watched.open("/delayed?topic=reminders")
        rows = page.locator("tbody tr")
        count = rows.count()
        page.get_by_role("button", name="Recall the chosen").click()
        expect(page.locator(".toasts")).to_contain_text("Choose at least one message.")
        watched.open("/delayed?topic=reminders")
        row = page.locator("tr", has=page.get_by_text("reminder-1", exact=True))
        row.locator("input[type=checkbox]").check()
        page.get_by_role("button", name="Recall the chosen").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("will never be delivered: 1")
        dialog.get_by_role("button", name="Recall (1)").click()
        expect(page.locator(".toasts")).to_contain_text("Recalled: 1")
        watched.open("/delayed?topic=reminders")
        expect(rows).to_have_count(count - 1)
        watched.check()


@pytest.mark.thorough
def test_transactions_are_committed_and_rolled_back_by_force(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        for button, confirmation, done in (
            ("Commit the chosen", "Commit (1)", "Committed: 1"),
            ("Roll back the chosen", "Roll back (1)", "Rolled back: 1"),
        ):
            watched.open("/transactions")
            boxes = page.locator("tbody input[type=checkbox]")
            count = boxes.count()
            boxes.first.check()
            page.get_by_role("button", name=button).click()
            page.get_by_role("dialog").get_by_role("button", name=confirmation).click()
            expect(page.locator(".toasts")).to_contain_text(done)
            expect(boxes).to_have_count(count - 1)
        watched.open("/audit")
        expect(page.locator("main")).to_contain_text("roll back transactions")
        watched.check()


@pytest.mark.thorough
def test_a_pipeline_is_asked_to_stop(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        watched.open("/pipelines")
        page.get_by_role("link", name=REVENUE, exact=True).click()
        page.get_by_role("heading", level=1, name=REVENUE).wait_for()
        expect(page.locator("#queries")).to_contain_text("orders/sparrow/0")
        page.get_by_role("link", name="Stop").click()
        page.get_by_role("dialog").get_by_role("button", name="Stop").click()
        expect(page.locator(".toasts")).to_contain_text("is asked to stop")
        expect(page.locator("#figures")).to_contain_text("stopping")
        (console.pipelines / "status" / f"{REVENUE}.stop").unlink()  # for the tests that look at a running one
        watched.check()


@pytest.mark.thorough
def test_a_failed_event_is_executed_again(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        watched.open("/bus/received?status=Failed")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.locator("tbody tr a").click()
        expect(page.locator("pre.payload").first).to_contain_text("ValueError")
        page.get_by_role("button", name="Re-execute").click()
        page.get_by_role("dialog").get_by_role("button", name="Re-execute (1)").click()
        expect(page.locator(".toasts")).to_contain_text("Re-execute: 1")
        watched.open("/bus/received?status=Failed")
        expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
        watched.check()


@pytest.mark.thorough
def test_the_slash_key_searches_from_every_page(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address) as watched:
        page = watched.page
        watched.open("/cluster")
        page.keyboard.press("/")
        page.keyboard.type(ORDERS)
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name=ORDERS).wait_for()
        watched.open("/groups")
        page.keyboard.press("/")
        expect(page.locator("#q")).to_be_focused()
        watched.check()


@pytest.mark.thorough
def test_the_menu_opens_on_a_phone(browser: TestBrowser, console: ServedConsole) -> None:
    with browser.page(console.address, is_phone=True) as watched:
        page = watched.page
        watched.open("/")
        expect(page.get_by_role("link", name="Topics", exact=True)).to_be_hidden()
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("link", name="Topics", exact=True).click()
        page.get_by_role("heading", level=1, name="Topics").wait_for()
        watched.check()
