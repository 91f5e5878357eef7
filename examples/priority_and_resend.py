"""Priority lanes and resend, on both stores: urgent messages first, then a range of old messages for one group."""

import tempfile

import sparrow.testing
from sparrow import Admin, Consumer, Message, Producer

JOBS = (("low", "tidy up"), ("middle", "write the report"), ("high", "put out the fire"), ("high", "call for help"))


def read(platform, group, count):
    """Return the next messages of the group, in order of delivery."""
    with Consumer(platform.name_servers, group=group) as consumer:
        consumer.subscribe("jobs")
        found = []
        while len(found) < count:
            found += [message.body.decode() for message in consumer.poll(count - len(found), timeout_ms=5_000)]
        consumer.commit()
        return found


def show(store):
    with sparrow.testing.run_platform(store=store) as platform, Admin(platform.name_servers) as admin:
        admin.create_topic("jobs", queues=1, has_lanes=True)
        with Producer(platform.name_servers) as producer:
            for priority, job in JOBS:
                producer.send(Message("jobs", job, priority=priority))
        for group in ("workers", "auditors"):
            print(f"{group}:", ", ".join(read(platform, group, len(JOBS))))

        # Resend the first two urgent jobs to the workers. The broker records the range and copies no message.
        resent = admin.resend("jobs", group="workers", priority="high", begin=0, end=1)
        print("again:", ", ".join(read(platform, "workers", resent.count)))


with tempfile.TemporaryDirectory() as folder:
    for name, store in (("log store", None), ("SQLite", f"sqlite:///{folder}/messages.db")):
        print(f"-- {name}")
        show(store)
