"""Field names as .NET spells them: `order_id` becomes `OrderId` or `orderId`, and a timedelta a TimeSpan.

Only fields of models are renamed (pydantic, msgspec, dataclasses); the keys of a dict are data. A field whose model
defines an alias keeps it.
"""

from __future__ import annotations

import base64
import dataclasses
import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
import pydantic

from sparrow.bus.codec.headers import format_time_span, parse_time_span

FieldNaming = Literal["pascal", "camel"]
ReadValue = Callable[[Any], Any]


class ModelField(NamedTuple):
    attribute: str
    dumped: str
    """Its key in the plain form that its library creates."""
    wire: str
    annotation: Any


def wire_field_name(name: str, naming: FieldNaming | None) -> str:
    if naming is None:
        return name
    bare = name.lstrip("_")
    first, *others = bare.split("_")
    first = first[:1].upper() + first[1:] if naming == "pascal" else first[:1].lower() + first[1:]
    return name[: len(name) - len(bare)] + first + "".join(part[:1].upper() + part[1:] for part in others)


@lru_cache(maxsize=4096)
def fields_of(cls: Any, naming: FieldNaming | None) -> tuple[ModelField, ...] | None:
    """Return the fields of a model; None for everything else."""
    plain = get_origin(cls) or cls
    if not isinstance(plain, type):
        return None
    found = _fields_of(plain, cls, naming)
    if found is not None and len({field.wire for field in found}) < len(found):
        raise TypeError(f"two fields of {plain.__name__} have the same name when written as {naming} case")
    return found


def _fields_of(cls: type, generic: Any, naming: FieldNaming | None) -> tuple[ModelField, ...] | None:
    """Return the fields of a model; `generic` is the class with its type arguments, if it has some."""
    if issubclass(cls, pydantic.BaseModel):
        plain = [
            ModelField(name, name, field.serialization_alias or wire_field_name(name, naming), field.annotation)
            for name, field in cls.model_fields.items()
        ]
        computed = [
            ModelField(name, name, field.alias or wire_field_name(name, naming), field.return_type)
            for name, field in cls.model_computed_fields.items()
        ]
        return (*plain, *computed)
    if issubclass(cls, msgspec.Struct):
        return tuple(
            ModelField(
                f.name,
                f.encode_name,
                wire_field_name(f.name, naming) if f.encode_name == f.name else f.encode_name,
                f.type,
            )
            for f in msgspec.structs.fields(generic)
        )
    if dataclasses.is_dataclass(cls):
        hints = get_type_hints(cls, include_extras=True)
        return tuple(
            ModelField(f.name, f.name, wire_field_name(f.name, naming), hints[f.name]) for f in dataclasses.fields(cls)
        )
    return None


def rename_outgoing_fields(value: Any, dumped: Any, naming: FieldNaming) -> Any:
    """Return `dumped`, the plain form of `value`, with the fields renamed.

    Both are walked side by side, because a dict does not show whether it was a model.
    """
    if isinstance(value, pydantic.RootModel):
        return rename_outgoing_fields(value.root, dumped, naming)
    if isinstance(dumped, timedelta):
        return format_time_span(dumped)
    if isinstance(dumped, dict):
        cls: Any = type(value)
        fields = fields_of(cls, naming)
        if fields is not None:
            by_key = {field.dumped: field for field in fields}
            return {
                (field.wire if (field := by_key.get(key)) else key): rename_outgoing_fields(
                    getattr(value, field.attribute, child) if field else child, child, naming
                )
                for key, child in dumped.items()
            }
        if isinstance(value, Mapping) and len(value) == len(dumped):
            pairs = zip(value.values(), dumped.items(), strict=True)
            return {key: rename_outgoing_fields(original, child, naming) for original, (key, child) in pairs}
    is_collection = isinstance(dumped, (list, tuple)) and isinstance(value, (list, tuple, set, frozenset))
    if is_collection and len(value) == len(dumped):
        return [rename_outgoing_fields(original, child, naming) for original, child in zip(value, dumped, strict=True)]
    return dumped


class IncomingFieldRenamer:
    """Converts parsed JSON as .NET writes it into JSON as pydantic and msgspec read it.

    Both spellings of a field are accepted. Decimals become text, which every library reads exactly. With `bytes_too`,
    base64 text becomes bytes where bytes are declared.
    """

    def __init__(self, naming: FieldNaming | None, *, bytes_too: bool = False) -> None:
        self._naming, self._bytes_too = naming, bytes_too
        self._models: dict[Any, ReadValue] = {}

    def reader(self, annotation: Any) -> ReadValue:
        annotation, origin, arguments = split_annotation(annotation)
        if fields_of(annotation, self._naming) is not None:
            return self._model_reader(annotation)
        if annotation is timedelta:
            return _read_span
        if annotation is Decimal:
            return lambda value: str(value) if isinstance(value, (Decimal, int)) else value
        if annotation is bytes and self._bytes_too:
            return _read_base64
        if origin is Union:
            members = [self.reader(member) for member in arguments if not _is_ambiguous(member, arguments)]
            return lambda value: _in_turn(members, value)
        if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
            of_value = self.reader(arguments[1])
            return lambda value: (
                {key: of_value(child) for key, child in value.items()} if isinstance(value, dict) else value
            )
        if origin is tuple and arguments[1:] != (Ellipsis,):
            each = [self.reader(argument) for argument in arguments]
            return lambda value: (
                [read(child) for read, child in zip(each, value, strict=True)]
                if isinstance(value, list) and len(value) == len(each)
                else value
            )
        if isinstance(origin, type) and arguments and origin is not type:
            of_item = self.reader(arguments[0])
            return lambda value: [of_item(child) for child in value] if isinstance(value, list) else value
        return self._model_reader(annotation)

    def _model_reader(self, cls: Any) -> ReadValue:
        if cls in self._models:
            return self._models[cls]
        if isinstance(cls, type) and issubclass(cls, pydantic.RootModel):
            return self.reader(cls.model_fields["root"].annotation)
        table: dict[str, tuple[str, ReadValue]] = {}

        def read(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            changed = {}
            for key, child in value.items():
                name, of_field = table.get(key, (key, _as_is))
                changed[name] = of_field(child)
            return changed

        inputs = _input_names(cls, self._naming)
        if not inputs:
            return _as_is
        self._models[cls] = read  # before its fields: a model may contain itself
        for key, (name, annotation) in inputs.items():
            table[key] = (name, self.reader(annotation))
        return read


def _input_names(cls: Any, naming: FieldNaming | None) -> dict[str, tuple[str, Any]]:
    """Map each possible wire name of a field to the name its library expects, and its annotation."""
    if is_typeddict(cls):
        return {name: (name, hint) for name, hint in get_type_hints(cls, include_extras=True).items()}
    fields = fields_of(cls, naming)
    if fields is None:
        return {}
    if isinstance(cls, type) and issubclass(cls, pydantic.BaseModel):
        names = {}
        for name, field in cls.model_fields.items():
            alias = field.validation_alias
            if alias is None:
                names[name] = names[wire_field_name(name, naming)] = (name, field.annotation)
            elif isinstance(alias, str):
                names[alias] = (alias, field.annotation)
        return names
    return {
        key: (field.dumped, field.annotation) for field in fields for key in {field.dumped, field.attribute, field.wire}
    }


def split_annotation(annotation: Any) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return the annotation without `Annotated`, its origin (`Union` for `X | Y`) and its arguments."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin = get_origin(annotation)
    return annotation, Union if origin is types.UnionType else origin, get_args(annotation)


def _is_ambiguous(member: Any, union: tuple[Any, ...]) -> bool:
    """Return whether another member of the union reads the same JSON."""
    return (member in (timedelta, bytes, Decimal) and str in union) or (
        member is Decimal and (int in union or float in union)
    )


def _as_is(value: Any) -> Any:
    return value


def _read_span(value: Any) -> Any:
    span = parse_time_span(value) if isinstance(value, str) else None
    return value if span is None else span


def _read_base64(value: Any) -> Any:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def _in_turn(readers: list[ReadValue], value: Any) -> Any:
    for read in readers:
        value = read(value)
    return value
