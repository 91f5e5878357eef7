"""A platform for tests: a real name server and a real broker in the test's own process, ready in milliseconds.

```python
with sparrow.testing.running() as platform:
    with Producer(platform.name_servers) as producer:
        producer.send(Message("orders", b"a book"))
```

With pytest there are two fixtures, without any import: `platform` is a fresh one for each test, `sparrow_platform` one
for the whole run. Both flavours of the client may use them.
"""

from sparrow.testing.platform import RunningPlatform, run_platform

__all__ = ["RunningPlatform", "run_platform"]
