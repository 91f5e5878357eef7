"""Django integration: the tables as a migration, admin pages, and `manage.py bus_worker`.

```python
INSTALLED_APPS = [..., "sparrow.bus.integrations.django"]
SPARROW_BUS = {"broker": "sparrow://127.0.0.1:9876", "app": "shop"}     # arguments of EventBus; or "shop.bus:bus"
SPARROW_BUS_USING = "default"                                           # the database that has the tables
```

```python
from sparrow.bus.integrations.django import bus, publisher

@transaction.atomic
def create(request):
    Order.objects.create(...)
    publisher.publish("order.created", {"number": 7})
```

Events are inserts on Django's own connection inside `atomic()`; outside of it they are refused. Handlers are declared
in the module `events` of any installed application, which is imported at the start. A blocking handler runs inside
Django's `atomic()`: its rows and the completion of its message are one commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparrow.bus.api import EventBus
    from sparrow.bus.publish.publisher import Publisher

    bus: EventBus
    """What the settings name or describe."""
    publisher: Publisher
    """Publishes in the transaction of the database the settings name."""

__all__ = ["bus", "publisher"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Late, because importing this package must not read the settings.
    from sparrow.bus.integrations.django import configuration

    return configuration.bus() if name == "bus" else configuration.publisher()
