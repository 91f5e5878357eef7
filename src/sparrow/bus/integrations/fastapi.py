"""FastAPI and Starlette integration: the bus runs as long as the application, and views get a `Publisher`.

```python
from sparrow.bus.aio import EventBus, Publisher

bus = EventBus("postgresql://localhost/shop", "sparrow://127.0.0.1:9876", app="shop")
app = FastAPI()
bus.install(app)

Events = Annotated[Publisher, Depends(bus.publisher_for(get_session))]

@app.post("/orders")
async def create(order: Order, session: Annotated[AsyncSession, Depends(get_session)], events: Events) -> None:
    session.add(order.as_row())
    await events.publish("order.created", order)
```

`get_session` is the dependency of the view: FastAPI calls it once per request, so both get the same session. For views
without a session `Depends(bus.publisher)` is enough. Blocking views use `bus.blocking.publisher_for`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.applications import Starlette

    from sparrow.bus.common import AnyEventBus


P = TypeVar("P")


def install(bus: AnyEventBus, app: Starlette, *, start: bool = True) -> None:
    """Start the bus after the application's own lifespan has begun, and stop it before that ends.

    With `start=False` only the tables are created, and another process sends and handles. The bus is also
    `app.state.bus`.
    """
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: Any) -> AsyncIterator[Any]:
        async with inner(served) as state:
            try:
                await (bus.core.start() if start else bus.core.prepare())
                yield state
            finally:
                await bus.core.stop()

    app.router.lifespan_context = lifespan
    app.state.bus = bus


def session_dependency(publisher_of: Callable[[Any], P], session: Any) -> Callable[..., Awaitable[P]]:
    """Return a dependency: a publisher bound to the session that another dependency provides.

    `session` is that dependency, as a function or as a `Depends(...)`. Pass the latter if the view's has a `scope`:
    FastAPI creates another session for another scope.
    """
    from fastapi import Depends, params

    dependency: Any = session if isinstance(session, params.Depends) else Depends(session)

    async def publisher(session: Any = dependency) -> P:
        return publisher_of(session)

    return publisher


def health_router(bus: AnyEventBus, path: str = "/health") -> APIRouter:
    """Return a router for `app.include_router`: 200 while the bus has no problems, 503 and the problems otherwise.

    The answer has the findings of `bus.health()` in both cases.
    """
    from fastapi import APIRouter
    from fastapi.responses import JSONResponse

    router = APIRouter()

    @router.get(path, include_in_schema=False)
    async def health() -> JSONResponse:
        problems, findings = bus.problems(), [msgspec.to_builtins(each) for each in bus.health().findings]
        content = {"ready": not problems, "problems": problems, "findings": findings}
        return JSONResponse(content, 503 if problems else 200)

    return router
