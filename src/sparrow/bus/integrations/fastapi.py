"""FastAPI and Starlette: the bus lives as long as the application, and views ask for a `Publisher`.

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

`get_session` is the dependency that the view uses too: FastAPI calls it once a request, so both have the same session.
With an application whose views use no session of theirs, `Depends(bus.publisher)` is enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.applications import Starlette

    from sparrow.bus.common import AnyEventBus


P = TypeVar("P")


def install(bus: AnyEventBus, app: Starlette, *, start: bool = True) -> None:
    """Starts after the application's own lifespan has begun, and stops before it ends: what that opens, handlers may
    use. `start=False`: only make the tables; some other process sends and handles. The bus is `app.state.bus` too."""
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
    """For `app.include_router`: 200 while everything of the bus is at work, else 503 and what is not."""
    from fastapi import APIRouter
    from fastapi.responses import JSONResponse

    router = APIRouter()

    @router.get(path, include_in_schema=False)
    async def health() -> JSONResponse:
        problems = bus.problems()
        return JSONResponse({"ready": not problems, "problems": problems}, 503 if problems else 200)

    return router
