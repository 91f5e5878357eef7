"""At least once and at most once: a consumer dies while it handles a message, and another takes over."""

import multiprocessing
import os

import sparrow.testing
from sparrow import Admin, Consumer, Message, Producer


def die_at_the_first_message(servers: str, group: str, at_most_once: bool) -> None:
    consumer = Consumer(servers, group=group, at_most_once=at_most_once)
    consumer.subscribe("payments")
    next(consumer)
    os._exit(1)  # as kill -9 would: nothing is finished, nothing is committed any more


def main() -> None:
    with sparrow.testing.run_platform() as platform:
        servers = platform.name_servers
        with Admin(servers) as admin, Producer(servers) as producer:
            admin.create_topic("payments", 1)
            for text in ("first", "second", "third"):
                producer.send(Message("payments", text))

        for group, at_most_once in (("at least once", False), ("at most once", True)):
            name = group.replace(" ", "-")
            arguments = (servers, name, at_most_once)
            process = multiprocessing.get_context("spawn").Process(target=die_at_the_first_message, args=arguments)
            process.start()
            process.join()
            with Consumer(servers, group=name, at_most_once=at_most_once) as successor:
                successor.subscribe("payments")
                read = []
                while b"third" not in read:
                    read += [message.body for message in successor.poll(10)]
                successor.commit()
            print(f"{group}: the successor gets", b", ".join(read).decode())


if __name__ == "__main__":
    main()
