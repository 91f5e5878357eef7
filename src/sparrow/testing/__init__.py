"""A platform for tests: a real name server and a real broker in the process of the test, started in milliseconds.

```python
with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        producer.send(Message("orders", b"a book"))
```

With pytest there are fixtures that need no import: `platform` is a new platform for each test, `sparrow_platform` one
for the whole run. Blocking and asyncio clients can use them.
"""

from typing import Any

from sparrow.testing.platform import RunningPlatform, run_platform

__all__ = ["RunningPlatform", "run_platform"]


def __getattr__(name: str) -> Any:
    if name == "running":
        import warnings

        warnings.warn("sparrow.testing.running is now called run_platform", DeprecationWarning, stacklevel=2)
        return run_platform
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
