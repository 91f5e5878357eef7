"""Version 1 of column `properties`, which brokers stored before schema version 5.

    version 1 byte | count 2 bytes | count times: name length 2 bytes | value length 4 bytes | name | value

All integers are big-endian. Names that start with `sys.` belong to the broker: fields of a record that the table has no
columns for, as decimal numbers.
"""

from __future__ import annotations

import ipaddress
from struct import Struct

from sparrow.model.errors import CorruptRecord
from sparrow.model.message import Draft

_LENGTHS = Struct(">HI")


def draft_of_row_v1(body: bytes, source_ip: int, packed: bytes) -> Draft:
    """Return the message as it was sent."""
    properties, system = _split(packed)
    source = system.get(b"sys.src")
    ip = ipaddress.IPv6Address(source.decode()).packed if source is not None else source_ip.to_bytes(4, "big")
    return Draft(
        body=body,
        properties=properties,
        flag=int(system.get(b"sys.flag", 0)),
        sys_flag=int(system.get(b"sys.sysflag", 0)),
        born_ms=int(system.get(b"sys.born", 0)),
        born_host=ip + int(system.get(b"sys.port", 0)).to_bytes(4, "big"),
        reconsume_times=int(system.get(b"sys.times", 0)),
        prepared_offset=int(system.get(b"sys.prepared", 0)),
    )


def _split(packed: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Decode a column into the sender's property string and the broker's pairs."""
    at, parts, system = 3, [], {}
    for _ in range(_count_in(packed)):
        if at + 6 > len(packed):
            raise CorruptRecord(0, f"its properties end after {len(packed)} bytes")
        name_bytes, value_bytes = _LENGTHS.unpack_from(packed, at)
        middle = at + 6 + name_bytes
        end = middle + value_bytes
        name = packed[at + 6 : middle]
        if name[:4] == b"sys.":
            system[name] = packed[middle:end]
        else:
            parts.append(b"%b\x01%b\x02" % (name, packed[middle:end]))
        at = end
    if packed and at != len(packed):
        raise CorruptRecord(0, f"its properties have {len(packed)} bytes instead of {at}")
    return b"".join(parts), system


def _count_in(packed: bytes) -> int:
    if not packed:
        return 0
    if packed[0] != 1:
        raise CorruptRecord(0, f"its properties have version {packed[0]}; this Sparrow reads versions 1 and 2")
    return int.from_bytes(packed[1:3], "big")
