"""What is wrong with name servers and brokers. Pure: facts in, diagnoses out."""

from __future__ import annotations

from collections.abc import Iterator

from sparrow.cli.doctor.report import CheckResult, Diagnosis, problem, warning
from sparrow.cli.doctor.servers import BrokerFacts, ClockReading, NameServerFacts
from sparrow.cli.doctor.thresholds import Thresholds
from sparrow.cli.output import format_bytes, format_duration

_CLEAN_PERCENT_DEFAULT, _REFUSE_RATIO_DEFAULT = 75.0, 0.9


def check_name_servers(servers: list[NameServerFacts]) -> CheckResult:
    """Check that every name server answers, and that all list the same brokers."""
    found = [
        problem(
            "name_server_unreachable",
            f"name server {server.address}",
            f"it cannot be asked: {server.error}",
            "Start it with `sparrow name-server`, or remove it from --name-servers.",
        )
        for server in servers
        if server.error is not None
    ]
    reachable = [server for server in servers if server.error is None]
    found += _missing_brokers(reachable)
    found += _two_addresses(reachable)
    if reachable and not any(server.brokers for server in reachable):
        found.append(
            problem(
                "no_broker",
                "name servers",
                "no broker is registered",
                "Start a broker with `sparrow broker --name-servers …`, and check the addresses that it uses.",
            )
        )
    return CheckResult(check="name servers", seen=f"{len(reachable)} of {len(servers)} answer", diagnoses=tuple(found))


def _missing_brokers(servers: list[NameServerFacts]) -> Iterator[Diagnosis]:
    everywhere = {name for server in servers for name in server.brokers}
    for server in servers:
        for name in sorted(everywhere - server.brokers.keys()):
            others = ", ".join(other.address for other in servers if name in other.brokers)
            yield problem(
                "name_servers_disagree",
                f"name server {server.address}",
                f"it does not list broker {name}, which {others} lists",
                f"Register the broker with all name servers: broker.name_servers must contain {server.address}.",
            )


def _two_addresses(servers: list[NameServerFacts]) -> Iterator[Diagnosis]:
    addresses: dict[tuple[str, int], set[str]] = {}
    for server in servers:
        for name, members in server.brokers.items():
            for broker_id, address in members.items():
                addresses.setdefault((name, broker_id), set()).add(address)
        for key, rivals in server.name_conflicts.items():
            addresses.setdefault(key, set()).update(rivals)
    for (name, broker_id), found in sorted(addresses.items()):
        if len(found) > 1:
            yield problem(
                "two_brokers_one_name",
                f"broker {name}",
                f"two brokers with this name and the id {broker_id} are registered: {' and '.join(sorted(found))}",
                "Give each broker a name of its own with --name, and restart it; clients would see the messages of "
                "one of them only.",
            )


def check_brokers(brokers: list[BrokerFacts], thresholds: Thresholds) -> CheckResult:
    """Check that every registered broker answers under its name, and may open enough files."""
    found: list[Diagnosis] = []
    for broker in brokers:
        subject = f"broker {broker.name} ({broker.address})"
        if broker.error is not None:
            found.append(
                problem(
                    "broker_unreachable",
                    subject,
                    f"it is registered, and cannot be reached from here: {broker.error}",
                    "Start it; or correct --advertised-host, if clients cannot use the address that it registers.",
                )
            )
            continue
        own_name = broker.settings.get("brokerName", broker.name)
        if own_name != broker.name:
            found.append(
                problem(
                    "wrong_broker",
                    subject,
                    f"the broker at this address calls itself {own_name}",
                    "Another broker has taken the port: give each broker a port of its own.",
                )
            )
        found += _open_files(broker, subject, thresholds)
    reached = sum(broker.error is None for broker in brokers)
    return CheckResult(check="brokers", seen=f"{reached} of {len(brokers)} answer", diagnoses=tuple(found))


def _open_files(broker: BrokerFacts, subject: str, thresholds: Thresholds) -> Iterator[Diagnosis]:
    allowed, used = broker.number("openFilesMax"), broker.number("openFiles")
    if allowed is None or used is None:
        return
    if used > thresholds.open_files_ratio_max * allowed:
        yield problem(
            "open_files",
            subject,
            f"{used:,.0f} files and connections are open, and {allowed:,.0f} are allowed",
            "Raise the limit (ulimit -n, or LimitNOFILE of systemd) and restart it.",
        )
    elif allowed < thresholds.open_files_min:
        yield warning(
            "open_files",
            subject,
            f"it may open {allowed:,.0f} files and connections only",
            f"Raise the limit to {thresholds.open_files_min:,} or more (ulimit -n) and restart it.",
        )


def check_disks(brokers: list[BrokerFacts], thresholds: Thresholds) -> CheckResult:
    """Check that the disks of brokers have space for the next files of the log."""
    found: list[Diagnosis] = []
    seen = []
    for broker in brokers:
        ratio, free = broker.number("commitLogDiskRatio"), broker.number("diskFreeBytes")
        if ratio is None:
            continue
        seen.append(f"{broker.name} {ratio:.0%} used")
        subject = f"disk of broker {broker.name} ({broker.address})"
        clean = _number(broker.settings.get("diskMaxUsedSpaceRatio"), _CLEAN_PERCENT_DEFAULT) / 100
        refuse = _number(broker.figures.get("diskRefuseRatio"), _REFUSE_RATIO_DEFAULT)
        segment_bytes = _number(broker.settings.get("mappedFileSizeCommitLog"), 0)
        if ratio >= refuse:
            text, remedy = f"{ratio:.0%} are used: sends are refused from {refuse:.0%} on", "Free some space now."
            found.append(problem("disk_full", subject, text, remedy))
        elif ratio >= clean:
            text = f"{ratio:.0%} are used: old messages are deleted early from {clean:.0%} on"
            found.append(warning("disk_full", subject, text, "Free some space, or shorten log.retention_hours."))
        if free is not None and free < thresholds.segments_free_min * segment_bytes:
            text = f"{format_bytes(free)} are free, and a file of the log takes {format_bytes(segment_bytes)}"
            remedy = "Free some space, or start a new store with a smaller log.segment_bytes."
            found.append(problem("disk_segment", subject, text, remedy))
    return CheckResult(check="disks", seen=", ".join(seen) or "no broker keeps files", diagnoses=tuple(found))


def check_clocks(servers: list[NameServerFacts], brokers: list[BrokerFacts], thresholds: Thresholds) -> CheckResult:
    """Check that the clocks of servers agree with that of this machine."""
    readings: list[tuple[str, ClockReading]] = [
        (f"name server {server.address}", server.clock) for server in servers if server.clock is not None
    ]
    readings += [
        (f"broker {broker.name} ({broker.address})", broker.clock) for broker in brokers if broker.clock is not None
    ]
    found = []
    for subject, reading in readings:
        if abs(reading.skew_ms) - reading.uncertainty_ms > thresholds.clock_skew_ms_max:
            direction = "ahead of" if reading.skew_ms > 0 else "behind"
            found.append(
                problem(
                    "clock",
                    subject,
                    f"its clock is {format_duration(abs(reading.skew_ms))} {direction} that of this machine",
                    "Synchronise the clocks (NTP): delays, retention, leases and searches by time depend on them.",
                )
            )
    worst = max((abs(reading.skew_ms) for _, reading in readings), default=0)
    seen = f"{len(readings)} compared, at most {format_duration(worst)} apart" if readings else "none could be compared"
    return CheckResult(check="clocks", seen=seen, diagnoses=tuple(found))


def check_versions(brokers: list[BrokerFacts], own_version: str) -> CheckResult:
    """Check that brokers and this program have one version."""
    versions: dict[str, list[str]] = {}
    for broker in brokers:
        if broker.error is None:
            version = broker.figures.get("sparrowVersion") or f"RocketMQ {broker.figures.get('brokerVersionDesc', '?')}"
            versions.setdefault(version, []).append(broker.name)
    found = []
    if len(versions) > 1:
        each = "; ".join(f"{version}: {', '.join(sorted(names))}" for version, names in sorted(versions.items()))
        found.append(
            warning("versions", "brokers", f"they have different versions ({each})", "Bring all to one version.")
        )
    elif versions and own_version not in versions:
        (version,) = versions
        found.append(
            warning(
                "versions",
                "this program",
                f"it has version {own_version}, and the brokers have {version}",
                "Use the same version here as on the brokers.",
            )
        )
    seen = ", ".join(sorted(versions)) or "no broker answers"
    return CheckResult(check="versions", seen=seen, diagnoses=tuple(found))


def check_transactions(brokers: list[BrokerFacts], given_up: int) -> CheckResult:
    """Check that no half message waits for a producer that does not end it."""
    found = []
    waiting = 0
    for broker in brokers:
        count = int(broker.number("halfMessages") or 0)
        waiting += count
        if count:
            found.append(
                warning(
                    "half_messages",
                    f"broker {broker.name} ({broker.address})",
                    f"{count:,} half messages wait for their producers to commit or roll back",
                    "If the number does not fall: start the producers, with a transaction_checker that answers.",
                )
            )
    if given_up:
        found.append(
            warning(
                "transactions_given_up",
                "transactions",
                f"{given_up:,} were rolled back because no producer ended them",
                "Look at them with `sparrow transaction list`, and at the producers that began them.",
            )
        )
    return CheckResult(
        check="transactions", seen=f"{waiting:,} half messages, {given_up:,} given up", diagnoses=tuple(found)
    )


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text is not None else default
    except ValueError:
        return default
