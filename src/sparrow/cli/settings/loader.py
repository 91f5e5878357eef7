"""Load the settings for a command: flags over the environment over `sparrow.toml` over defaults."""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError as SectionNotJson

from sparrow.client.options import NAME_SERVERS_VARIABLE
from sparrow.model.errors import SettingsError
from sparrow.settings import Settings

_PREFIX = "sparrow_"
_FLAGS = {
    ("name_server", "host"): "--host",
    ("name_server", "port"): "--name-server-port",
    ("broker", "name"): "--name",
    ("broker", "host"): "--host",
    ("broker", "advertised_host"): "--advertised-host",
    ("broker", "port"): "--port",
    ("broker", "store"): "--store",
    ("log", "flush"): "--flush",
    ("telemetry", "metrics_port"): "--metrics-port",
    ("telemetry", "metrics_host"): "--metrics-host",
    ("telemetry", "log_format"): "--log-format",
    ("replication", "etcd"): "--etcd",
    ("replication", "replica_id"): "--replica",
    ("replication", "role"): "--role",
    ("replication", "broker_id"): "--broker-id",
    ("replication", "master"): "--master",
    ("replication", "policy"): "--policy",
    ("follow", "rocketmq"): "--follow-rocketmq",
    ("follow", "rocketmq_ha"): "--rocketmq-ha",
    ("console", "host"): "--host",
    ("console", "port"): "--console-port",
    ("console", "enabled"): "--no-console",
    ("console", "bus_database"): "--bus-database",
    ("console", "pipelines_folder"): "--pipelines",
}

DEFAULT_DATA_FOLDER = Path("sparrow-data")
"""Where servers keep their data unless told otherwise."""


class UnknownSetting(SettingsError):
    """A setting that does not exist, mostly a misspelled one."""

    def __init__(self, key: str, origin: str, near: str | None) -> None:
        super().__init__(key, None, origin, near or "a setting that exists")
        self.near = near

    def __str__(self) -> str:
        hint = f"did you mean {self.near}?" if self.near else "docs/broker.md lists all settings."
        return f"there is no setting {self.key} (from {self.origin}): {hint}"


class UnusablePath(SettingsError):
    """A file or folder of the settings cannot be read or written."""

    def __init__(self, key: str, path: str, why: str, remedy: str) -> None:
        super().__init__(key, path, "the command line", remedy)
        self.path, self.why, self.remedy = path, why, remedy

    def __str__(self) -> str:
        return f"cannot use {self.path} ({self.key}): {self.why}. {self.remedy}"


def load_settings(
    *,
    name: str | None = None,
    host: str | None = None,
    advertised_host: str | None = None,
    port: int | None = None,
    name_server_port: int | None = None,
    store: str | None = None,
    flush: str | None = None,
    etcd: str | None = None,
    replica_id: int | None = None,
    role: str | None = None,
    broker_id: int | None = None,
    master: str | None = None,
    policy: str | None = None,
    metrics_port: int | None = None,
    metrics_host: str | None = None,
    log_format: str | None = None,
    rocketmq: str | None = None,
    rocketmq_ha: str | None = None,
    console_host: str | None = None,
    console_port: int | None = None,
    console_enabled: bool | None = None,
    bus_database: str | None = None,
    pipelines_folder: str | None = None,
) -> Settings:
    """Return all settings. `SettingsError` names the first bad one, where it was set, and what is allowed."""
    given: dict[str, dict[str, Any]] = {
        "name_server": {"host": host, "port": name_server_port},
        "broker": {"name": name, "host": host, "advertised_host": advertised_host, "port": port, "store": store},
        "log": {"flush": flush},
        "replication": {
            "etcd": etcd,
            "replica_id": replica_id,
            "role": role,
            "broker_id": broker_id,
            "master": master,
            "policy": policy,
        },
        "telemetry": {"metrics_port": metrics_port, "metrics_host": metrics_host, "log_format": log_format},
        "follow": {"rocketmq": rocketmq, "rocketmq_ha": rocketmq_ha},
        "console": {
            "host": console_host,
            "port": console_port,
            "enabled": console_enabled,
            "bus_database": bus_database,
            "pipelines_folder": pipelines_folder,
        },
    }
    flags: dict[str, Any] = {}
    for section, fields in given.items():
        if set_fields := {name: value for name, value in fields.items() if value is not None}:
            flags[section] = set_fields
    _check_sections()
    try:
        return Settings(**flags)
    except ValidationError as cause:
        raise _settings_error(cause, flags) from cause
    except SectionNotJson as cause:
        raise _section_error(cause) from cause


def usable_folder(data: Path) -> Path:
    """Create the data folder if it is missing. `UnusablePath` if that, or writing to it, is not possible."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=data):
            pass
    except OSError as cause:
        why = "it is a file, not a folder" if data.is_file() else (cause.strerror or str(cause)).lower()
        raise UnusablePath("--data", str(data), why, "Choose a folder that can be written with --data.") from cause
    return data


def _check_sections() -> None:
    """Refuse what `Settings` would ignore: unknown sections of `sparrow.toml`, and misspelled ones of variables."""
    sections = tuple(Settings.model_fields)
    for name in _read_toml():
        if name not in sections:
            raise UnknownSetting(name, "sparrow.toml", _near(name, sections))
    for variable in os.environ:
        section, separator, _ = variable.lower().removeprefix(_PREFIX).partition("__")
        if variable.lower().startswith(_PREFIX) and separator and section not in sections:
            near = _near(section, sections)
            if near is not None:  # other programs may use variables with the same prefix
                raise UnknownSetting(variable, "the environment", f"{_PREFIX}{near}__…".upper())


def _read_toml() -> dict[str, Any]:
    path = Path("sparrow.toml")
    try:
        return tomllib.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as cause:
        why = cause.strerror or str(cause) if isinstance(cause, OSError) else f"it is not TOML: {cause}"
        raise UnusablePath("settings", str(path.resolve()), why, "Correct the file, or remove it.") from cause


def _section_error(cause: SectionNotJson) -> SettingsError:
    """Return the error for a variable such as SPARROW_BROKER, which sets a whole section and has to be JSON."""
    found = re.search(r'field "(\w+)"', str(cause))
    section = found[1] if found else "broker"
    variable = f"{_PREFIX}{section}".upper()
    use = f"JSON, or variables of single settings such as {variable}__HOST"
    if section == "name_server":
        use = f"{NAME_SERVERS_VARIABLE} for the addresses of name servers, or {variable}__PORT for a single setting"
    return SettingsError(section, "…", variable, use)  # the value may contain a secret


def _settings_error(cause: ValidationError, flags: dict[str, Any]) -> SettingsError:
    first = cause.errors()[0]
    path = tuple(map(str, first["loc"]))
    origin = _origin(path, flags)
    if first["type"] == "extra_forbidden":
        near = _near(path[-1], _fields_of(path[:-1]))
        return UnknownSetting(".".join(path), origin, near and ".".join((*path[:-1], near)))
    return SettingsError(".".join(path), first["input"], origin, _suggestion(first))


def _near(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, known, n=1)), None)


def _fields_of(path: tuple[str, ...]) -> Iterable[str]:
    section: Any = Settings
    for part in path:
        section = section.model_fields[part].annotation
    return tuple(section.model_fields)


def _origin(path: tuple[str, ...], flags: dict[str, Any]) -> str:
    section, name = path[0], path[1] if len(path) > 1 else ""
    if name in flags.get(section, {}):
        return _FLAGS[section, name]
    return _variable_of(path) or "sparrow.toml"


def origin_of_setting(path: tuple[str, ...]) -> str | None:
    """Return the environment variable or the file that sets a setting; None if it has its default."""
    given = {known.upper(): value for known, value in os.environ.items()}
    for depth in range(len(path), 0, -1):
        variable = _variable(path[:depth])
        if variable in given and (depth == len(path) or _contains(json.loads(given[variable]), path[depth:])):
            return variable
    return "sparrow.toml" if _contains(_read_toml(), path) else None


def _contains(table: Any, path: tuple[str, ...]) -> bool:
    for part in path:
        if not isinstance(table, dict) or part not in table:
            return False
        table = table[part]
    return True


def _variable_of(path: tuple[str, ...]) -> str | None:
    """Return the variable that sets a setting, or the section that it is in."""
    given = {known.upper() for known in os.environ}
    found = (_variable(path[:depth]) for depth in range(len(path), 0, -1))
    return next((variable for variable in found if variable in given), None)


def _variable(path: tuple[str, ...]) -> str:
    return "SPARROW_" + "__".join(path).upper()


def _suggestion(error: Any) -> str:
    if error["type"] == "string_pattern_mismatch":
        return f"a text that matches {error['ctx']['pattern']}"
    message = str(error["msg"]).removeprefix("Input should be ")
    return f"a value {message}" if message.startswith(("less ", "greater ")) else message
