"""Event bus with Django: publish events inside `transaction.atomic()`, so that they commit or roll back with its rows.

Project and broker run in this one process.
"""

import tempfile
import threading

import django
from django.conf import settings
from django.core.management import call_command
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

import sparrow.testing
from sparrow.bus import NotInTransaction

handled = threading.Semaphore(0)


def configure(folder: str, name_servers: str) -> None:
    """Configure Django; in a project, these lines stand in settings.py."""
    settings.configure(
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/shop.db"}},
        INSTALLED_APPS=["sparrow.bus.integrations.django"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="an example",
        SPARROW_BUS={"broker": f"sparrow://{name_servers}", "app": "shop"},
    )
    django.setup()
    call_command("migrate", verbosity=0)  # creates the tables of the bus


def create(request: HttpRequest, number: int) -> HttpResponse:
    from sparrow.bus.integrations.django import publisher

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [number])
        publisher.publish("order.created", {"number": number})
        if number == 13:
            transaction.set_rollback(True)  # stores neither the order nor the event
    return HttpResponse("never mind" if number == 13 else "thanks")


urlpatterns = [path("orders/<int:number>", create)]


def main() -> None:
    from sparrow.bus.integrations.django import bus, publisher

    @bus.subscribe("order.created", group="billing")  # in a project: in the `events` module of an application
    def bill(order: dict) -> None:
        print("billing:", order)
        handled.release()

    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (number INTEGER)")
    bus.install(get_wsgi_application())  # alternative: run `manage.py bus_worker`
    client = Client()
    for number in (12, 13, 14):
        print("shop:", number, client.get(f"/orders/{number}").content.decode())
    try:
        publisher.publish("order.created", {"number": 15})
    except NotInTransaction as error:
        print("shop:", error)
    assert handled.acquire(timeout=30)
    assert handled.acquire(timeout=30)
    bus.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, sparrow.testing.run_platform() as platform:
        configure(folder, platform.name_servers)
        main()
        connection.close()
