"""The bus in FastAPI and Starlette applications, over real requests."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, HTTPException
from httpx import ASGITransport, AsyncClient
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from sparrow.bus import Publisher as BlockingPublisher
from sparrow.bus.aio import EventBus, Publisher
from sparrow.bus.integrations.fastapi import health_router
from sparrow.bus.testing import capture
from sparrow.model.errors import Refused


class Order(BaseModel):
    number: int
    amount: float = 1.0


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[AsyncClient]:
    """Run an application as a server does: start event, requests, stop event."""
    async with app.router.lifespan_context(app):
        transport = ASGITransport(app, raise_app_exceptions=False)
        async with AsyncClient(transport=transport, base_url="http://shop") as client:
            yield client


def shop(bus: EventBus) -> FastAPI:
    """An application whose views use an AsyncSession or a Session that is committed at the end of the view."""

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(bus.database.async_engine) as session, session.begin():
            yield session

    def get_blocking_session() -> Iterator[Session]:
        with Session(bus.database.engine) as session, session.begin():
            yield session

    app = FastAPI()
    bus.install(app)
    Events = Annotated[Publisher, Depends(bus.publisher_for(get_session))]
    BlockingEvents = Annotated[BlockingPublisher, Depends(bus.blocking.publisher_for(get_blocking_session))]
    WrongEvents = Annotated[BlockingPublisher, Depends(bus.blocking.publisher_for(get_session))]

    @app.post("/asyncio")
    async def asyncio_view(
        order: Order, session: Annotated[AsyncSession, Depends(get_session)], events: Events, fail: bool = False
    ) -> int:
        await session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": order.number})
        number = await events.publish("order.created", order, key=str(order.number))
        await events.publish_many([("order.counted", 1)])
        if fail:
            raise HTTPException(409)
        return number

    @app.post("/blocking")
    def blocking_view(
        order: Order,
        session: Annotated[Session, Depends(get_blocking_session)],
        events: BlockingEvents,
        fail: bool = False,
    ) -> int:
        session.execute(text("INSERT INTO orders VALUES (:number)"), {"number": order.number})
        number = events.publish("order.created", order, key=str(order.number))
        events.publish_many([("order.counted", 1)])
        if fail:
            raise HTTPException(409)
        return number

    @app.post("/wrong")
    async def wrong_view(events: WrongEvents) -> int:
        return events.publish("order.created", 1)

    @app.post("/unbound-asyncio")
    async def unbound_asyncio(order: Order, events: Annotated[Publisher, Depends(bus.publisher)]) -> int:
        return await events.publish("order.created", order)

    @app.post("/unbound-blocking")
    def unbound_blocking(order: Order, events: Annotated[BlockingPublisher, Depends(bus.blocking.publisher)]) -> int:
        return events.publish("order.created", order)

    return app


@pytest.fixture
def bus(database_url: str) -> EventBus:
    made = EventBus(database_url, "memory://", app="shop")

    @made.subscribe("order.created")
    async def on_order(order: Order, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO handled VALUES (:number)"), {"number": order.number})

    return made


async def numbers(bus: EventBus, table: str) -> list[int]:
    rows = await bus.database.run(lambda db: list(db.execute(text(f"SELECT number FROM {table}"))))
    return sorted(row[0] for row in rows)


async def make_tables(bus: EventBus) -> None:
    for table in ("orders", "handled"):
        await bus.database.run(lambda db, table=table: db.execute(text(f"CREATE TABLE {table} (number INTEGER)")))


async def test_publisher_of_a_view_uses_the_transaction_of_its_session(bus: EventBus) -> None:
    async with served(shop(bus)) as client:
        await make_tables(bus)
        for path, number in (("/asyncio", 1), ("/blocking", 2), ("/unbound-asyncio", 3), ("/unbound-blocking", 4)):
            answer = await client.post(path, json={"number": number})
            assert answer.status_code == 200, answer.text
            assert answer.json() > 0
        await bus.drain()
        assert await numbers(bus, "orders") == [1, 2]
        assert await numbers(bus, "handled") == [1, 2, 3, 4]


@pytest.mark.parametrize("path", ["/asyncio", "/blocking"])
async def test_failed_view_publishes_nothing(bus: EventBus, path: str) -> None:
    async with served(shop(bus)) as client:
        await make_tables(bus)
        with capture(bus) as published:
            assert (await client.post(path, json={"number": 1}, params={"fail": True})).status_code == 409
            assert (await client.post(path, json={"number": 2})).status_code == 200
        assert published.names == ["order.created", "order.counted"]
        assert published[0].value == {"number": 2, "amount": 1.0}
        assert await numbers(bus, "orders") == [2]


async def test_bus_starts_and_stops_with_the_application(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    seen: list[tuple[str, bool]] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
        seen.append(("opened", bus.is_running))
        yield {"region": "north"}
        seen.append(("closed", bus.is_running))

    app = FastAPI(lifespan=lifespan)
    bus.install(app)
    async with app.router.lifespan_context(app) as state:
        assert state == {"region": "north"}  # the state of the application's own lifespan
        assert bus.is_running
        assert app.state.bus is bus
    assert not bus.is_running
    assert seen == [("opened", False), ("closed", False)]  # handlers may use resources of the application


async def test_bus_stops_when_the_application_ends_with_an_error(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    app = FastAPI()
    bus.install(app)
    with pytest.raises(ZeroDivisionError):
        async with app.router.lifespan_context(app):
            raise ZeroDivisionError
    assert not bus.is_running


async def test_application_that_only_publishes_starts_no_worker(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    app = FastAPI()
    bus.install(app, start=False)
    async with app.router.lifespan_context(app):
        assert not bus.is_running
        assert await bus.publish("order.created", 1) > 0  # the tables exist


async def test_blocking_publisher_refuses_an_asyncio_session_and_names_the_right_one(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    app = shop(bus)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse(str(error), 400)

    async with served(app) as client:
        answer = await client.post("/wrong")
        assert answer.status_code == 400
        assert "bus.aio.publish" in answer.json()
        answer = await client.post("/unbound-asyncio", json={"number": 1})
        assert answer.status_code == 200


async def test_publisher_shares_the_session_of_a_view_with_function_scope(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    app = FastAPI()
    bus.install(app)
    made: list[AsyncSession] = []

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(bus.database.async_engine) as session, session.begin():
            made.append(session)
            yield session

    early = Depends(get_session, scope="function")  # committed before the response is sent
    events = bus.publisher_for(early)

    @app.post("/orders")
    async def create(
        session: Annotated[AsyncSession, early], events: Annotated[Publisher, Depends(events, scope="function")]
    ) -> None:
        await events.publish("order.created", 1)

    async with served(app) as client:
        with capture(bus) as published:
            assert (await client.post("/orders")).status_code == 200
        assert len(made) == 1
        assert published.names == ["order.created"]


async def test_publisher_can_be_overridden_like_any_dependency(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    app = shop(bus)
    said: list[str] = []

    class Silent(Publisher):
        async def publish(self, name: str, value: object = None, **options: Any) -> int:
            said.append(name)
            return 0

    app.dependency_overrides[bus.publisher] = lambda: Silent(bus)
    async with served(app) as client:
        assert (await client.post("/unbound-asyncio", json={"number": 1})).json() == 0
    assert said == ["order.created"]


async def test_health_of_the_bus_is_available_over_http(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    app = FastAPI()
    app.include_router(health_router(bus))
    async with served(app) as client:
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        async with bus:
            answer = await client.get("/health")
            assert (answer.status_code, answer.json()) == (200, {"ready": True, "problems": {}, "findings": []})


async def test_starlette_application_without_fastapi_can_use_the_bus(tmp_path: Any) -> None:
    bus = EventBus(f"sqlite:///{tmp_path}/shop.db", "memory://", app="shop")
    handled: list[int] = []
    bus.subscriptions.add("order.created", lambda number: handled.append(number))

    async def create(request: Request) -> JSONResponse:
        return JSONResponse(await request.app.state.bus.publisher.publish("order.created", 7))

    app = Starlette(routes=[Route("/orders", create, methods=["POST"])])
    bus.install(app)
    async with served(app) as client:
        assert (await client.post("/orders")).status_code == 200
        await bus.drain()
    assert handled == [7]


def test_install_refuses_other_objects_and_names_the_supported_ones(event_bus: EventBus) -> None:
    with pytest.raises(Refused, match="FastAPI, Starlette, Flask and Django"):
        event_bus.install(object())


def test_no_other_framework_is_imported() -> None:
    import subprocess

    script = (
        "import sys\n"
        "from starlette.applications import Starlette\n"
        "from sparrow.bus import EventBus\n"
        "EventBus('sqlite:////tmp/none.db', 'memory://').install(Starlette())\n"
        "loaded = {'fastapi', 'flask', 'django'} & sys.modules.keys()\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
