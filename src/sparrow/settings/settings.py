"""All sections together, and the sources they are read from."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from sparrow.settings.console import ConsoleSettings
from sparrow.settings.replication import FollowSettings, ReplicationSettings
from sparrow.settings.section import warn_renamed
from sparrow.settings.servers import BrokerSettings, NameServerSettings
from sparrow.settings.stores import LogSettings, SqlSettings
from sparrow.settings.telemetry import TelemetrySettings


class Settings(BaseSettings):
    """All sections: defaults < `sparrow.toml` < `SPARROW_*` (as in `SPARROW_BROKER__PORT`) < arguments."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="ignore",  # other programs may use variables with the same prefix
        env_prefix="SPARROW_",
        env_nested_delimiter="__",
        toml_file="sparrow.toml",
        nested_model_default_partial_update=True,
    )

    name_server: NameServerSettings = NameServerSettings()
    broker: BrokerSettings = BrokerSettings()
    log: LogSettings = LogSettings()
    sql: SqlSettings = SqlSettings()
    replication: ReplicationSettings = ReplicationSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    follow: FollowSettings = FollowSettings()
    console: ConsoleSettings = ConsoleSettings()
    naming: dict[str, Any] = Field(default={}, description="Old name of the section `name_server`.", repr=False)

    @model_validator(mode="before")
    @classmethod
    def _accept_old_section(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not given.get("naming"):
            return given
        warn_renamed("naming", "name_server")
        renamed = dict(given)
        renamed["name_server"] = _merge(renamed.get("name_server"), renamed.pop("naming"))
        return renamed

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, environment and `sparrow.toml`, the strongest source first."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


def _merge(section: Any, changes: dict[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = dict(section) if isinstance(section, dict) else {}
    for name, value in changes.items():
        merged[name] = _merge(merged.get(name), value) if isinstance(value, dict) else value
    return merged
