"""Retry a message later, dead-letter another one, and redrive the dead letter after the repair."""

import threading

import sparrow.testing
from sparrow import Admin, Consumer, DeadLetter, Message, Producer, RetryLater
from sparrow.model import StoredMessage

is_repaired = threading.Event()
all_handled = threading.Event()
handled: list[str] = []


def handle(message: StoredMessage) -> None:
    text = message.body.decode()
    if text == "too early" and message.reconsume_times == 0:
        raise RetryLater(1)  # deliver again after one second
    if text == "broken" and not is_repaired.is_set():
        raise DeadLetter("the order has no customer")  # a retry would not help
    handled.append(text)
    if len(handled) == 3:
        all_handled.set()


with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        for text in ("fine", "too early", "broken"):
            producer.send(Message("orders", text))

    with (
        Admin(platform.name_servers) as admin,
        Consumer(platform.name_servers, group="billing", retries_max=3) as consumer,
    ):
        consumer.subscribe("orders")
        consumer.start(handle, workers=1)
        while not (letters := admin.dead_letters("billing")):
            pass
        for letter in letters:
            print("dead:", letter.topic, letter.body.decode(), letter.unique_key, letter.properties["DLQ_REASON"])

        is_repaired.set()
        print(admin.redrive("billing", everything=True), "sent again")
        all_handled.wait()
        print("handled:", ", ".join(handled))
