"""Priorities: urgent messages overtake waiting ones. A consumer without a group reads new messages only."""

import sparrow.testing
from sparrow import Admin, Consumer, Message, Producer

with sparrow.testing.run_platform() as platform:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("jobs", queues=1, has_lanes=True)
    with Producer(platform.name_servers) as producer, Consumer(platform.name_servers, group=None) as onlooker:
        producer.send(Message("jobs", "tidy up", priority="low"))
        producer.send(Message("jobs", "write the report"))  # the default priority is middle
        onlooker.subscribe("jobs")
        producer.send(Message("jobs", "put out the fire", priority="high"))

        with Consumer(platform.name_servers, group="workers") as worker:
            worker.subscribe("jobs")
            jobs = [message.body.decode() for message in worker.poll(10, timeout_ms=5_000)]
            print("worker:", *jobs, sep="\n  ")
            assert jobs == ["put out the fire", "write the report", "tidy up"]
            worker.commit()

        print("onlooker:", next(onlooker).body.decode())
