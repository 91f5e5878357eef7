"""Flask integration: the bus starts with the first request, and views use `publisher`.

```python
from sparrow.bus.integrations.flask import publisher

bus = EventBus("postgresql://localhost/shop", "sparrow://127.0.0.1:9876", app="shop")
bus.install(app, session=db.session)

@app.post("/orders")
def create() -> str:
    db.session.add(order)
    publisher.publish("order.created", order)
    db.session.commit()
    return "thanks"
```

Handlers run inside an application context, one per message. `flask bus worker` runs a worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click
from flask import Flask, current_app, g
from flask.cli import AppGroup
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from werkzeug.local import LocalProxy

from sparrow.bus.handlers.filters import CallNext, FilterContext
from sparrow.bus.integrations.first_request import StartOnFirstRequest
from sparrow.bus.integrations.worker_process import run_worker
from sparrow.bus.publish.publisher import Publisher
from sparrow.model.errors import Refused

if TYPE_CHECKING:
    from sparrow.bus.common import AnyEventBus

SessionSource = scoped_session[Any] | Callable[[], Session]
_EXTENSION = "sparrow-bus"
_IN_G = "_sparrow_publisher"


class InstalledBus(NamedTuple):
    bus: AnyEventBus
    session: SessionSource | None


def install(bus: AnyEventBus, app: Flask, *, session: SessionSource | None = None, start: bool = True) -> None:
    """Add the bus to an application.

    `session` is a scoped_session (`db.session`), or a function that returns the session of the view; without it events
    are published in short transactions of their own. With `start=False` this process only publishes, and `flask bus
    worker` sends and handles.
    """
    if isinstance(session, sessionmaker):
        raise Refused(
            "a sessionmaker creates a new session for each call, whose transaction would never be committed: "
            "pass a scoped_session, or a function that returns the session of the request"
        )
    if _EXTENSION in app.extensions:
        raise Refused(f"the Flask application {app.name!r} has a bus already")
    app.extensions[_EXTENSION] = InstalledBus(bus, session)
    first_request = StartOnFirstRequest(bus, start=start)
    app.before_request(first_request)

    async def in_app_context(ctx: FilterContext, call_next: CallNext) -> None:
        with app.app_context():
            await call_next(ctx)

    bus.core.context.filters = (in_app_context, *bus.core.context.filters)
    commands = AppGroup("bus", help="The event bus.")

    @commands.command("worker")
    @click.option("--health-port", type=int, help="Answer GET /live and /ready over HTTP on this port.")
    def worker(health_port: int | None) -> None:
        """Send published events and run the handlers, until stopped."""
        run_worker(bus, click.echo, health_port=health_port)

    app.cli.add_command(commands)


def _current() -> Publisher:
    """Return the publisher of the current request."""
    found: Publisher | None = g.get(_IN_G)
    if found is None:
        installed: InstalledBus | None = current_app.extensions.get(_EXTENSION)
        if installed is None:
            raise Refused(f"the Flask application {current_app.name!r} has no bus: call `bus.install(app)`")
        session: Any = installed.session
        if session is not None and not isinstance(session, scoped_session):
            session = session()
        found = Publisher(installed.bus.blocking, session=session)
        setattr(g, _IN_G, found)
    return found


publisher = cast(Publisher, LocalProxy(_current))
"""The publisher of the current application and request."""
