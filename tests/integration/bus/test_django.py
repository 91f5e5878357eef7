"""The bus in a Django project. Each script runs in a new process, because Django is set up once per process."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

pytestmark = pytest.mark.one_database

SETTINGS = """
import json, os
import pymysql

pymysql.install_as_MySQLdb()
SECRET_KEY = "tests"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
    "django.contrib.sessions", "sparrow.bus.integrations.django", "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [{
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "APP_DIRS": True,
    "OPTIONS": {"context_processors": [
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
    ]},
}]
DATABASES = {"default": json.loads(os.environ["SHOP_DATABASE"])}
ALLOWED_HOSTS = ["*"]
SPARROW_BUS = json.loads(os.environ["SHOP_BUS"])
"""

PROJECT = {
    "shop/__init__.py": "",
    "shop/settings.py": SETTINGS,
    "shop/models.py": """
from django.db import models

class Order(models.Model):
    number = models.IntegerField()

class Handled(models.Model):
    number = models.IntegerField()
""",
    "shop/events.py": """
from shop.models import Handled
from sparrow.bus.integrations.django import bus

@bus.subscribe("order.created")
def on_order(order: dict) -> None:
    Handled.objects.create(number=order["number"])
    print(f"handled {order['number']}\\n", end="", flush=True)
""",
    "shop/urls.py": """
from django.contrib import admin
from django.db import transaction
from django.http import JsonResponse
from django.urls import path
from shop.models import Order
from sparrow.bus.integrations.django import publisher

@transaction.atomic
def create(request, number):
    Order.objects.create(number=number)
    event = publisher.publish("order.created", {"number": number}, key=str(number))
    publisher.publish_many([("order.counted", {"how": "many"}), ("order.counted", None)])
    if "fail" in request.GET:
        raise ZeroDivisionError
    return JsonResponse({"event": event})

def careless(request):
    Order.objects.create(number=0)
    publisher.publish("order.created", {"number": 0})
    return JsonResponse({})

urlpatterns = [
    path("orders/<int:number>", create), path("careless", careless), path("admin/", admin.site.urls),
]
""",
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
}

SETUP = """
import json, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from shop.models import Handled, Order
from sparrow.bus.integrations.django import bus, publisher
from sparrow.bus.integrations.django.models import Published, Received
call_command("migrate", verbosity=0, run_syncdb=True)
client = Client(raise_request_exception=False)
"""


class Project:
    def __init__(self, folder: Path, database_url: str, **bus: Any) -> None:
        url = make_url(database_url)
        engine = {"sqlite": "sqlite3", "mysql": "mysql", "postgresql": "postgresql"}[url.get_backend_name()]
        database = {
            "ENGINE": f"django.db.backends.{engine}",
            "NAME": url.database,
            "USER": url.username or "",
            "PASSWORD": url.password or "",
            "HOST": url.host or "",
            "PORT": url.port or "",
        }
        if engine == "sqlite3":
            database["OPTIONS"] = {"timeout": 30, "transaction_mode": "IMMEDIATE"}
        self.folder = folder
        self.is_sqlite = engine == "sqlite3"
        """On SQLite, the open transaction of a handler blocks all other writers."""
        self.env = {
            **os.environ,
            "SHOP_DATABASE": json.dumps(database),
            "SHOP_BUS": json.dumps({"broker": "memory://", "app": "shop", **bus}),
        }
        for name, content in PROJECT.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(content)

    def run(self, script: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SETUP + script],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def manage(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "manage.py", *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def project(database_url: str, tmp_path: Path) -> Project:
    return Project(tmp_path, database_url)


@pytest.fixture
def small(tmp_path: Path) -> Project:
    """A project on SQLite, for tests where the database does not matter."""
    return Project(tmp_path, f"sqlite:///{tmp_path}/shop.db")


def test_view_publishes_in_its_atomic_block_and_a_failed_view_publishes_nothing(project: Project) -> None:
    project.run("""
with_event = client.get("/orders/7").json()["event"]
assert client.get("/orders/8?fail=1").status_code == 500
assert [order.number for order in Order.objects.all()] == [7]
rows = list(Published.objects.order_by("id"))
assert [row.name for row in rows] == ["order.created", "order.counted", "order.counted"], rows
assert rows[0].id == with_event
assert (rows[0].status, rows[0].key, rows[0].is_parked) == ("Scheduled", "7", False)
assert json.loads(rows[0].content)["Value"] == {"number": 7}
assert rows[0].added.tzinfo is not None
""")


def test_publishing_outside_atomic_is_refused_with_the_remedy(project: Project) -> None:
    project.run("""
from sparrow.bus import NotInTransaction
for publish in (lambda: publisher.publish("order.created", 1), lambda: publisher.publish_many([("order.created", 1)])):
    try:
        publish()
    except NotInTransaction as error:
        assert "transaction.atomic()" in str(error), error
    else:
        sys.exit("published")
assert client.get("/careless").status_code == 500
assert Published.objects.count() == 0
""")


def test_savepoint_rollback_removes_its_events(project: Project) -> None:
    project.run("""
with transaction.atomic():
    publisher.publish("kept", 1)
    try:
        with transaction.atomic():
            publisher.publish("lost", 2)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
assert [row.name for row in Published.objects.all()] == ["kept"]
""")


def test_installed_bus_starts_with_the_first_request_and_handlers_use_the_models(project: Project) -> None:
    out = project.run("""
from django.core.wsgi import get_wsgi_application
bus.install(get_wsgi_application())
assert not bus.is_running
for number in (1, 2):
    assert client.get(f"/orders/{number}").status_code == 200
assert bus.is_running
bus.drain()
assert sorted(row.number for row in Handled.objects.all()) == [1, 2]
assert {row.status for row in Published.objects.all()} == {"Successed"}
received = Received.objects.get(message_id=str(Published.objects.get(key="1").id))
assert (received.name, received.group, received.status) == ("order.created", "cap.queue.shop.v1", "Successed")
""")
    assert sorted(out.split()) == ["1", "2", "handled", "handled"]


@pytest.mark.thorough
def test_migration_makes_the_same_tables_as_a_start_and_can_be_reversed(project: Project) -> None:
    project.run("""
from sqlalchemy import create_engine, inspect
call_command("makemigrations", "sparrow_bus", check_changes=True, dry_run=True)
bus.prepare()  # create_tables is off: it only looks, and finds all of them
schema = "cap" if connection.vendor == "postgresql" else None
def tables():
    return [name for name in inspect(bus.database.engine).get_table_names(schema=schema)
            if name.startswith("cap.") or schema]
made = tables()
assert len(made) == len(bus.metadata().tables), made
def indexes():
    looking = inspect(bus.database.engine)
    return {(table, index["name"], tuple(index["column_names"]))
            for table in tables() for index in looking.get_indexes(table, schema=schema)}
by_migration = indexes()
call_command("migrate", "sparrow_bus", "zero", verbosity=0)
assert tables() == []
bus.metadata().create_all(bus.database.engine)
assert indexes() == by_migration
""")


@pytest.mark.thorough
def test_tables_of_version_0_1_get_a_schema_version_and_keep_their_events(project: Project) -> None:
    project.run("""
def events():
    return sorted(Published.objects.values_list("id", "name"))
def versions():
    with connection.cursor() as cursor:
        cursor.execute(sql.text(f'SELECT "Version" FROM {sql.names.schema_version}'))
        return [version for (version,) in cursor.fetchall()]
sql = bus.core.context.sql
assert versions() == [1], "of a new project"
# Version 0.1 had the first migration only, and no such table.
call_command("migrate", "sparrow_bus", "0001", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute(sql.text(f"DROP TABLE {sql.names.schema_version}"))
client.get("/orders/1")
before = events()
assert before
call_command("migrate", verbosity=0)
assert versions() == [1]
assert events() == before
""")


@pytest.mark.thorough
def test_schema_and_prefix_settings_are_used(database_url: str, tmp_path: Path) -> None:
    Project(tmp_path, database_url, schema="events", table_prefix="events").run("""
assert client.get("/orders/7").status_code == 200
assert Published.objects.count() == 3
assert "events" in Published._meta.db_table
""")


@pytest.mark.thorough
def test_django_admin_shows_messages_read_only(small: Project) -> None:
    small.run("""
from django.contrib.auth.models import User
from django.core.wsgi import get_wsgi_application
User.objects.create_superuser("root", "root@localhost", "secret")
bus.install(get_wsgi_application())
client.raise_request_exception = True
client.login(username="root", password="secret")
event = client.get("/orders/7").json()["event"]
bus.drain()
for model, number in (("published", event), ("received", Received.objects.get().id)):
    page = client.get(f"/admin/sparrow_bus/{model}/")
    assert page.status_code == 200
    assert "order.created" in page.content.decode()
    assert client.get(f"/admin/sparrow_bus/{model}/?status=Successed&q=order").status_code == 200
    page = client.get(f"/admin/sparrow_bus/{model}/{number}/change/").content.decode()
    assert "order.created" in page and 'name="_save"' not in page and "deletelink" not in page
    assert client.get(f"/admin/sparrow_bus/{model}/add/").status_code == 403
    assert client.post(f"/admin/sparrow_bus/{model}/{number}/delete/").status_code == 403
client.post("/admin/sparrow_bus/published/", {"action": "again", "_selected_action": [event]})
client.post("/admin/sparrow_bus/received/", {"action": "again", "_selected_action": [Received.objects.get().id]})
bus.drain()
assert [row.number for row in Handled.objects.all()] == [7, 7]  # once more, as it was asked for
""")


@pytest.mark.thorough
def test_manage_bus_worker_runs_until_it_gets_a_stop_signal(small: Project) -> None:
    small.run("assert client.get('/orders/7').status_code == 200")
    worker = small.manage("bus_worker", "--health-port", "0")
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("Health is at http://0.0.0.0:")
        lines = sorted([worker.stdout.readline(), worker.stdout.readline()])
        assert lines == ["The bus is running for cap.queue.shop.v1.\n", "handled 7\n"]
        worker.send_signal(signal.SIGTERM)
        out, err = worker.communicate(timeout=30)
    finally:
        worker.kill()
    assert (worker.returncode, err) == (0, "")
    assert "Stopping" in out


@pytest.mark.thorough
def test_worker_without_tables_asks_to_migrate(small: Project) -> None:
    worker = small.manage("bus_worker")
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "manage.py migrate" in err
    assert "Traceback" not in err


@pytest.mark.thorough
def test_setting_may_name_a_bus_object(small: Project) -> None:
    (small.folder / "shop" / "bus.py").write_text(
        "from sparrow.bus import EventBus\n"
        "from sparrow.bus.integrations.django.configuration import database_url\n"
        "from shop.models import Order  # may use models: it is imported when they are there\n"
        "bus = EventBus(database_url('default'), 'memory://', app='named', table_prefix='named')\n"
    )
    small.env["SHOP_BUS"] = json.dumps("shop.bus:bus")
    small.run("""
assert client.get("/orders/7").status_code == 200
assert Published.objects.count() == 3
assert Published._meta.db_table == "named.published"
""")
    small.env["SHOP_BUS"] = json.dumps("shop.bus:Order")
    with pytest.raises(AssertionError, match="SPARROW_BUS"):
        small.run("")


@pytest.mark.thorough
def test_django_tests_start_no_worker_on_the_real_database(small: Project) -> None:
    (small.folder / "shop" / "tests.py").write_text(
        "from django.core.wsgi import get_wsgi_application\n"
        "from django.test import TestCase\n"
        "from sparrow.bus.integrations.django import bus\n"
        "from sparrow.bus.integrations.django.models import Published\n"
        "class Orders(TestCase):\n"
        "    def test_a_view_publishes(self):\n"
        "        self.assertEqual(self.client.get('/orders/7').status_code, 200)\n"
        "        self.assertEqual(Published.objects.count(), 3)\n"
        "    def test_no_worker(self):\n"
        "        bus.install(get_wsgi_application())\n"
        "        with self.assertRaisesMessage(Exception, 'Django now uses'):\n"
        "            self.client.get('/orders/7')\n"
        "        self.assertFalse(bus.is_running)\n"
    )
    tests = small.manage("test")
    out, err = tests.communicate(timeout=100)
    assert tests.returncode == 0, out + err
    assert "Ran 2 tests" in err
    assert not (small.folder / "shop.db").exists()


@pytest.mark.thorough
def test_publishing_inside_an_event_loop_is_refused_with_the_remedy(small: Project) -> None:
    small.run("""
import asyncio
from django.core.exceptions import SynchronousOnlyOperation

async def view():
    publisher.publish("order.created", 1)

try:
    asyncio.run(view())
except SynchronousOnlyOperation as error:
    assert "sync_to_async" in str(error)
else:
    sys.exit("published")
""")


@pytest.mark.thorough
def test_broken_connection_is_replaced_before_the_next_message(small: Project) -> None:
    small.run("""
from django.core.wsgi import get_wsgi_application
from django.db import connections
bus.install(get_wsgi_application())
broken = []

@bus.subscribe("broken", group="breaking", concurrency=1)
def breaks(number: int) -> None:
    Handled.objects.create(number=number)
    if number == 1 and not broken:
        broken.append(number)
        connections["default"].connection.close()  # under Django's feet, as a server that restarts does

client.get("/orders/7")
for number in (1, 2):
    with transaction.atomic():
        publisher.publish("broken", number)
    bus.drain()
assert {row.number for row in Handled.objects.all()} == {2, 7}, "what the broken one wrote went with its transaction"
bus.advance(60)
bus.drain()
assert sorted(row.number for row in Handled.objects.all()) == [1, 2, 7]
""")


def test_model_writes_of_a_handler_commit_with_the_end_of_its_message(project: Project) -> None:
    project.run(
        """
from django.core.wsgi import get_wsgi_application
bus.install(get_wsgi_application())
attempts = []

@bus.subscribe("once", group="counting")
def counts(number: int) -> None:
    Handled.objects.create(number=number)
    bus.publish("counted", number)
    attempts.append(number)
    if len(attempts) == 1:
        raise ZeroDivisionError

@bus.subscribe("stolen", group="counting")
def is_stolen(number: int) -> None:
    Handled.objects.create(number=number)
    with bus.database.engine.begin() as other:  # as another worker does once the lease is over
        sql = bus.core.context.sql_of(other)
        sql.change(other, f'UPDATE {sql.names.queue} SET "LockToken" = "LockToken" + 1')

client.get("/orders/7")
bus.drain()
with transaction.atomic():
    publisher.publish("once", 1)
bus.drain()
assert [row.number for row in Handled.objects.all()] == [7]
assert not Published.objects.filter(name="counted").exists()
bus.advance(60)
bus.drain()
assert attempts == [1, 1]
assert sorted(row.number for row in Handled.objects.all()) == [1, 7]
assert Published.objects.filter(name="counted").count() == 1
"""
        + (
            ""
            if project.is_sqlite
            else """
with transaction.atomic():
    publisher.publish("stolen", 2)
import time
deadline = time.monotonic() + 20
while not bus.core.context.probe.totals["bus_lease_lost_total"]:
    assert time.monotonic() < deadline
    time.sleep(0.01)
assert sorted(row.number for row in Handled.objects.all()) == [1, 7], "the fence rolled it back"
os._exit(0)
"""
        )
    )
