"""The Django application of the bus."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class BusConfig(AppConfig):  # type: ignore[misc]
    name = "sparrow.bus.integrations.django"
    label = "sparrow_bus"
    verbose_name = "Event bus"

    def ready(self) -> None:
        from sparrow.bus.integrations.django.models import name_tables

        name_tables()
        autodiscover_modules("events")
