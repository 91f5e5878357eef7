"""Event bus with Flask: views publish in the database session of their request.

The bus starts with the first request; `flask bus worker` runs a separate worker. The broker runs in this process.
"""

import tempfile
import threading

from flask import Flask, g
from sqlalchemy import text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import sparrow.testing
from sparrow.bus import EventBus
from sparrow.bus.integrations.flask import publisher

handled = threading.Semaphore(0)


def shop(bus: EventBus) -> Flask:
    app = Flask("shop")
    db = scoped_session(sessionmaker(bus.database.engine), scopefunc=lambda: id(g._get_current_object()))
    bus.install(app, session=db)

    @app.post("/orders/<int:number>")
    def create(number: int) -> str:
        db.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        publisher.publish("order.created", {"number": number})
        if number == 13:
            return "never mind"  # no commit: stores neither the order nor the event
        db.commit()
        return "thanks"

    @app.teardown_appcontext
    def close(_: BaseException | None) -> None:
        db.remove()

    @bus.subscribe("order.created", group="billing")
    def bill(order: dict, session: Session) -> None:
        count = session.scalar(text("SELECT COUNT(*) FROM orders"))
        print("billing:", order, "of", count)
        handled.release()

    return app


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, sparrow.testing.run_platform() as platform:
        bus = EventBus(f"sqlite:///{folder}/shop.db", f"sparrow://{platform.name_servers}", app="shop")
        bus.database.run_blocking(lambda connection: connection.execute(text("CREATE TABLE orders (number INTEGER)")))
        client = shop(bus).test_client()
        for number in (12, 13, 14):
            print("shop:", number, client.post(f"/orders/{number}").text)
        assert handled.acquire(timeout=30)
        assert handled.acquire(timeout=30)
        bus.stop()
