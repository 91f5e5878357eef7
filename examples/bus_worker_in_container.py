"""A bus worker as a container runs it: SIGTERM lets the handler in progress finish, commits, and exits with status 0.

A container starts `sparrow bus worker bus_worker_in_container:bus --health-port 8080` with `DATABASE_URL` and
`BROKER_URL`. This program shows what happens: it starts that worker, and stops it while an event is being handled.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.orm import Session

from sparrow.bus import EventBus

bus = EventBus(
    os.environ.get("DATABASE_URL", "sqlite:///shop.db"),
    os.environ.get("BROKER_URL", "memory://"),
    app="shop",
    stop_timeout_s=25,  # less than the time that the platform gives the process: Kubernetes kills after 30 s
)


@bus.subscribe("order.created", group="billing")
def charge(order: int, session: Session) -> None:
    print("charging order", order, flush=True)
    session.execute(text("INSERT INTO charges VALUES (:number)"), {"number": order})
    time.sleep(1)  # work that must not be interrupted
    print("charged order", order, flush=True)


def main(folder: Path) -> None:
    os.environ["DATABASE_URL"] = url = f"sqlite:///{folder / 'shop.db'}"
    shop = EventBus(url, "memory://", app="shop")
    shop.prepare()
    with shop.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE charges (number INTEGER)"))

    command = [sys.executable, "-m", "sparrow", "bus", "worker", f"{Path(__file__).stem}:bus", "--health-port", "0"]
    with subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        said = ""
        while not said.startswith("charging"):
            said = worker.stdout.readline().strip()
            print(said)
            if said.startswith("health at"):
                port = said.partition("/live")[0].rpartition(":")[2]
            if said.startswith("ready"):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as answer:
                    print("GET /ready:", answer.status, answer.read().decode())
                shop.publish("order.created", 1)
            assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        print(worker.stdout.read().strip())

    with shop.database.engine.connect() as connection:
        charges = [number for (number,) in connection.execute(text("SELECT number FROM charges"))]
    print(f"exit status {worker.returncode}, charges: {charges}")
    assert (worker.returncode, charges) == (0, [1])
    shop.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
