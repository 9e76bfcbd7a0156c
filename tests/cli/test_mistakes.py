"""All mistakes of a configuration at once, with file, line and column; references in values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tailerd.config import Config, load_config
from tailerd.config.documents import schema
from tailerd.config.loading import parse_config
from tailerd.config.positions import parse_field_path, positions
from tailerd.errors import ConfigError
from tests.cli.commands import Commands
from tests.conftest import ROOT

GOOD = """\
engine: arrow
http: {listen: "127.0.0.1:0"}
tables:
  orders:
    path: /data/orders
    sink: {kind: console}
"""
MANY = """\
engin: spark
http:
  listen: localhost
tables:
  a.b:
    path: /x
    max_files_per_batch: 0
    sink: {kind: fil, path: out}
  c:
    path: /y
    max_bytes_per_batch: 3 quux
    sink:
      kind: kafka
      topc: x
  d:
    path: ${NOWHERE}
    sink: {kind: console}
  e:
    pth: /z
"""


def refused(text: str, **environment: str) -> list[str]:
    """The lines of the error for a configuration."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, environment, where="t.yaml")
    return str(caught.value).splitlines()


def test_mistakes_of_every_layer_are_told_at_once_in_the_order_of_the_file() -> None:
    head, *lines = [line.strip() for line in refused(MANY)]
    assert head == f"t.yaml has {len(lines)} mistakes:"
    locations = [line.partition(": ")[0] for line in lines]
    assert locations == [
        *("t.yaml:1:1", "t.yaml:3:3", "t.yaml:7:5", "t.yaml:8:12", "t.yaml:11:5", "t.yaml:12:5"),
        *("t.yaml:12:5", "t.yaml:14:7", "t.yaml:16:5", "t.yaml:18:3", "t.yaml:19:5"),
    ]


@pytest.mark.parametrize(
    "words",
    [
        "Did you mean `engine`?",
        "tables.a.b.max_files_per_batch is 0",
        "Did you mean `file`?",
        "tables.c.sink.bootstrap_servers is required: ",
        "The environment variable NOWHERE is not set.",
        "Did you mean `path`?",
    ],
)
def test_each_mistake_says_what_is_wrong(words: str) -> None:
    assert words in "\n".join(refused(MANY))


def test_no_sentence_ends_twice() -> None:
    assert "?." not in "\n".join(refused(MANY))
    assert ".." not in "\n".join(refused(MANY)).replace("...", "")


@pytest.mark.parametrize("broken", ["engine", "http.listen", "tables.orders.path", "memory"])
@pytest.mark.parametrize(
    "other", ["state", "tables.orders.max_attempts", "tables.orders.sink.kind"]
)
def test_two_mistakes_anywhere_are_two_lines(broken: str, other: str) -> None:
    content = yaml.safe_load(GOOD)
    for field in (broken, other):
        *above, last = field.split(".")
        section = content
        for part in above:
            section = section[part]
        section[last] = ["nonsense"]
    head, *lines = refused(yaml.safe_dump(content))
    assert head == "t.yaml has 2 mistakes:"
    assert sorted(field for field in (broken, other) for line in lines if f" {field}" in line) == (
        sorted([broken, other])
    )


def test_a_conflict_between_tables_is_told_besides_mistakes_in_them() -> None:
    sink = "{kind: file, path: out}"
    text = f"""\
engine: arrow
tables:
  a: {{path: x, sink: {sink}}}
  b: {{path: y, sink: {sink}}}
  c: {{path: z, on_gap: maybe, sink: {{kind: console}}}}
"""
    lines = "\n".join(refused(text))
    assert "tables.b and tables.a both have the location" in lines
    assert "tables.c.on_gap is 'maybe'" in lines


def test_a_value_of_the_environment_is_told_by_its_variable() -> None:
    [line] = refused(GOOD, TAILERD__TABLES__ORDERS__MAX_ATTEMPTS="none")
    assert line.startswith("TAILERD__TABLES__ORDERS__MAX_ATTEMPTS: tables.orders.max_attempts is")


def test_two_mistakes_in_a_sink_do_not_hide_those_of_its_table() -> None:
    sink = "{kind: kafka, topc: x, kye: y}"
    head, *lines = refused(f"engine: arrow\ntables: {{a: {{path: x, pth: y, sink: {sink}}}}}")
    assert head == "t.yaml has 5 mistakes:"
    assert "tables.a.pth is not a known field" in "".join(lines)


def test_very_many_mistakes_are_bounded() -> None:
    tables = {f"t{n}": {"path": "x", "sink": {"kind": "console"}, "oops": 1} for n in range(80)}
    head, *lines = refused(yaml.safe_dump({"engine": "arrow", "tables": tables}))
    assert head == "t.yaml has 80 mistakes:"
    assert (len(lines), lines[-1].strip()) == (51, "and 30 more")


def test_the_commands_name_the_file_once_in_front_of_line_and_column(
    tmp_path: Path, command: Commands
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(GOOD + "    max_attempts: 0\n")
    ran = command("validate", path)
    assert ran.status == 2
    assert ran.errors.startswith(f"error[config]: {path}:7:5: tables.orders.max_attempts is 0")


# ---------------------------------------------------------------- references


def test_variables_and_files_fill_values(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t-token-of-16\n")
    text = GOOD.replace('{listen: "127.0.0.1:0"}', f'{{token: "${{file:{secret}}}"}}')
    text = text.replace("/data/orders", "${LAKE}/${NAME:-orders}/$${x}")
    config = parse_config(text, {"LAKE": "/lake"}, where="t.yaml")
    assert config.tables["orders"].path == "/lake/orders/${x}"
    assert config.http.token is not None
    assert config.http.token.get_secret_value() == "s3cr3t-token-of-16"


def test_a_number_may_come_from_a_variable() -> None:
    text = GOOD + "    max_files_per_batch: ${FILES}\n"
    config = parse_config(text, {"FILES": "7"}, where="t.yaml")
    assert config.tables["orders"].max_files_per_batch == 7


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${NOWHERE}", "NOWHERE is not set"),
        ("${file:/nowhere/secret}", "/nowhere/secret cannot be read"),
        ("${}", "is not a valid reference"),
        ("${a b}", "is not a valid reference"),
    ],
)
def test_a_reference_to_nothing_is_named_with_its_field(reference: str, words: str) -> None:
    [line] = refused(GOOD.replace("/data/orders", f'"{reference}"'))
    assert line.startswith("t.yaml:5:5: tables.orders.path: ")
    assert words in line


def test_what_came_from_a_reference_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hunter2hunter2")
    text = GOOD + f'    on_gap: "${{file:{tmp_path}/secret}}"\n'
    [line] = refused(text)
    assert "hunter2" not in line
    assert "on_gap" in line


# ---------------------------------------------------------------- locations of fields


@given(
    st.recursive(
        st.integers(),
        lambda below: (
            st.dictionaries(
                st.from_regex(r"[a-z][a-z0-9._-]{0,6}", fullmatch=True), below, max_size=3
            )
            | st.lists(below, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_every_field_has_a_position_and_is_found_by_its_dotted_path(content: Any) -> None:
    text = yaml.safe_dump(content)
    lines = text.splitlines()
    for path, at in positions(text).items():
        here = content
        for part in path:
            here = here[int(part)] if isinstance(here, list) else here[part]
        assert 1 <= at.column <= len(lines[at.line - 1]) + 1


def test_names_with_dots_are_found() -> None:
    content = {"tables": {"a.b": {"sink": {"kind": 1}}, "a": {"b": 1}}}
    assert parse_field_path("tables.a.b.sink.kind", content) == ("tables", "a.b", "sink", "kind")
    assert parse_field_path("tables.a.missing", content) == ("tables", "a", "missing")


# ---------------------------------------------------------------- documents

NOT_OURS = {"alerts", "compose"}
SHIPPED = [path for path in sorted((ROOT / "config").glob("*.yaml")) if path.stem not in NOT_OURS]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_every_shipped_file_names_its_schema(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=./schema.json\n")


def test_the_schema_says_which_field_a_sink_lacks_and_nothing_of_other_sinks() -> None:
    content = yaml.safe_load(GOOD)
    content["tables"]["orders"]["sink"] = {"kind": "kafka", "topic": "t"}
    errors = list(jsonschema.Draft202012Validator(schema()).iter_errors(content))
    assert [error.message for error in errors] == ["'bootstrap_servers' is a required property"]


def test_the_example_tells_defaults_from_examples() -> None:
    lines = (ROOT / "config/tailerd.example.yaml").read_text().splitlines()
    fields = {line.strip().partition(":")[0]: line for line in lines if "    # " in line}
    assert fields["engine"].endswith("# default") or "default: " in fields["engine"]
    assert fields["memory"].endswith("# default")
    assert fields["master"].endswith("# example; default: local[*]")
    assert isinstance(load_config(ROOT / "config/tailerd.example.yaml"), Config)


def test_a_command_for_an_account_that_is_not_named_says_how_to_name_it(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    ran = command("inspect", "az://lake/orders")
    assert ran.errors.startswith("error[access_denied]: az://lake cannot be accessed")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in ran.errors
