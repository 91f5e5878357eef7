"""The master's metadata as files of RocketMQ's `config` folder, which the store imports when it is opened to lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparrow.store.log.recovery.checkpoint import replace_file
from sparrow.wire.bodies import fastjson

CONFIG_FOLDER = "config"


def save_metadata(store: Path, metadata: dict[str, bytes]) -> None:
    """Write the files. After a crash each has its old or its new content. Blocks."""
    folder = store / CONFIG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in metadata.items():
        replace_file(folder / name, content)


def table_of(metadata: dict[str, bytes], file: str, table: str) -> dict[str, Any]:
    """Return one table of the metadata; empty if the master has none."""
    content = metadata.get(file)
    found = fastjson.parse(content).get(table) if content else None
    return found if isinstance(found, dict) else {}


def rewind_offsets(metadata: dict[str, bytes], lowest: dict[tuple[str, str, int], int]) -> dict[str, bytes]:
    """Return the metadata with committed offsets lowered: (topic, group, queue id) to the offset to read next."""
    if not lowest:
        return metadata
    offsets = table_of(metadata, "consumerOffset.json", "offsetTable")
    for (topic, group, queue_id), offset in lowest.items():
        queues = offsets.setdefault(f"{topic}@{group}", {})
        queues[str(queue_id)] = min(int(queues.get(str(queue_id), offset)), offset)
    return metadata | {"consumerOffset.json": fastjson.emit({"offsetTable": offsets})}
