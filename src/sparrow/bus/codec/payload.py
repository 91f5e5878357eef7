"""Payloads as JSON that any language reads: text for dates, UUIDs and durations, base64 for bytes.

1. An encoded payload has exactly one reading: no NaN, no lone surrogates, no missing field. Otherwise
   `NotSerializable` is raised.
2. Decimals keep every digit: as text, or with a `naming` as numbers, which .NET expects.
3. A decoder is built once for an annotation. It raises `Undecodable` with the location and the reason.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Union, get_args
from uuid import UUID

import msgspec
import pydantic

from sparrow.bus.codec.field_naming import (
    FieldNaming,
    IncomingFieldRenamer,
    fields_of,
    rename_outgoing_fields,
    split_annotation,
)
from sparrow.bus.errors import NotSerializable, Undecodable

__all__ = [
    "DecodePayload",
    "FieldNaming",
    "annotation_contains",
    "encode_payload",
    "payload_decoder",
    "payload_type_name",
]

DecodePayload = Callable[[bytes], Any]

_LEAVES = (bytes, bytearray, datetime, date, time, timedelta, UUID, Decimal)
_CANNOT = (TypeError, ValueError, OverflowError, RecursionError)
_PROBLEMS_SHOWN_MAX = 5


def encode_payload(name: str, value: object, *, naming: FieldNaming | None = None) -> bytes:
    """Encode the payload of the event `name`; None becomes an empty body."""
    if value is None:
        return b""
    try:
        if naming is None:
            body = _encoder.encode(value)
        else:
            dumped = msgspec.to_builtins(value, builtin_types=_LEAVES, str_keys=True, enc_hook=_by_field_name)
            body = _number_encoder.encode(rename_outgoing_fields(value, dumped, naming))
        if b"null" in body or b"NaN" in body or b"Infinity" in body:
            _refuse_not_a_number(value)
    except RecursionError as error:
        raise NotSerializable(name, "it contains itself, or is nested too deeply") from error
    except _CANNOT as error:
        raise NotSerializable(name, str(error)) from error
    return body


def payload_type_name(value: object) -> str:
    """Return the value of the header cap-msg-type: the short name of the class."""
    return "null" if value is None else type(value).__name__


def payload_decoder(annotation: Any, *, naming: FieldNaming | None = None) -> DecodePayload:
    """Return a function that decodes a body into the annotated type; raise `TypeError` if no library can."""
    if annotation is None or annotation is inspect.Parameter.empty or annotation is object:
        annotation = Any
    bare, _, _ = split_annotation(annotation)
    if bare is bytes:
        return bytes
    parse = _parser(annotation, naming)
    takes_nothing = _takes_none(annotation)
    wanted = _shown(annotation)

    def decode(body: bytes) -> Any:
        if not body:
            if takes_nothing:
                return None
            raise Undecodable(
                f"the body is empty and the handler expects {wanted}: annotate it with `| None` to accept that"
            )
        try:
            return parse(body)
        except pydantic.ValidationError as error:
            raise Undecodable(f"the body is not {wanted}: {_problems(error)}") from error
        except RecursionError as error:
            raise Undecodable("the body is nested too deeply") from error
        except (msgspec.MsgspecError, ArithmeticError, ValueError, TypeError) as error:
            raise Undecodable(f"the body is not {wanted}: {error}") from error

    return decode


# -- encoding --------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Convert a value that msgspec does not support."""
    if isinstance(value, pydantic.BaseModel):
        # By alias, because the same model reads aliases.
        return value.model_dump(by_alias=True)
    return _plain_kind(value)


def _by_field_name(value: Any) -> Any:
    return value.model_dump(by_alias=False) if isinstance(value, pydantic.BaseModel) else _plain_kind(value)


def _plain_kind(value: Any) -> Any:
    for kind in (str, int, float):  # msgspec supports these types, but not their subclasses
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form: convert it to a dict, a dataclass or a model")


def _refuse_not_a_number(value: Any) -> None:
    """Raise if the value contains NaN or infinity: msgspec writes them as null or text."""
    plain = msgspec.to_builtins(value, builtin_types=(Decimal,), str_keys=True, enc_hook=_plain)
    try:
        _strict_encoder.encode(plain)
    except ValueError as error:
        raise ValueError("NaN and infinity have no JSON form") from error


def _finite_text(value: Decimal) -> str:
    if not math.isfinite(value):
        raise ValueError(value)
    return str(value)


_encoder = msgspec.json.Encoder(enc_hook=_plain, decimal_format="string")
_number_encoder = msgspec.json.Encoder(enc_hook=_by_field_name, decimal_format="number")
_strict_encoder = json.JSONEncoder(allow_nan=False, check_circular=False, default=_finite_text)


# -- decoding --------------------------------------------------------------------------------------------------------


def _parser(annotation: Any, naming: FieldNaming | None) -> DecodePayload:
    is_pydantics = annotation_contains(annotation, _is_pydantic, inside_fields=False)
    has_bytes = is_pydantics and annotation_contains(annotation, lambda part: part is bytes)
    if is_pydantics:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(annotation)
        parse: DecodePayload = adapter.validate_json
    else:
        if annotation_contains(annotation, _is_unknown):
            raise TypeError(f"{_shown(annotation)} cannot be decoded from JSON")
        parse = msgspec.json.Decoder(annotation, dec_hook=_made_by_pydantic).decode
    if naming is None and not has_bytes:
        return parse

    read = IncomingFieldRenamer(naming, bytes_too=has_bytes).reader(annotation)
    # Keep the digits of numbers: a float must not be converted to a Decimal.
    digits = msgspec.json.Decoder(float_hook=Decimal)
    if has_bytes:
        # In JSON mode pydantic reads the text of bytes as UTF-8; in Python mode it takes bytes as they are.
        return lambda body: adapter.validate_python(_floats(read(digits.decode(body))))
    return lambda body: parse(_number_encoder.encode(read(digits.decode(body))))


def annotation_contains(annotation: Any, claim: Callable[[Any], bool], *, inside_fields: bool = True) -> bool:
    """Return whether the predicate holds for the annotation or a part of it."""
    seen: list[Any] = []

    def look(part: Any) -> bool:
        part, _, arguments = split_annotation(part)
        if part in seen:
            return False
        seen.append(part)
        if claim(part):
            return True
        fields = fields_of(part, None)
        if fields is not None:
            return inside_fields and any(look(field.annotation) for field in fields)
        return any(map(look, arguments))

    return look(annotation)


def _is_pydantic(part: Any) -> bool:
    return isinstance(part, type) and (
        issubclass(part, pydantic.BaseModel) or pydantic.dataclasses.is_pydantic_dataclass(part)
    )


def _is_unknown(part: Any) -> bool:
    return (
        isinstance(part, type)
        and not _is_pydantic(part)
        and isinstance(msgspec.inspect.type_info(part), msgspec.inspect.CustomType)
    )


def _made_by_pydantic(cls: type, value: Any) -> Any:
    return pydantic.TypeAdapter(cls).validate_python(value)


def _floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _floats(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_floats(child) for child in value]
    return float(value) if isinstance(value, Decimal) else value


def _takes_none(annotation: Any) -> bool:
    annotation, origin, arguments = split_annotation(annotation)
    if origin is Union:
        return any(_takes_none(member) for member in arguments)
    return annotation in (Any, object, None, type(None))


def _shown(annotation: Any) -> str:
    bare, _, _ = split_annotation(annotation)
    if bare is Any:
        return "JSON"
    return bare.__qualname__ if isinstance(bare, type) and not get_args(bare) else str(bare)


def _problems(error: pydantic.ValidationError) -> str:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in found[:_PROBLEMS_SHOWN_MAX]]
    more = len(found) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
