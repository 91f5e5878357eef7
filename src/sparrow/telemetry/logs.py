"""The log of a server: lines of text with time and level, or one JSON object a line.

Log calls of Sparrow have a sentence and one dict of values: `log.warning("… %(peer)s …", {"peer": peer})`. The JSON
form keeps both: the sentence as a person reads it, and the values as fields.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_SIMPLE_TYPES = (str, int, float, bool, type(None))
RESERVED_FIELDS = frozenset({"time", "level", "logger", "message", "exception"})


class JsonFormatter(logging.Formatter):
    """Formats records as JSON objects: time, level, logger, message, the values of the call, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if isinstance(record.args, Mapping):
            for name, value in record.args.items():
                # A field of the call must not replace one of ours.
                shown = f"{name}_" if name in RESERVED_FIELDS else str(name)
                entry[shown] = value if isinstance(value, _SIMPLE_TYPES) else str(value)
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        text = json.dumps(entry, ensure_ascii=False)
        return text.encode("utf-8", "backslashreplace").decode()  # a peer may have sent an unpaired surrogate


class TextFormatter(logging.Formatter):
    """Formats records as lines with the time in UTC."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def configure_server_log(log_format: str) -> None:
    """Set the format of the process's log, which the command line has set up. The audit has lines below warnings."""
    logging.getLogger("sparrow.audit").setLevel(logging.INFO)
    formatter = JsonFormatter() if log_format == "json" else TextFormatter()
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter)
