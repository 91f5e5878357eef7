"""What the bus says when something is missing: a package, the tables, a folder, or the URL itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sparrow.bus import EventBus, TablesMissing
from sparrow.model.errors import SettingsError

# -- packages --------------------------------------------------------------------------------------------------------


def said_without(module: str, code: str) -> str:
    """Run code in an interpreter in which a module is not installed; return the last line of its error."""
    script = f"import sys\nsys.modules[{module!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("imported", ["sparrow.bus", "sparrow.bus.aio", "sparrow.bus.testing"])
def test_import_without_sqlalchemy_names_the_extra(imported: str) -> None:
    assert said_without("sqlalchemy", f"import {imported}") == (
        'sparrow.model.errors.settings.MissingExtra: sparrow.bus needs sqlalchemy: pip install "sparrowmq[bus]"'
    )


def test_command_line_without_sqlalchemy_names_the_extra() -> None:
    code = "from sparrow.cli.main import entry\nsys.argv = ['sparrow', 'bus', 'ddl', '--dialect', 'sqlite']\nentry()"
    assert said_without("sqlalchemy", code) == ('sparrow: sparrow.bus needs sqlalchemy: pip install "sparrowmq[bus]"')


POSTGRES, SQLITE = "postgresql://me:secret@db/shop", "sqlite:///shop.db"


@pytest.mark.parametrize(
    ("module", "database", "broker", "needs", "package"),
    [
        ("asyncpg", POSTGRES, "memory://", "database postgresql+asyncpg://me:***@db/shop", "sparrowmq[postgres]"),
        ("asyncmy", "mysql://me@db/shop", "memory://", "database mysql+asyncmy://me@db/shop", "sparrowmq[mysql]"),
        ("aio_pika", SQLITE, "amqp://me:secret@mq/", "broker amqp://me:***@mq/", "sparrowmq[rabbitmq]"),
        ("aiokafka", SQLITE, "kafka://mq:9092", "broker kafka://mq:9092", "sparrowmq[kafka]"),
        ("redis", SQLITE, "rediss://mq", "broker rediss://mq", "sparrowmq[redis]"),
        ("nats", SQLITE, "nats://mq", "broker nats://mq", "sparrowmq[nats]"),
        (
            "psycopg2",
            "postgresql+psycopg2://db/shop",
            "memory://",
            "database postgresql+psycopg2://db/shop",
            "psycopg2",
        ),
    ],
    ids=lambda value: value if value.isidentifier() else "",
)
def test_url_whose_client_is_not_installed_names_what_to_install(
    module: str, database: str, broker: str, needs: str, package: str
) -> None:
    code = f"from sparrow.bus import EventBus\nEventBus({database!r}, {broker!r}).database.engine"
    said = said_without(module, code)
    assert said.partition(": ")[2] == f'the {needs} needs {module}, which is not installed: pip install "{package}"'


# -- URLs ------------------------------------------------------------------------------------------------------------


FORMS = "mysql://user:password@host/name, postgresql://user:password@host/name or sqlite:///path"


@pytest.mark.parametrize("given", ["orders.db", Path("orders.db")], ids=["text", "path"])
def test_database_that_is_no_url_is_refused_with_the_url_to_write(given: object) -> None:
    with pytest.raises(SettingsError) as raised:
        EventBus(given)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "database = 'orders.db' cannot be used: it is not a URL of a database. Write sqlite:///orders.db if it is a"
        f" file, otherwise {FORMS}."
    )


def test_broker_that_is_no_url_is_refused_with_the_url_to_write() -> None:
    with pytest.raises(SettingsError, match=r"it is not a URL of a broker. Write sparrow://127\.0\.0\.1:9876, or "):
        EventBus("sqlite:///orders.db", "127.0.0.1:9876")


@pytest.mark.parametrize("database", ["me:secret@orders.db", "sqlite:///orders.db"])
def test_passwords_are_not_shown(database: str) -> None:
    with pytest.raises(SettingsError) as raised:
        EventBus(database, "ampq://me:secret@mq")
    assert "secret" not in str(raised.value)


# -- folders ---------------------------------------------------------------------------------------------------------


def test_sqlite_file_in_a_missing_folder_is_refused_and_no_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    bus = EventBus(f"sqlite:///{folder}/shop.db", "memory://")
    sentence = (
        f"the folder {folder} does not exist. Write the path of a file in a folder that exists, or create that folder."
    )
    for call in (bus.prepare, bus.start, lambda: bus.publish("order.created", 1)):
        with pytest.raises(SettingsError) as raised:
            call()
        assert str(raised.value).endswith(sentence)
    assert not folder.exists()
    folder.mkdir()
    bus.prepare()
    bus.stop()


# -- tables ----------------------------------------------------------------------------------------------------------


def test_publish_before_the_first_start_names_the_call_that_creates_the_tables(database_url: str) -> None:
    bus = EventBus(database_url, "memory://", app="shop")
    engine = create_engine(bus.database.engine.url)
    with pytest.raises(TablesMissing) as raised:
        bus.publish("order.created", 1)
    assert str(raised.value) == (
        f"the tables of the bus are missing in {bus.database}, and nothing was published: call `bus.prepare()` or start"
        " the bus before the first publish"
    )
    with Session(engine) as session, pytest.raises(TablesMissing):
        bus.publish_many([("order.created", 1), ("order.created", 2)], session=session)
    raw = engine.raw_connection()
    with pytest.raises(TablesMissing):
        bus.publish("order.created", 1, connection=raw.driver_connection)
    raw.close()
    bus.prepare()
    with Session(engine) as session, session.begin():
        assert bus.publish("order.created", 1, session=session)
    engine.dispose()
    bus.stop()


async def test_asyncio_publish_before_the_first_start_says_the_same(database_url: str) -> None:
    bus = EventBus(database_url, "memory://", app="shop", create_tables=False)
    with pytest.raises(TablesMissing, match="sparrow bus ddl"):
        await bus.aio.publish("order.created", 1)
    await bus.aio.stop()
