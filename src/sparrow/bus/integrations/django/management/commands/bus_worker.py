"""`manage.py bus_worker`: send published events and run the handlers."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sparrow.bus.errors import TablesMissing
from sparrow.bus.integrations.django import configuration
from sparrow.bus.integrations.django.server import with_django_transactions
from sparrow.bus.integrations.worker_process import run_worker


class Command(BaseCommand):  # type: ignore[misc]
    help = "Send what is published and run the handlers, until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--health-port", type=int, help="Answer GET /live and /ready over HTTP on this port.")

    def handle(self, *args: Any, **options: Any) -> None:
        bus = configuration.bus()
        with_django_transactions(bus)
        try:
            run_worker(bus, self.echo, health_port=options["health_port"])
        except TablesMissing as error:
            raise CommandError(f"{error.where} has no tables of the bus: run `manage.py migrate`") from error

    def echo(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
