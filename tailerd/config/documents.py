"""Generate documents from the models, so that they agree: an example and a JSON schema."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

import yaml
from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from tailerd.config.maintenance import MaintenanceConfig, maintenance_class
from tailerd.config.models import Config
from tailerd.config.notifications import NotificationsConfig
from tailerd.config.sections import DiscoverConfig, SinkConfig, TableConfig
from tailerd.registry import FORMATS, SINKS, load_class

EXAMPLE_NAME = "tailerd.example.yaml"
SCHEMA_NAME = "schema.json"

_HEAD = """\
# yaml-language-server: $schema=./schema.json
#
# Every field there is. "default": the value that holds without the line; "example": a value that
# has to be chosen, or the default where the comment names it. Made from the code:
#     python -m tailerd.config config
# Run it with `tailerd run --config FILE`, check it with `tailerd validate FILE`.
# The environment overrides any field: TAILERD__TABLES__ORDERS__SINK__PATH=/out
# is tables.orders.sink.path. Relative paths count from the current directory.
"""

_WAYS = ("sink", "sinks", "maintenance")
"""Fields of a table, of which it has at least one."""

_TABLES: dict[str, tuple[str, str]] = {
    "orders": ("file", "spark"),
    "invoices": ("http", "arrow"),
    "payments": ("console", "arrow"),
    "refunds": ("stream", "spark"),
    "shipments": ("kafka", "arrow"),
    "stock": ("postgres", "arrow"),
}
"""Example tables: name -> (kind of the sink, engine); the first shows every field."""


def documents() -> dict[str, str]:
    """Return the text of each generated document by its file name."""
    return {EXAMPLE_NAME: example(), SCHEMA_NAME: json.dumps(schema(), indent=2) + "\n"}


def schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration file, for editors."""
    whole = Config.model_json_schema()
    definitions = whole["$defs"]
    definitions.pop("SinkConfig", None)
    kinds: list[dict[str, Any]] = []
    for kind in SINKS:
        section = _sink_model(kind).model_json_schema()
        definitions.update(section.pop("$defs", {}))
        definitions[section["title"]] = section
        # Not `anyOf`, with which editors report that a field matches no sink at all.
        kinds.append(
            {
                "if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]},
                "then": {"$ref": f"#/$defs/{section['title']}"},
            }
        )
    about = definitions["TableConfig"]["properties"]["sink"].get("description", "")
    definitions["TableConfig"]["properties"]["sink"] = {
        "description": about,
        "type": "object",
        "properties": {"kind": {"enum": sorted(SINKS)}},
        "required": ["kind"],
        "allOf": kinds,
    }
    for table_format in FORMATS:
        section = maintenance_class(table_format).model_json_schema()
        definitions.update(section.pop("$defs", {}))
        # Merged, because a table's format may be omitted; formats have no specific field in common.
        definitions["MaintenanceConfig"]["properties"] |= section["properties"]
    for name in ("TableConfig", "TemplateConfig"):
        definitions[name]["anyOf"] = [{"required": [way]} for way in _WAYS]
    template = definitions["TemplateConfig"]["properties"]
    for each in (template, definitions["NamedSinkConfig"]["properties"]):
        each["sink"] = definitions["TableConfig"]["properties"]["sink"]
    for name in ("path", "create"):
        del template[name]
    whole["anyOf"] = [{"required": ["tables"]}, {"required": ["discover"]}]
    for name in ("tables", "discover"):
        whole["properties"][name]["minProperties"] = 1
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def example() -> str:
    """Return a configuration file that shows every field and can be loaded."""
    lines = [_HEAD]
    for name, field in Config.model_fields.items():
        if name == "tables":
            lines += ["", *_comment(field.description or "", 0), "tables:"]
            lines += list(_example_tables())
        elif name == "discover":
            lines += ["", *_comment(field.description or "", 0), "discover:", "  lake:"]
            lines += list(_fields(DiscoverConfig, {}, 4, leave_out=("template",)))
            template = DiscoverConfig.model_fields["template"]
            lines += [*_comment(template.description or "", 4), "    template:"]
            lines += ["      engine: arrow", "      from: snapshot", "      sink:"]
            sink = {"kind": "file", "path": "/data/changes/{name}"}
            lines += [f"        {key}: {value}" for key, value in sink.items()]
        elif name == "notifications":
            lines += ["", *_comment(field.description or "", 0), f"{name}:"]
            lines += list(_fields(NotificationsConfig, {}, 2))
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            lines += ["", *_comment(field.description or "", 0), f"{name}:"]
            lines += list(_fields(field.annotation, {}, 2))
        else:
            lines += ["", *_field(name, field, {}, 0)]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _example_tables() -> Iterator[str]:
    for number, (name, (kind, engine)) in enumerate(_TABLES.items()):
        yield f"  {name}:"
        values = {"path": f"/data/{name}", "engine": engine}
        if number == 0:
            yield from _fields(TableConfig, {**values, "from": "snapshot"}, 4)
        else:
            for key, value in values.items():
                yield f"    {key}: {value}"
        yield "    sink:"
        yield from _fields(_sink_model(kind), {"kind": kind}, 6)
        if number == 0:
            yield from _comment(TableConfig.model_fields["maintenance"].description or "", 4)
            yield "    maintenance:"
            yield from _maintenance_fields()


def _maintenance_fields() -> Iterator[str]:
    first, *others = map(maintenance_class, FORMATS)
    for name, field in first.model_fields.items():
        section = _optional_section(field)
        if section is None:
            yield from _field(name, field, {}, 6)
        else:
            yield from _comment(field.description or "", 6)
            yield f"      {name}:"
            yield from _fields(section, {}, 8)
    for model in others:
        for name, field in model.model_fields.items():
            if name not in MaintenanceConfig.model_fields:
                yield from _commented_field(name, field, 6)


def _fields(
    model: type[BaseModel],
    values: Mapping[str, object],
    indent: int,
    leave_out: tuple[str, ...] = ("sink", "maintenance"),
) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name not in leave_out:
            yield from _field(field.alias or name, field, values, indent)


def _field(name: str, field: Any, values: Mapping[str, object], indent: int) -> list[str]:
    lines = _comment(field.description or "", indent)
    examples = field.examples or [field.get_default(call_default_factory=True)]
    value = values.get(name, examples[0])
    is_off = name not in values and field.default is None
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return [*lines, f"{' ' * indent}{name}:", *_fields(field.annotation, {}, indent + 2)]
    if is_off and (section := _optional_section(field)) is not None:
        return [*lines, *_commented_section(name, section, indent)]
    if value is PydanticUndefined:
        value = values[name]
    start = f"{' ' * indent}{'# ' if is_off else ''}{name}: {_yaml(value)}"
    return [*lines, f"{start}    # {_describe_value(field, value)}"]


def _optional_section(field: Any) -> type[BaseModel] | None:
    """Return the section model of an optional field; None if it is not a section."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    is_section = len(kinds) == 1 and isinstance(kinds[0], type) and issubclass(kinds[0], BaseModel)
    return kinds[0] if is_section else None


def _commented_section(name: str, section: type[BaseModel], indent: int) -> list[str]:
    """Return an unset section with all its fields, commented out."""
    margin = f"{' ' * indent}# "
    return [f"{margin}{name}:", *(f"{margin}{line}" for line in _fields(section, {}, 2))]


def _commented_field(name: str, field: Any, indent: int) -> list[str]:
    """Return a field of another format, commented out."""
    if (section := _optional_section(field)) is not None:
        about = _comment(field.description or "", indent)
        return [*about, *_commented_section(name, section, indent)]
    *about, line = _field(name, field, {}, indent)
    margin = f"{' ' * indent}# "
    return [*about, f"{margin}{line.strip().removeprefix('# ')}"]


def _yaml(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _describe_value(field: Any, value: object) -> str:
    """Return whether a value is the default or an example; for an example, also the default."""
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined or isinstance(default, BaseModel):
        return "example"
    if default is None:
        return "example; not set by default"
    try:
        is_default = field.is_required() is False and _equal(field, value, default)
    except (ValueError, TypeError):
        is_default = False
    if is_default:
        return "default"
    return f"example; default: {_yaml(default)}"


def _equal(field: Any, value: object, default: object) -> bool:
    """Return whether a value as written equals the default, such as `30s` for 30 seconds."""
    if value == default or not field.metadata:
        return bool(value == default)
    adapter: TypeAdapter[object] = TypeAdapter(Annotated[field.annotation, *field.metadata])
    return bool(adapter.validate_python(value) == default)


def _comment(text: str, indent: int) -> list[str]:
    margin = f"{' ' * indent}# "
    return textwrap.wrap(text, 96, initial_indent=margin, subsequent_indent=margin)


def _sink_model(kind: str) -> type[SinkConfig]:
    model = load_class(SINKS[kind])
    assert issubclass(model, SinkConfig)
    return model
