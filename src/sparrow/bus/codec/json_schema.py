"""JSON Schema of payloads, derived from annotations by pydantic for its models and by msgspec for the rest."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic

from sparrow.bus.codec.field_naming import FieldNaming, fields_of, split_annotation
from sparrow.bus.codec.payload import annotation_contains

_PLACE = "#/components/schemas/"

JsonSchema = dict[str, Any]


class SchemaCollection:
    """Collects the components that schemas refer to, one per model. Two models with one name become two components."""

    def __init__(self, naming: FieldNaming | None = None) -> None:
        self._naming: FieldNaming | None = naming
        self._found: dict[str, JsonSchema] = {}

    def schema(self, annotation: Any) -> JsonSchema:
        """Return the schema with the field names of the wire; `{}` for a type that says nothing about its JSON."""
        if annotation is None or annotation is Any or annotation is object:
            return {}
        try:
            schema, components = _described(annotation)
        except (TypeError, ValueError, pydantic.errors.PydanticUserError):
            return {}
        if self._naming is not None:
            names = self._wire_names(annotation)
            schema = _as_dotnet(schema)
            components = {name: _renamed(_as_dotnet(each), names.get(name, {})) for name, each in components.items()}
        return self._taken_in(schema, components)

    def components(self) -> dict[str, JsonSchema]:
        return dict(sorted(self._found.items()))

    def _wire_names(self, annotation: Any) -> dict[str, dict[str, str]]:
        names: dict[str, dict[str, str]] = {}

        def note(part: Any) -> bool:
            fields = fields_of(part, self._naming)
            if fields is not None:
                names[part.__name__] = {field.dumped: field.wire for field in fields}
            return False

        annotation_contains(annotation, note)
        return names

    def _taken_in(self, schema: JsonSchema, components: dict[str, JsonSchema]) -> JsonSchema:
        given: dict[str, str] = {}
        for name, component in components.items():
            free, number = name, 2
            while free in self._found and self._found[free] != component:
                free, number = f"{name}-{number}", number + 1
            given[_PLACE + name] = _PLACE + free
        for name, component in components.items():
            self._found[given[_PLACE + name].removeprefix(_PLACE)] = _pointing(component, given)
        result: JsonSchema = _pointing(schema, given)
        return result


def _described(annotation: Any) -> tuple[JsonSchema, dict[str, JsonSchema]]:
    components: dict[str, JsonSchema] = {}

    def by_pydantic(part: Any) -> JsonSchema:
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(part)
        schema = adapter.json_schema(ref_template=_PLACE + "{model}")
        components.update(schema.pop("$defs", {}))
        bare, _, _ = split_annotation(part)
        if isinstance(bare, type) and "properties" in schema:
            components[bare.__name__] = schema
            return {"$ref": _PLACE + bare.__name__}
        return schema

    if annotation_contains(annotation, _is_pydantic, inside_fields=False):
        return by_pydantic(annotation), components
    (schema,), found = msgspec.json.schema_components(
        [annotation], ref_template=_PLACE + "{name}", schema_hook=by_pydantic
    )
    return schema, components | found


def _renamed(schema: JsonSchema, names: dict[str, str]) -> JsonSchema:
    changed = dict(schema)
    if "properties" in schema:
        changed["properties"] = {names.get(key, key): child for key, child in schema["properties"].items()}
    if "required" in schema:
        changed["required"] = [names.get(key, key) for key in schema["required"]]
    return changed


def _as_dotnet(schema: Any) -> Any:
    """Describe decimals as numbers and durations as .NET's TimeSpan, as they travel with renamed fields."""
    if isinstance(schema, list):
        return [_as_dotnet(child) for child in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {**schema, "type": "number"}
    if schema.get("format") == "duration":
        return {**schema, "format": "time-span"}
    return {key: _as_dotnet(child) for key, child in schema.items()}


def _pointing(schema: Any, given: dict[str, str]) -> Any:
    """Replace references by those to the final component names."""
    if isinstance(schema, list):
        return [_pointing(child, given) for child in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: given.get(child, child) if key == "$ref" and isinstance(child, str) else _pointing(child, given)
        for key, child in schema.items()
    }


def _is_pydantic(part: Any) -> bool:
    return isinstance(part, type) and (
        issubclass(part, pydantic.BaseModel) or pydantic.dataclasses.is_pydantic_dataclass(part)
    )
