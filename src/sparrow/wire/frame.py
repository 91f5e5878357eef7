"""Encode and decode frames of the remoting protocol: one command per frame.

    bytes   field
    4       length of what follows
    4       top byte: serialization of the header (0 JSON, 1 binary); low 24 bits: header length
    n       header
    rest    body

A binary header:

    bytes   field                       bytes   field
    2       code, low 16 bits           4       flag
    1       language                    4 + n   remark
    2       version                     4 + n   ext fields (`wire.binary_fields`)
    4       opaque

1. Length and header length are checked before anything is decoded or buffered.
2. Ext fields are text in both serializations. JSON has numbers and booleans as strings: Go decodes
   `map[string]string`.
3. In a binary header an empty remark means none, as in Java's `RocketMQSerializable`.
4. A JSON header is decoded in one pass; its ext fields stay raw JSON until `wire.headers` decodes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from struct import error as StructError
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw

from sparrow.model.errors import BadRequest, ProtocolError, Refused, TooLarge
from sparrow.wire import binary_fields
from sparrow.wire.codes import ADVERTISED_VERSION, REQUEST_CODE_ALIASES, Language

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Java's decoder closes the connection on a longer frame (`com.rocketmq.remoting.frameMaxLength`)."""
FRAME_PREFIX_BYTES: Final = 8
_JSON_START = b'{"code":'
"""How every JSON header that we encode begins."""

RESPONSE_FLAG: Final = 0x1
ONE_WAY_FLAG: Final = 0x2

ExtFields = Mapping[str, str] | Raw | None
"""Ext fields: raw JSON if received in a JSON header, else a mapping; None without any."""


class Serialization(IntEnum):
    """The format of a header."""

    JSON = 0
    BINARY = 1


# Accessing an enum member costs more than parsing an integer; the hot path uses these.
_JSON, _BINARY = Serialization.JSON, Serialization.BINARY
_JAVA, _OTHER = Language.JAVA, Language.OTHER


class RemotingCommand(msgspec.Struct, frozen=True, gc=False):
    """A request or a response, with its header fields and body."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: Language = Language.PYTHON
    version: int = ADVERTISED_VERSION
    remark: str | None = None
    ext: ExtFields = None
    body: bytes | memoryview = b""
    serialization: Serialization = Serialization.JSON

    @property
    def is_response(self) -> bool:
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY_FLAG)

    def fields(self) -> Mapping[str, str]:
        """Return all ext fields, including unknown ones: signatures cover them."""
        return decode_ext_fields(self.ext)


def response_to(
    request: RemotingCommand,
    code: int = 0,
    ext: ExtFields = None,
    body: bytes | memoryview = b"",
    remark: str | None = None,
) -> RemotingCommand:
    """Return the response to a request, in the serialization of the request."""
    # The language is JAVA because every client knows it.
    return RemotingCommand(
        code, request.opaque, RESPONSE_FLAG, _JAVA, ADVERTISED_VERSION, remark, ext, body, request.serialization
    )


# -- ext fields ----------------------------------------------------------------------------------


def decode_ext_fields(ext: ExtFields) -> Mapping[str, str]:
    """Return ext fields as a mapping of texts."""
    if ext is None:
        return {}
    if not isinstance(ext, Raw):
        return ext
    try:
        return _read_texts(ext)
    except (ValueError, RecursionError):
        pass  # some clients send numbers, or nulls
    try:
        found = _read_fields(ext)
    except (ValueError, RecursionError) as cause:
        raise BadRequest("the header", "extFields", f"is not a map of texts: {cause}") from cause
    return {name: _text(value) for name, value in (found or {}).items() if value is not None}


def _text(value: str | int | float | bool) -> str:
    """Convert a value to text, as fastjson does for a map of strings."""
    if isinstance(value, str):
        return value
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


_read_texts = msgspec.json.Decoder(dict[str, str]).decode
_read_fields = msgspec.json.Decoder(dict[str, str | int | float | bool | None] | None).decode


# -- whole frames --------------------------------------------------------------------------------


def encode(command: RemotingCommand, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> bytes:
    """Return the whole frame, including the body."""
    start = encode_without_body(command, frame_bytes_max=frame_bytes_max)
    return b"".join((start, command.body)) if command.body else start


def encode_without_body(
    command: RemotingCommand, *, body_bytes: int | None = None, frame_bytes_max: int = FRAME_BYTES_MAX
) -> bytes:
    """Return the frame without its body.

    `body_bytes` is the size of a body that the command does not hold, such as records that are sent from disk.
    """
    try:
        header = _encode_json(command) if command.serialization is _JSON else _encode_binary(command)
    except UnicodeEncodeError as cause:
        raise Refused("the header contains an unpaired surrogate, which is not valid text") from cause
    except StructError as cause:
        raise Refused(f"a number in the header is out of range: {cause}") from cause
    length = 4 + len(header) + (len(command.body) if body_bytes is None else body_bytes)
    if length + 4 > frame_bytes_max:
        raise TooLarge("the frame", length + 4, frame_bytes_max)
    return _pack_start(length, len(header) if command.serialization is _JSON else 1 << 24 | len(header)) + header


def response_code_of(frame: bytes) -> int:
    """Return the code of a frame that `encode` made, without decoding the rest."""
    if frame[4] == Serialization.JSON:
        at = FRAME_PREFIX_BYTES + len(_JSON_START)
        assert frame.startswith(_JSON_START, FRAME_PREFIX_BYTES), "the code comes first"
        return int(frame[at : frame.index(b",", at)])
    return int.from_bytes(frame[FRAME_PREFIX_BYTES : FRAME_PREFIX_BYTES + 2], "big", signed=True)


def decode(frame: bytes, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> RemotingCommand:
    """Decode exactly one frame. Any bytes give a command or a `ProtocolError`."""
    if len(frame) < FRAME_PREFIX_BYTES:
        raise ProtocolError(f"a frame has at least {FRAME_PREFIX_BYTES} bytes, not {len(frame)}")
    frame_bytes, serialization, header_bytes = read_frame_prefix(frame, 0, frame_bytes_max)
    if frame_bytes != len(frame):
        raise ProtocolError(f"the frame declares {frame_bytes} bytes and has {len(frame)}")
    body_at = FRAME_PREFIX_BYTES + header_bytes
    return decode_header_and_body(serialization, frame[FRAME_PREFIX_BYTES:body_at], frame[body_at:])


def read_frame_prefix(
    buffer: bytes | bytearray, at: int, frame_bytes_max: int, header_bytes_max: int = FRAME_BYTES_MAX
) -> tuple[int, int, int]:
    """Return frame size, serialization and header length from the 8 bytes at `at`."""
    length, mark = _unpack_start(buffer, at)
    if length + 4 > frame_bytes_max:
        raise ProtocolError(f"the frame has {length + 4} bytes; the limit is {frame_bytes_max}")
    serialization, header_bytes = mark >> 24, mark & 0xFFFFFF
    if serialization > 1:
        raise ProtocolError(f"unknown header serialization {serialization}")
    if header_bytes + 4 > length:
        raise ProtocolError(f"a header of {header_bytes} bytes does not fit into a frame of {length + 4}")
    if header_bytes > header_bytes_max:
        raise ProtocolError(f"the header has {header_bytes} bytes; the limit is {header_bytes_max}")
    return length + 4, serialization, header_bytes


def decode_header_and_body(serialization: int, header: bytes, body: bytes) -> RemotingCommand:
    """Return the command of a header and a body that were split according to `read_frame_prefix`."""
    if serialization:
        return _decode_binary(header, body)
    try:
        found = _read_header(header)
    except (ValueError, RecursionError) as cause:
        raise ProtocolError(f"the header is not valid JSON: {cause}") from cause
    code, flag = found.code, found.flag
    # Some releases of RocketMQ have the 16-bit pop codes in their code table and send them in JSON, too.
    if not flag & RESPONSE_FLAG and code in REQUEST_CODE_ALIASES:
        code = REQUEST_CODE_ALIASES[code]
    return RemotingCommand(
        code,
        found.opaque,
        flag,
        _LANGUAGES.get(found.language, _OTHER),
        found.version,
        found.remark or None,  # Go writes "" for none
        None if found.ext is _NO_EXT else found.ext,
        body,
        _JSON,
    )


_START = Struct(">II")
_pack_start, _unpack_start = _START.pack, _START.unpack_from


# -- JSON headers --------------------------------------------------------------------------------

_Int32 = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
_NO_EXT = Raw()
_LANGUAGES: dict[str | int | None, Language] = {language.name: language for language in Language} | {
    int(language): language for language in Language
}


class _Header(msgspec.Struct, gc=False):
    code: _Int32
    flag: _Int32 = 0
    language: str | int | None = None
    opaque: _Int32 = 0
    version: _Int32 = 0
    remark: str | None = None
    ext: Raw = msgspec.field(default=_NO_EXT, name="extFields")


class _JsonHeaderOut(msgspec.Struct, gc=False, omit_defaults=True):
    code: int
    flag: int
    language: str
    opaque: int
    version: int
    ext: ExtFields = msgspec.field(default=None, name="extFields")
    remark: str | None = None


_read_header = msgspec.json.Decoder(_Header).decode
_write_header = msgspec.json.Encoder().encode
_LANGUAGE_NAMES = {int(language): language.name for language in Language}


def _encode_json(command: RemotingCommand) -> bytes:
    return _write_header(
        _JsonHeaderOut(
            command.code,
            command.flag,
            _LANGUAGE_NAMES[command.language],
            command.opaque,
            command.version,
            command.ext,
            command.remark,
        )
    )


# -- binary headers ------------------------------------------------------------------------------

_FIXED, _INT = Struct(">hBhiii"), Struct(">i")


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = (command.remark or "").encode()
    ext = binary_fields.encode(decode_ext_fields(command.ext))
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000
    fixed = _FIXED.pack(code, command.language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((fixed, remark, _INT.pack(len(ext)), ext))


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(header)
        ext_at = _FIXED.size + remark_bytes + 4
        if remark_bytes < 0 or ext_at > len(header):
            raise ProtocolError(f"the remark declares {remark_bytes} bytes, in a header of {len(header)}")
        ext_bytes = _INT.unpack_from(header, ext_at - 4)[0]
        if ext_bytes != len(header) - ext_at:
            raise ProtocolError(f"the ext fields declare {ext_bytes} bytes and have {len(header) - ext_at}")
        remark = header[_FIXED.size : ext_at - 4].decode() if remark_bytes else None
    except StructError as cause:
        raise ProtocolError("the binary header is truncated") from cause
    except UnicodeDecodeError as cause:
        raise ProtocolError("the remark of the binary header is not UTF-8") from cause
    if not flag & RESPONSE_FLAG and code in REQUEST_CODE_ALIASES:
        code = REQUEST_CODE_ALIASES[code]
    return RemotingCommand(
        code,
        opaque,
        flag,
        _LANGUAGES.get(language, _OTHER),
        version,
        remark,
        binary_fields.decode(header[ext_at:]) or None,
        body,
        _BINARY,
    )
