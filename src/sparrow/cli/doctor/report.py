"""The report of `sparrow doctor`: checks, and what they found."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad a diagnosis is, the worst first."""

    PROBLEM = "problem"
    """Something does not work, or is about to stop working."""
    WARNING = "warning"
    """Something deserves a look."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, and what to do about it."""

    severity: Severity
    cause: str
    """A short word that stays the same between versions, for programs."""
    subject: str
    """The server, group, file or package that it is about."""
    text: str
    """What is wrong, with which value."""
    remedy: str
    """What to do."""


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what it looked at, and what it found."""

    check: str
    seen: str
    """What was looked at, in a few words."""
    diagnoses: tuple[Diagnosis, ...] = ()


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """All checks."""

    checks: tuple[CheckResult, ...]

    @property
    def diagnoses(self) -> list[Diagnosis]:
        """Everything that is wrong, problems first."""
        found = [each for check in self.checks for each in check.diagnoses]
        return sorted(found, key=lambda each: each.severity is not Severity.PROBLEM)

    @property
    def problems(self) -> int:
        """How many things do not work."""
        return sum(each.severity is Severity.PROBLEM for each in self.diagnoses)


def problem(cause: str, subject: str, text: str, remedy: str) -> Diagnosis:
    """Return a diagnosis of something that does not work."""
    return Diagnosis(severity=Severity.PROBLEM, cause=cause, subject=subject, text=text, remedy=remedy)


def warning(cause: str, subject: str, text: str, remedy: str) -> Diagnosis:
    """Return a diagnosis of something that deserves a look."""
    return Diagnosis(severity=Severity.WARNING, cause=cause, subject=subject, text=text, remedy=remedy)
