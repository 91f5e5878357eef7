"""This machine: limits of open files, settings, ports, data folder and packages of a server that would start here."""

from __future__ import annotations

import resource
import shutil
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sparrow.cli.doctor.report import CheckResult, Diagnosis, problem, warning
from sparrow.cli.doctor.thresholds import Thresholds
from sparrow.cli.output import format_bytes
from sparrow.cli.settings import load_settings
from sparrow.model.errors import SettingsError
from sparrow.settings import Settings

_STORE_MODULES = {
    "mysql": ("asyncmy", "mysql"),
    "mariadb": ("asyncmy", "mysql"),
    "postgresql": ("asyncpg", "postgres"),
    "postgres": ("asyncpg", "postgres"),
    "sqlite": ("aiosqlite", "bus"),
}
"""Scheme of a database URL to the module and the extra that it needs."""


def check_open_files(thresholds: Thresholds) -> CheckResult:
    """Check how many files a server that starts here may open."""
    allowed, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found: tuple[Diagnosis, ...] = ()
    if allowed < thresholds.open_files_min:
        hint = f"; the hard limit is {hard:,}" if hard > 0 else ""
        remedy = f"Raise it before a server starts here: ulimit -n {thresholds.open_files_min}{hint}."
        text = f"a process may open {allowed:,} files and connections only"
        found = (warning("open_files", "this machine", text, remedy),)
    return CheckResult(check="open files", seen=f"{allowed:,} allowed here", diagnoses=found)


def check_settings() -> tuple[CheckResult, Settings | None]:
    """Check the settings of this folder and environment; return them if they can be used."""
    try:
        loaded = load_settings()
    except SettingsError as error:
        found = problem("settings", "settings", str(error), "Correct it; `sparrow settings` shows values and origins.")
        return CheckResult(check="settings", seen="cannot be used", diagnoses=(found,)), None
    return CheckResult(check="settings", seen="sparrow.toml and SPARROW_* are valid"), loaded


def check_ports(loaded: Settings, known_addresses: set[str]) -> CheckResult:
    """Check that the ports of the settings are free, or used by a server that was found."""
    found = []
    ports = (
        ("name_server", loaded.name_server.host, loaded.name_server.port, "--name-server-port"),
        ("broker", loaded.broker.host, loaded.broker.port, "--port"),
    )
    for section, host, port, flag in ports:
        reason = _cannot_listen(host, port) if port else None
        is_ours = any(address.rpartition(":")[2] == str(port) for address in known_addresses)
        if reason is not None and not is_ours:
            found.append(
                problem(
                    "port",
                    f"port {port} ({section}.port)",
                    f"a server could not listen on {host}:{port}: {reason}",
                    f"Stop the other process, or choose another port with {flag}.",
                )
            )
    seen = ", ".join(f"{section} {port}" for section, _, port, _ in ports)
    return CheckResult(check="ports", seen=seen, diagnoses=tuple(found))


def _cannot_listen(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return (error.strerror or str(error)).lower()
    return None


def check_data_folder(loaded: Settings, data: Path, thresholds: Thresholds) -> CheckResult:
    """Check that the disk of the data folder has space for the files of a log store."""
    if loaded.broker.store is not None:
        return CheckResult(check="data folder", seen="messages are in a database")
    folder = data if data.exists() else data.resolve().parent
    found: list[Diagnosis] = []
    if data.exists() and not data.is_dir():
        text = "it is a file, not a folder"
        found.append(problem("data_folder", str(data), text, "Choose another folder with --data."))
        return CheckResult(check="data folder", seen=str(data), diagnoses=tuple(found))
    while not folder.exists():
        folder = folder.parent
    disk = shutil.disk_usage(folder)
    needed = thresholds.segments_free_min * loaded.log.segment_bytes
    if disk.free < needed:
        allocated = "are allocated completely" if loaded.log.preallocate else "grow"
        found.append(
            warning(
                "data_folder",
                str(data),
                f"{format_bytes(disk.free)} are free; files of the log {allocated} to "
                f"{format_bytes(loaded.log.segment_bytes)} each",
                "Free some space, choose another disk with --data, or a smaller log.segment_bytes.",
            )
        )
    ratio = disk.used / (disk.used + disk.free)
    if ratio >= loaded.log.disk_refuse_ratio:
        text = f"{ratio:.0%} of the disk are used: a broker here would refuse sends"
        found.append(warning("data_folder", str(data), text, "Free some space, or choose another disk with --data."))
    return CheckResult(check="data folder", seen=f"{format_bytes(disk.free)} free", diagnoses=tuple(found))


def check_packages(loaded: Settings) -> CheckResult:
    """Check that the packages are installed which the settings need."""
    found = [
        problem(
            "missing_extra",
            f"package {module}",
            f"it is not installed, and {needed_for} needs it",
            f'Install it: pip install "sparrowmq[{extra}]"',
        )
        for module, extra, needed_for in _needed_packages(loaded)
        if not _is_installed(module)
    ]
    if not _is_installed("uvloop"):
        found.append(
            warning(
                "missing_extra",
                "package uvloop",
                "it is not installed; servers are slower without it",
                'Install it: pip install "sparrowmq[speed]"',
            )
        )
    return CheckResult(check="packages", seen="what the settings need", diagnoses=tuple(found))


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # it is marked as missing in sys.modules
        return False


def _needed_packages(loaded: Settings) -> Iterator[tuple[str, str, str]]:
    for module in ("numpy", "pyarrow"):
        yield module, "server", "a broker"
    if loaded.broker.store is not None:
        scheme = loaded.broker.store.partition(":")[0].partition("+")[0]
        if scheme in _STORE_MODULES:
            yield (*_STORE_MODULES[scheme], "broker.store")
    if loaded.replication.etcd:
        yield "httpx", "etcd", "replication.etcd"
    if loaded.sql.token_keys is not None:
        yield "cryptography", "encryption", "sql.token_keys"
