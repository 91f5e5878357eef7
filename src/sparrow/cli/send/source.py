"""Where `sparrow send` gets its messages: an argument, a whole file, lines of text, or lines of JSON."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from sparrow.model.errors import Refused, TooLarge
from sparrow.operations.message_lines import MessageLine, parse_message_line

LINE_BYTES_MAX = 24 << 20
"""A message of 16 MiB, the largest that any broker accepts, as base64."""
_READ_BYTES = 1 << 16
_CHUNKS_AHEAD_MAX = 16


class SourceLine(msgspec.Struct, frozen=True):
    """One message to send: a message as JSON, a plain body, or why the line is neither."""

    number: int
    """The number of the line, from 1 on."""
    content: MessageLine | bytes | Refused
    size_bytes: int
    """The bytes of the input that it took, for the progress bar."""


async def read_source(
    argument: str | None, file: Path | None, *, is_jsonl: bool, is_lines: bool
) -> AsyncIterator[SourceLine]:
    """Yield the messages of the command in order."""
    if argument is not None:
        content = _read_line(argument.encode(), is_jsonl=is_jsonl)
        yield SourceLine(1, content, len(argument))
    elif file is not None and not (is_jsonl or is_lines):
        body = await asyncio.to_thread(_read_file, file)
        yield SourceLine(1, body, len(body))
    else:
        number = 0
        async for line in _read_lines(file):
            number += 1
            if line.strip():
                yield SourceLine(number, _read_line(line, is_jsonl=is_jsonl), len(line) + 1)


def _read_line(line: bytes, *, is_jsonl: bool) -> MessageLine | bytes | Refused:
    if not is_jsonl:
        return line
    try:
        return parse_message_line(line)
    except Refused as error:
        return error


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as cause:
        raise Refused(f"cannot read {path}: {cause.strerror or cause}") from cause


async def _read_lines(file: Path | None) -> AsyncIterator[bytes]:
    """Yield lines without their ends. A line is yielded as soon as it is there, however slowly the others come."""
    pending = bytearray()
    async for chunk in _read_chunks(file):
        pending += chunk
        *lines, rest = pending.split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise TooLarge("a line of the input", len(rest), LINE_BYTES_MAX)
        for line in lines:
            yield bytes(line).removesuffix(b"\r")
        pending = rest
    if pending:
        yield bytes(pending)


async def _read_chunks(file: Path | None) -> AsyncIterator[bytes]:
    """Yield what a daemon thread reads: a pipe that stays silent must not keep the process from ending."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS_AHEAD_MAX)

    def read() -> None:
        def put(item: bytes | OSError) -> None:
            asyncio.run_coroutine_threadsafe(chunks.put(item), loop).result()

        try:
            stream: BinaryIO = sys.stdin.buffer if file is None else file.open("rb")
            with stream:
                while chunk := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
                    put(chunk)
            put(b"")
        except OSError as error:
            put(error)
        except (RuntimeError, ValueError):
            pass  # the loop or the stream is closed: the command has ended

    threading.Thread(target=read, name="sparrow send input", daemon=True).start()
    while item := await chunks.get():
        if isinstance(item, OSError):
            raise Refused(f"cannot read {file or 'standard input'}: {item.strerror or item}") from item
        yield item
