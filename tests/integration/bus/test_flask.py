"""The bus in Flask applications, over real requests."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, g, request
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sparrow.bus import EventBus
from sparrow.bus.errors import NotInTransaction
from sparrow.bus.integrations.flask import publisher
from sparrow.bus.testing import capture
from sparrow.model.errors import Refused


@pytest.fixture
def bus(database_url: str) -> Iterator[EventBus]:
    made = EventBus(database_url, "memory://", app="shop")

    @made.subscribe("order.created")
    def on_order(number: int, session: Session) -> None:
        session.execute(text("INSERT INTO handled VALUES (:number)"), {"number": number})

    made.database.run_blocking(lambda db: db.execute(text("CREATE TABLE orders (number INTEGER)")))
    made.database.run_blocking(lambda db: db.execute(text("CREATE TABLE handled (number INTEGER)")))
    yield made
    made.stop()


def shop(bus: EventBus, **options: Any) -> Flask:
    """As with Flask-SQLAlchemy: one session per request, committed by the view."""
    db = scoped_session(sessionmaker(bus.database.engine), scopefunc=lambda: id(g._get_current_object()))
    app = Flask("shop")
    bus.install(app, session=db, **options)

    @app.post("/orders/<int:number>")
    def create(number: int) -> dict[str, int]:
        db.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        event = publisher.publish("order.created", number, key=str(number))
        publisher.publish_many([("order.counted", 1)])
        if "fail" in request.args:
            raise ZeroDivisionError
        db.commit()
        return {"event": event}

    @app.teardown_appcontext
    def close(_: BaseException | None) -> None:
        db.remove()

    return app


def numbers(bus: EventBus, table: str) -> list[int]:
    rows = bus.database.run_blocking(lambda db: list(db.execute(text(f"SELECT number FROM {table}"))))
    return sorted(row[0] for row in rows)


def test_publisher_of_a_view_uses_the_transaction_of_its_session(bus: EventBus) -> None:
    client = shop(bus).test_client()
    assert not bus.is_running
    answer = client.post("/orders/1")
    assert answer.status_code == 200, answer.text
    assert answer.json["event"] > 0
    assert client.post("/orders/2").status_code == 200
    bus.drain()
    assert numbers(bus, "orders") == numbers(bus, "handled") == [1, 2]


def test_failed_view_publishes_nothing(bus: EventBus) -> None:
    client = shop(bus).test_client()
    with capture(bus) as published:
        assert client.post("/orders/1?fail=1").status_code == 500
        assert client.post("/orders/2").status_code == 200
    assert [(event.name, event.value) for event in published] == [("order.created", 2), ("order.counted", 1)]
    assert numbers(bus, "orders") == [2]


def test_bus_starts_once_with_the_first_request(event_bus: EventBus) -> None:
    app = Flask("shop")
    event_bus.install(app)
    handled: list[int] = []
    event_bus.subscriptions.add("order.created", lambda number: handled.append(number))

    @app.post("/orders/<int:number>")
    def create(number: int) -> str:
        publisher.publish("order.created", number)  # no session: a short transaction of its own
        return "thanks"

    assert not event_bus.is_running
    clients = [threading.Thread(target=app.test_client().post, args=(f"/orders/{number}",)) for number in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    event_bus.drain()
    assert sorted(handled) == [0, 1, 2, 3]
    assert sum(thread.name == "sparrow bus" for thread in threading.enumerate()) == 1


def test_process_that_only_publishes_starts_no_worker_and_has_its_tables(bus: EventBus) -> None:
    client = shop(bus, start=False).test_client()
    assert client.post("/orders/1").status_code == 200
    assert not bus.is_running
    assert numbers(bus, "orders") == [1]


def test_handlers_run_in_their_own_application_context_and_not_in_the_first_request(event_bus: EventBus) -> None:
    app = Flask("shop")
    event_bus.install(app)
    seen: list[tuple[str, bool, Any]] = []

    def look(number: int) -> None:
        seen.append((current_app.name, bool(request), g.get("number")))
        g.number = number

    async def look_too(number: int) -> None:
        look(number)

    event_bus.subscriptions.add("order.created", look, group="threads")
    event_bus.subscriptions.add("order.created", look_too, group="tasks")

    @app.post("/orders/<int:number>")
    def create(number: int) -> str:
        g.number = -1
        publisher.publish("order.created", number)
        return "thanks"

    client = app.test_client()
    for number in range(3):
        client.post(f"/orders/{number}")
    event_bus.drain()
    assert seen == [("shop", False, None)] * 6


def test_session_may_come_from_a_function(event_bus: EventBus) -> None:
    app = Flask("shop")
    event_bus.install(app, session=lambda: g.session, start=False)

    @app.post("/orders")
    def create() -> str:
        with Session(event_bus.database.engine) as session, session.begin():
            g.session = session
            publisher.publish("order.created", 7)
        return "thanks"

    with capture(event_bus) as published:
        assert app.test_client().post("/orders").status_code == 200
    assert published.names == ["order.created"]


def test_autocommit_session_is_refused(event_bus: EventBus) -> None:
    engine = create_engine(event_bus.database.engine.url, isolation_level="AUTOCOMMIT")
    app = Flask("shop")
    app.testing = True
    event_bus.install(app, session=scoped_session(sessionmaker(engine)), start=False)

    @app.post("/orders")
    def create() -> str:
        publisher.publish("order.created", 7)
        return "thanks"

    with capture(event_bus) as published, pytest.raises(NotInTransaction, match="autocommit"):
        app.test_client().post("/orders")
    assert list(published) == []
    engine.dispose()


def test_unsupported_arguments_are_refused(event_bus: EventBus) -> None:
    app = Flask("shop")
    with pytest.raises(Refused, match="sessionmaker"):
        event_bus.install(app, session=sessionmaker())
    with app.app_context(), pytest.raises(Refused, match="has no bus"):
        publisher.publish("order.created", 7)
    event_bus.install(app)
    with pytest.raises(Refused, match="already"):
        event_bus.install(app)


APPLICATION = """
import os
from flask import Flask, current_app
from sparrow.bus import EventBus
from sparrow.bus.integrations.flask import publisher

app = Flask("shop")
bus = EventBus(os.environ["SHOP_DATABASE"], "memory://", app="shop")
bus.install(app)

@bus.subscribe("order.created")
def on_order(number: int) -> None:
    print(current_app.name, "handled", number, flush=True)

@app.post("/orders/<int:number>")
def create(number):
    publisher.publish("order.created", number)
    return "thanks"
"""


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shop.py").write_text(APPLICATION)
    monkeypatch.setenv("SHOP_DATABASE", f"sqlite:///{tmp_path}/shop.db")
    return tmp_path


def test_flask_bus_worker_runs_until_it_gets_a_stop_signal(application: Path) -> None:
    bus = EventBus(os.environ["SHOP_DATABASE"], "memory://", app="shop")
    bus.prepare()
    bus.publish("order.created", 7)
    worker = subprocess.Popen(
        [sys.executable, "-m", "flask", "--app", "shop", "bus", "worker"],
        cwd=application,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "The bus is running for cap.queue.shop.v1.\n"
        assert worker.stdout.readline() == "shop handled 7\n"
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert (worker.returncode, err) == (0, "")
    assert "Stopping" in out
    bus.database.engine.dispose()


def test_process_that_ends_stops_its_bus_cleanly(application: Path) -> None:
    script = (
        "import shop\n"
        "assert shop.app.test_client().post('/orders/7').status_code == 200\n"
        "assert shop.bus.is_running\n"
        "shop.bus.drain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=application,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "shop handled 7\n", "")
    bus = EventBus(os.environ["SHOP_DATABASE"], "memory://", app="shop")
    # The worker number was released, which is the last step before a bus closes.
    rows = bus.database.run_blocking(lambda db: list(db.execute(text('SELECT "Instance" FROM "cap.lock"'))))
    assert [row for row in rows if row[0]] == []
    bus.database.engine.dispose()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_bus_started_before_a_fork_is_refused_in_the_child(application: Path) -> None:
    script = (
        "import os, sys, shop\n"
        "shop.app.testing = True\n"
        "shop.app.test_client().post('/orders/7')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        shop.app.test_client().post('/orders/8')\n"
        "    except Exception as error:\n"
        "        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=application, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "before this process was forked" in done.stdout
