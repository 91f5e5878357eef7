"""Traffic that fills every page of the console: topics, groups with lag, dead letters, delays, transactions, a bus.

Some of it is hostile: bodies, keys, tags and errors that would run as a script, break the layout or be large, if a page
did not show them as text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.wait import wait_until

from sparrow.bus import EventBus, Retry
from sparrow.client import Admin, Consumer, DeadLetter, Message, Producer
from sparrow.model.message import StoredMessage
from sparrow.model.transaction import TransactionState

HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'`{{7*7}}"
HOSTILE_ATTRIBUTE = '" onmouseover="window.hacked=1" autofocus onfocus="window.hacked=1'
LONG_WORD = "W" * 3_000
BODY_MAX = 4 * 1024 * 1024 - 1024
"""Nearly what a broker accepts: 4 MiB with the properties."""
ORDERS, PAYMENTS, URGENT, CLICKS, HOSTILE_TOPIC = "orders", "payments", "urgent_orders", "clicks", "hostile"
REMINDERS = "reminders"
BILLING, SHIPPING, REPORTING, ANALYTICS = "billing", "shipping", "reporting", "analytics"
CLICK_INTERVAL_S = 0.25
ORDER_COUNT, EVENT_COUNT, DELAYED_COUNT, HALF_COUNT = 120, 8, 6, 4


class ConsoleTraffic:
    """What was sent, for tests to look for."""

    def __init__(self) -> None:
        self.order_id = ""
        self.hostile_id = ""
        self.large_id = ""
        self.binary_id = ""


@contextmanager
def console_traffic(name_servers: str, bus_database: str) -> Iterator[ConsoleTraffic]:
    """Send the traffic, and keep a group online until the end."""
    traffic = ConsoleTraffic()
    with (
        Producer(name_servers, group="shop", trace=True) as producer,
        Admin(name_servers) as admin,
        Consumer(name_servers, group=BILLING, consume_from="first", trace=True) as billing,
    ):
        _create_topics(admin)
        _send_orders(producer, traffic)
        _send_hostile(producer, traffic)
        billing.subscribe(ORDERS)
        billing.start(lambda message: None, workers=2)
        _fail_some(name_servers, producer, admin)
        _leave_behind(name_servers)
        _delay_some(producer)
        _begin_some(name_servers)
        _fill_bus(bus_database, name_servers)
        wait_until(lambda: admin.progress(BILLING, ORDERS).lag == 0, within_s=60)
        with _clicks(name_servers, producer):
            yield traffic


@contextmanager
def _clicks(name_servers: str, producer: Producer) -> Iterator[None]:
    """Send and consume a little all the time, so that charts have something to show."""
    is_over = threading.Event()

    def keep_sending() -> None:
        number = 0
        while not is_over.wait(CLICK_INTERVAL_S):
            number += 1
            producer.send(Message(CLICKS, json.dumps({"click": number}), tags="page"))

    with Consumer(name_servers, group=ANALYTICS, consume_from="first") as consumer:
        producer.send(Message(CLICKS, "{}"))
        consumer.subscribe(CLICKS)
        consumer.start(lambda message: None, workers=1)
        sender = threading.Thread(target=keep_sending, name="clicks")
        sender.start()
        try:
            yield
        finally:
            is_over.set()
            sender.join()


def _create_topics(admin: Admin) -> None:
    admin.create_topic(ORDERS, 4)
    admin.create_topic(PAYMENTS, 8)
    admin.create_topic(CLICKS, 4)
    admin.create_topic(URGENT, 2, has_lanes=True)
    admin.create_topic(HOSTILE_TOPIC, 1)
    admin.create_topic(REMINDERS, 1)
    admin.create_topic("order|created", 1)  # of the event bus


def _send_orders(producer: Producer, traffic: ConsoleTraffic) -> None:
    for number in range(ORDER_COUNT):
        body = json.dumps(
            {"order": number, "city": "Berlin", "cents": number * 137, "lines": [{"sku": "A-1", "count": 2}]}
        )
        sent = producer.send(Message(ORDERS, body, tags="created", keys=f"order-{number}"))
        traffic.order_id = sent.message_id
    for number in range(ORDER_COUNT // 2):
        producer.send(Message(PAYMENTS, json.dumps({"payment": number}), keys=f"payment-{number}"))
    for number in range(6):
        producer.send(Message(URGENT, f"urgent {number}"))


def _send_hostile(producer: Producer, traffic: ConsoleTraffic) -> None:
    sent = producer.send(
        Message(
            HOSTILE_TOPIC,
            HOSTILE,
            tags=HOSTILE.replace(" ", ""),
            keys=[HOSTILE_ATTRIBUTE.replace(" ", ""), LONG_WORD[:200]],
            properties={"note": HOSTILE, "attribute": HOSTILE_ATTRIBUTE, "long": LONG_WORD},
        )
    )
    traffic.hostile_id = sent.message_id
    large = json.dumps({"text": HOSTILE * ((BODY_MAX - 100) // (len(json.dumps(HOSTILE)) - 2))})
    traffic.large_id = producer.send(Message(HOSTILE_TOPIC, large, keys="large")).message_id
    traffic.binary_id = producer.send(Message(HOSTILE_TOPIC, bytes(range(256)) * 40, keys="binary")).message_id


def _delay_some(producer: Producer) -> None:
    producer.send(Message(ORDERS, '{"order": "later"}', keys="order-later"), deliver_after_ms=3_600_000)
    for number in range(DELAYED_COUNT - 2):
        producer.send(
            Message(REMINDERS, json.dumps({"reminder": number}), keys=f"reminder-{number}", tags="call"),
            deliver_after_ms=(number + 2) * 3_600_000,
        )
    producer.send(
        Message(HOSTILE_TOPIC, HOSTILE, keys=HOSTILE_ATTRIBUTE.replace(" ", ""), tags=HOSTILE.replace(" ", "")),
        deliver_after_ms=50 * 3_600_000,
    )


def _begin_some(name_servers: str) -> None:
    """Begin transactions that nobody ends."""
    with Producer(name_servers, group="bookings", transaction_checker=lambda _: TransactionState.UNKNOWN) as producer:
        for number in range(HALF_COUNT):
            producer.begin_transaction(Message(PAYMENTS, json.dumps({"booking": number}), keys=f"booking-{number}"))


def _fail_some(name_servers: str, producer: Producer, admin: Admin) -> None:
    def refuse(message: StoredMessage) -> None:
        number = json.loads(message.body)["payment"]
        if number % 10 == 3:
            raise DeadLetter(f"card refused for payment {number}")
        if number % 10 == 7:
            raise ValueError(HOSTILE)

    with Consumer(name_servers, group=SHIPPING, retries_max=0, consume_from="first") as consumer:
        consumer.subscribe(PAYMENTS)
        consumer.start(refuse, workers=2)
        # Not their number: on a busy machine one may be delivered, and given up, twice.
        wait_until(lambda: len(_keys(admin.dead_letters(SHIPPING))) == ORDER_COUNT // 10, within_s=60)


def _keys(messages: list[StoredMessage]) -> set[str]:
    return {key for message in messages for key in message.keys}


def _leave_behind(name_servers: str) -> None:
    """Let a group read a few messages and leave, so that it has a lag."""
    read: list[StoredMessage] = []
    with Consumer(name_servers, group=REPORTING, consume_from="first") as consumer:
        consumer.subscribe(ORDERS)
        for message in consumer:
            read.append(message)
            if len(read) == ORDER_COUNT // 3:
                break


def _fill_bus(database: str, name_servers: str) -> None:
    bus = EventBus(
        database, f"sparrow://{name_servers}", app="shop", retry=Retry(max=1), poll_min_s=0.005, poll_max_s=0.05
    )

    @bus.subscribe("order.created", group="billing")
    def bill(order: dict[str, Any]) -> None:
        if order["number"] == 3:
            raise ValueError(HOSTILE)

    with bus:
        for number in range(EVENT_COUNT):
            bus.publish("order.created", {"number": number, "note": HOSTILE if number == 5 else "a book"})
        bus.publish("order.reminder", {"number": 1}, delay=7200)
        wait_until(lambda: _handled(bus) == EVENT_COUNT, within_s=60)


def _handled(bus: EventBus) -> int:
    received = bus.operations.stats().received
    return received.succeeded.count + received.by_status["Failed"]
