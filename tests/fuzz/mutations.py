"""Random changes of valid inputs, for fuzzing without a coverage-guided fuzzer. A seed gives the same inputs again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_INTERESTING = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"-1",
    b"99999999999999999999",
    b"1e999",
    b"null",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\ud800",
    b"\\",
    b"\x01",
    b"\x02",
    b"'",
    b"%",
    b"(",
    "é😀".encode(),
)
_CHANGES_MAX = 6


def mutated(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield the seeds, and then changed ones until there are `count` inputs."""
    chance = random.Random(seed)
    yield from seeds[:count]
    for _ in range(count - len(seeds)):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, _CHANGES_MAX)):
            _change(data, seeds, chance)
        yield bytes(data)


def _change(data: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randint(0, len(data))
    match chance.randrange(7):
        case 0 if at < len(data):
            data[at] = chance.randrange(256)
        case 1 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 2:
            data[at:at] = chance.choice(_INTERESTING)
        case 3:
            piece = chance.choice(_INTERESTING)
            data[at : at + len(piece)] = piece
        case 4:
            del data[at : at + chance.randint(1, 8)]
        case 5:
            other = chance.choice(seeds)
            start = chance.randint(0, len(other))
            data[at:at] = other[start : start + chance.randint(1, 64)]
        case 6 if at < len(data):
            data[at:at] = data[at : at + chance.randint(1, 32)] * chance.randint(1, 4)
