"""The consumer groups of a broker: their configuration, cached in memory and kept in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from sparrow.model.errors import Refused, StoreFull, UnknownGroup
from sparrow.model.protocol import TOOLS_GROUP, TRANSACTION_GROUP
from sparrow.model.topic import Group, validate_group_name
from sparrow.settings import BrokerSettings
from sparrow.store.spi import Store
from sparrow.wire.bodies import DataVersion

log = logging.getLogger(__name__)

SYSTEM_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""Groups that always exist and are not stored. Tools consume with the first."""

UNSAVED_MAX = 10_000
"""Groups that are kept in memory while the disk is full; the consumers of more are refused."""


class GroupCatalog:
    """All consumer groups of one broker."""

    def __init__(self, store: Store, settings: BrokerSettings, now_ms: Callable[[], int]) -> None:
        self._store, self._settings, self._now_ms = store, settings, now_ms
        self._groups: dict[str, Group] = {}
        self._unsaved: dict[str, Group] = {}
        """Groups that were created while the disk was full."""
        self.version = DataVersion(0, now_ms())
        self.refused = 0
        """Groups that were not created because of the limit."""

    async def load(self) -> None:
        self.replace_all(await self._store.catalog.list_groups())

    def replace_all(self, stored: Mapping[str, Group]) -> None:
        """Replace the cache by the content of the store."""
        known = {name: Group(name=name) for name in SYSTEM_GROUPS} | self._unsaved | dict(stored)
        if known != self._groups:
            self._groups = known
            self._bump_version()

    def get(self, name: str) -> Group | None:
        return self._groups.get(name)

    def __getitem__(self, name: str) -> Group:
        """Return the group, or raise `UnknownGroup`."""
        group = self._groups.get(name)
        if group is None:
            raise UnknownGroup(name)
        return group

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    async def get_or_create(self, name: str) -> Group:
        """Return the group of a consumer. Create it unless the setting `auto_create_groups` is off.

        On a full disk the group is kept in memory, so that new groups can read; a later call stores it.
        """
        group = self._groups.get(name)
        if group is None:
            validate_group_name(name)
            if not self._settings.auto_create_groups:
                raise UnknownGroup(name)
            group = Group(name=name)
        elif name not in self._unsaved:
            return group
        try:
            await self.put(group)
        except StoreFull as full:
            if name not in self._unsaved:
                if len(self._unsaved) >= UNSAVED_MAX:
                    raise
                log.warning("group %(group)s is not stored yet: %(error)s", {"group": name, "error": full})
                self._groups[name] = self._unsaved[name] = group
        return group

    async def put(self, group: Group) -> None:
        validate_group_name(group.name)
        if group.name not in self._groups and len(self._groups) >= self._settings.groups_max:
            self.refused += 1
            raise Refused(
                f"group {group.name!r} cannot be created: this broker has {len(self._groups)} groups, and the limit is"
                f" {self._settings.groups_max}: delete groups that nobody uses, or raise broker.groups_max"
            )
        await self._store.catalog.put_group(group)
        self._groups[group.name] = group
        self._unsaved.pop(group.name, None)
        self._bump_version()

    async def delete(self, name: str, *, keeps_offsets: bool) -> None:
        """Delete a group. Works for a deleted group too, whose offsets may still exist."""
        await self._store.catalog.delete_group(name, keeps_offsets=keeps_offsets)
        self._unsaved.pop(name, None)
        if self._groups.pop(name, None) is not None:
            self._bump_version()

    def _bump_version(self) -> None:
        self.version = DataVersion(self.version.counter + 1, self._now_ms())
