"""Send a list of bodies in large batches, and take whole pulls as lists, without an object for each message."""

from sparrow import Consumer, PartialSend, Producer, testing

readings = [f'{{"sensor": {number % 8}, "degrees": {number % 40}}}' for number in range(20_000)]
sensors = [f"sensor-{number % 8}" for number in range(20_000)]

with testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        try:
            sent = producer.send_many("readings", readings, keys=sensors, tags="indoor", sharding_keys=sensors)
        except PartialSend as error:  # what is stored stays stored: only the rest is sent again
            missing = error.missing
            sent = producer.send_many(
                "readings", [readings[index] for index in missing], keys=[sensors[index] for index in missing]
            )
    queue, offset = sent.locate(0)
    print(f"{sent.count} messages are stored in {len(sent.ranges)} ranges; the first is at {queue.queue_id}/{offset}")

    counts: dict[str | None, int] = {}
    with Consumer(platform.name_servers, group="statistics") as consumer:
        consumer.subscribe("readings")
        while sum(counts.values()) < len(readings):
            batch = consumer.poll_batch()
            if batch is None:
                continue
            for sensor in batch.keys:  # only the keys are decoded
                counts[sensor] = counts.get(sensor, 0) + 1
        consumer.commit()
    print(sorted(counts.items()))
