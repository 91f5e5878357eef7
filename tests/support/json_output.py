"""What commands print with `--json`: decode it as its documented type, and run each command on one prepared platform.

`tests/unit/test_cli_page.py` fails if a command with `--json` is neither in `JSON_COMMANDS` nor decoded by some test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from sparrow.cli.json_types import JSON_TYPES, MORE_JSON_TYPES

TESTS = Path(__file__).resolve().parents[1]

JSON_COMMANDS = {
    "topic list": "",
    "topic show": "orders",
    "topic create": "fresh --queues 3",
    "topic update": "alarms --queues 3",
    "topic delete": "unused --yes",
    "group list": "",
    "group show": "billing",
    "group reset": "billing orders --to first --dry-run",
    "group delete": "unused --yes",
    "message get": "{message_id} --topic orders",
    "message find": "orders --key order-1",
    "message delayed": "",
    "message recall --dry-run": "{handle} --dry-run",
    "message recall": "{handle} --yes",
    "send": "orders 'a book' --key book",
    "tail --format json": "orders --from first --exit-at-end --format json",
    "resend": "orders --group billing --key order-1 --dry-run",
    "dlq list": "",
    "dlq list GROUP": "billing",
    "dlq show": "billing {dead_letter}",
    "dlq redrive": "billing --id {dead_letter} --to-group-only --yes",
    "transaction list": "",
    "transaction half": "",
    "transaction commit --dry-run": "{half} --dry-run",
    "transaction rollback --dry-run": "{half} --dry-run",
    "transaction commit": "{half} --yes",
    "transaction rollback": "{other_half} --yes",
    "token issue": "warehouse --type c",
    "token list": "",
    "token show": "checkout",
    "settings": "broker",
    "doctor": "",
    "bench": "--seconds 0.1 --only send",
    "store info": "{stopped_broker}",
    "store check": "{stopped_broker}",
    "bus list": "published --database {bus}",
    "bus search": "published paid --database {bus}",
    "bus show": "published {event} --database {bus}",
    "bus stats": "--topics --database {bus}",
    "bus failures": "--database {bus}",
    "bus requeue": "{event} --dry-run --database {bus}",
    "bus reexecute": "--name order.paid --dry-run --database {bus}",
    "bus cancel": "--name order.created --yes --database {bus}",
    "bus publish-now": "--name order.created --yes --database {bus}",
    "bus park": "published {event} --database {bus}",
    "bus unpark": "published {event} --database {bus}",
    "bus delete": "published {event} --database {bus}",
    "bus check": "shop:bus",
    "pipeline list": "{pipelines}",
}
"""Command to its arguments on the platform of `tests/integration/test_json_schemas.py`, in this order."""

_DECODED = re.compile(r'decode_printed\(\s*"([^"]+)"')


def decode_printed(command: str, text: str | bytes) -> Any:
    """Decode one document as the documented type of a command: it has exactly its fields, none more and none less."""
    value = msgspec.json.decode(text, type={**JSON_TYPES, **MORE_JSON_TYPES}[command])
    assert msgspec.json.decode(msgspec.json.encode(value)) == json.loads(text), f"{command}: fields beyond the type"
    return value


def commands_decoded_elsewhere() -> Iterator[str]:
    """Yield the commands whose output a test decodes by name, such as those that need Spark or etcd."""
    for path in TESTS.rglob("*.py"):
        yield from _DECODED.findall(path.read_text(encoding="utf-8"))
