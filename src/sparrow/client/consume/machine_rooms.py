"""Machine rooms, as names tell them: brokers are named `room@name`, and consumers `ip@room@name`."""

from __future__ import annotations


def room_of_broker(broker_name: str) -> str | None:
    """Return the room of a broker named `room@name`; None for any other name."""
    # As Java's AllocateMessageQueueByMachineRoom: its split drops empty parts at the end.
    parts = broker_name.rstrip("@").split("@")
    return parts[0] or None if len(parts) == 2 else None


def room_of_client(client_id: str) -> str | None:
    """Return the room of a client whose `instance_name` is `room@name`; None for any other instance name."""
    _, _, instance_name = client_id.partition("@")
    room, at, _ = instance_name.partition("@")
    return room or None if at else None
