"""The settings of all programs: one frozen section per component, each field with a unit, bounds and a description.

A component receives its own section through its constructor. A field that was renamed is still read under its old
name for one version, with a `FutureWarning`.
"""

from __future__ import annotations

from sparrow.extras import require

require("pydantic_settings", extra="server", for_="sparrow.settings")

from sparrow.settings.console import ConsoleMask, ConsoleRole, ConsoleSettings, ConsoleToken  # noqa: E402
from sparrow.settings.replication import BrokerRole, FollowSettings, ReplicationPolicy, ReplicationSettings  # noqa: E402
from sparrow.settings.section import GIB, KIB, MIB  # noqa: E402
from sparrow.settings.servers import BrokerSettings, NameServerSettings, NetSettings  # noqa: E402
from sparrow.settings.settings import Settings  # noqa: E402
from sparrow.settings.stores import FlushPolicy, LogSettings, SqlSettings, TopicNames, VisibleAfter, Watermark  # noqa: E402
from sparrow.settings.telemetry import LogFormat, TelemetrySettings  # noqa: E402

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "BrokerRole",
    "BrokerSettings",
    "ConsoleMask",
    "ConsoleRole",
    "ConsoleSettings",
    "ConsoleToken",
    "FlushPolicy",
    "FollowSettings",
    "LogFormat",
    "LogSettings",
    "NameServerSettings",
    "NetSettings",
    "ReplicationPolicy",
    "ReplicationSettings",
    "Settings",
    "SqlSettings",
    "TelemetrySettings",
    "TopicNames",
    "VisibleAfter",
    "Watermark",
]
