"""What a failing task misses: the broker, the database, or nothing of the kind."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError, ProgrammingError

from sparrow.bus.errors import BusDatabaseUnreachable
from sparrow.bus.worker.health import cause_of
from sparrow.model.errors import ConnectionLost, NotPermitted

LOST = OperationalError("SELECT 1", (), Exception("server closed the connection"))
WRONG = ProgrammingError("SELEKT 1", (), Exception("syntax error"))


@pytest.mark.parametrize(
    ("error", "of_receiver", "of_others"),
    [
        (LOST, "database", "database"),
        (BusDatabaseUnreachable("sqlite:///x.db", "no such file"), "database", "database"),
        (WRONG, "task", "task"),
        (ConnectionRefusedError(111, "Connect call failed"), "broker", "database"),
        (ConnectionLost("host:1", "refused"), "broker", "task"),
        (NotPermitted("the token", "it is revoked"), "broker", "task"),
        (PermissionError(13, "Permission denied", "/archive/x.parquet"), "task", "task"),
        (KeyError("x"), "task", "task"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_cause_of_a_failing_task(error: Exception, of_receiver: str, of_others: str) -> None:
    assert cause_of(error, uses_broker=True) == of_receiver
    assert cause_of(error, uses_broker=False) == of_others
