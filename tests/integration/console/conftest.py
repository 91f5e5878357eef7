"""A platform with traffic on it, on the log store and on SQLite, and a console for it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.consoles import running_console
from tests.support.wait import wait_until

from sparrow import Admin, Consumer, Message, Producer
from sparrow.model.message import StoredMessage
from sparrow.testing.platform import RunningPlatform, run_platform

V1 = "/api/v1"


@pytest.fixture(scope="module", params=["log", pytest.param("sql", marks=pytest.mark.thorough)])
def busy_platform(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningPlatform]:
    """Provide a platform whose group `billing` has handled 9 messages of `orders`, and given up one."""
    folder: Path = tmp_path_factory.mktemp("console")
    store = f"sqlite:///{folder / 'messages.db'}" if request.param == "sql" else None

    def handle(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise ValueError("no such customer")

    with run_platform(folder / "data", store=store) as platform:
        with Admin(platform.name_servers) as admin:
            admin.create_topic("orders", 2)
            with Producer(platform.name_servers, trace=True) as producer:
                for number in range(9):
                    producer.send(Message("orders", f'{{"order": {number}}}', keys=f"order-{number}", tags="paid"))
                producer.send(Message("orders", "bad", keys="order-bad", tags="odd"))
            with Consumer(
                platform.name_servers, group="billing", consume_from="first", retries_max=0, trace=True
            ) as consumer:
                consumer.subscribe("orders")
                consumer.start(handle)
                wait_until(lambda: len(admin.dead_letters("billing")) == 1, within_s=60)
                wait_until(lambda: admin.progress("billing", "orders").lag == 0, within_s=60)
        yield platform


@pytest.fixture(scope="module")
def console(busy_platform: RunningPlatform) -> Iterator[httpx.Client]:
    """Provide a client of a console for the busy platform."""
    with running_console(busy_platform.name_servers) as client:
        yield client
