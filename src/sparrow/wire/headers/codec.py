"""Convert header structs to ext fields and back. Ext fields are text; the fields of a struct have types.

msgspec decodes a header in one pass. Only if that fails, a second, slow pass finds the invalid field.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw

from sparrow.model.errors import BadRequest
from sparrow.wire.frame import ExtFields, decode_ext_fields

JavaInt = Annotated[int, Meta(ge=-0x8000_0000, le=0x7FFF_FFFF)]
"""The range of Java's int, and so of 4 bytes in a record."""
JavaLong = Annotated[int, Meta(ge=-0x8000_0000_0000_0000, le=0x7FFF_FFFF_FFFF_FFFF)]

if TYPE_CHECKING:
    JavaBool = bool
else:
    # msgspec decodes "1" as true and refuses "yes"; for Java's Boolean.parseBoolean both are false. msgspec passes an
    # unknown type to the decode hook, and the metaclass makes the resulting bool an instance of that type. (A bound
    # method of a tuple, because msgspec calls it for every flag of every header, and it needs no Python frame.)
    class _Flags(type):
        __instancecheck__ = (True, False).__contains__

    class JavaBool(metaclass=_Flags):
        """A bool with Java's parsing rules."""


class Header(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The ext fields of one kind of request or response. Fields without a default are required."""


H = TypeVar("H", bound=Header)


def read(kind: type[H], ext: ExtFields) -> H:
    """Decode ext fields as a header. `BadRequest` names a missing or invalid field."""
    try:
        if isinstance(ext, Raw):
            header: H = _reader(kind)(ext)
            return header
        return msgspec.convert(ext or {}, kind, strict=False, dec_hook=_flag)
    except (ValueError, RecursionError) as cause:
        return _read_slowly(kind, decode_ext_fields(ext), cause)


def write(header: Header) -> dict[str, str]:
    """Encode a header as ext fields, without fields that are None."""
    ext = {}
    for name, value in zip(header.__struct_encode_fields__, _values_of(header)):  # noqa: B905  (strict costs 0.1 µs)
        if value is None:
            continue
        kind = value.__class__
        if kind is str:
            ext[name] = value
        elif kind is bool:
            ext[name] = "true" if value else "false"
        else:
            ext[name] = f"{value}"
    return ext


_values_of = msgspec.structs.astuple


@cache
def _reader(kind: type[H]) -> Any:
    return msgspec.json.Decoder(kind, strict=False, dec_hook=_flag).decode


def _flag(_: type, value: object) -> bool:
    if value == "false":
        return False
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _read_slowly(kind: type[H], fields: Any, cause: Exception) -> H:
    """Decode field by field: a text where JSON has a number is accepted; else the invalid field is reported."""
    found = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if name not in fields:
            if field.required:
                raise BadRequest(kind.__name__, name, "is missing")
            continue
        try:
            found[field.name] = msgspec.convert(fields[name], field.type, strict=False, dec_hook=_flag)
        except ValueError as problem:
            raise BadRequest(kind.__name__, name, f"is {fields[name][:80]!r}: {problem}") from cause
    return kind(**found)
