"""Admin pages for published and received events: read-only, with an action to requeue them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet

from sparrow.bus.integrations.django import configuration
from sparrow.bus.integrations.django.models import Published, Received


class _RowAdmin(admin.ModelAdmin):  # type: ignore[misc]
    list_display: tuple[str, ...] = ("id", "name", "status", "retries", "added", "expires_at")
    list_filter: tuple[str, ...] = ("status",)
    search_fields = ("=id", "name__startswith")
    ordering = ("-id",)
    show_full_result_count = False  # counting large tables is slow

    def get_queryset(self, request: Any) -> QuerySet[Any]:
        return super().get_queryset(request).using(configuration.using())

    def has_add_permission(self, request: Any, *args: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False


@admin.register(Published)
class PublishedAdmin(_RowAdmin):
    @admin.action(description="Send once more")  # type: ignore[untyped-decorator]
    def again(self, request: Any, chosen: QuerySet[Any]) -> None:
        done = configuration.bus().operations.requeue(*chosen.values_list("id", flat=True))
        self.message_user(request, f"{done.count} will be sent once more")

    actions = ("again",)


@admin.register(Received)
class ReceivedAdmin(_RowAdmin):
    list_display = ("id", "name", "group", "status", "retries", "added", "expires_at")

    @admin.action(description="Handle once more")  # type: ignore[untyped-decorator]
    def again(self, request: Any, chosen: QuerySet[Any]) -> None:
        done = configuration.bus().operations.reexecute(*chosen.values_list("id", flat=True))
        self.message_user(request, f"{done.count} will be handled once more")

    actions = ("again",)
