"""The configuration: what is accepted, what is refused, and how the refusal reads."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from tailerd.config import Config, load_config
from tailerd.config.documents import documents, schema
from tailerd.config.explain import ELSEWHERE
from tailerd.config.loading import parse_config
from tailerd.config.mistakes import all_mistakes
from tailerd.config.sections import TableConfig
from tailerd.errors import ConfigError
from tailerd.sinks.file.config import FileSinkConfig
from tailerd.sinks.kafka.config import KafkaSinkConfig
from tests.conftest import ROOT

MINIMAL = """
tables:
  orders:
    path: /data/orders
    sink: {kind: file, path: /data/out}
"""
STREAMED = MINIMAL.replace("kind: file, path: /data/out", "kind: stream, format: json")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(text: str, **environment: str) -> Config:
        path = tmp_path / "tailerd.yaml"
        path.write_text(text)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return load_config(path)

    return load


def test_a_small_file_gets_the_defaults_of_the_contract(load: Any) -> None:
    config = load(MINIMAL)
    table = config.tables["orders"]
    assert (config.engine, config.state) == ("auto", "./state")
    assert (config.http.listen, config.spark.master) == ("127.0.0.1:9464", "local[*]")
    assert (table.start, table.changes, table.max_files_per_batch) == ("latest", "auto", 1000)
    assert table.max_bytes_per_batch == 256 * 1024**2
    assert isinstance(table.sink, FileSinkConfig)
    assert config.select_engine("orders") == "spark"


def test_the_environment_wins_whatever_its_case(load: Any) -> None:
    config = load(
        MINIMAL.replace("orders:", "Orders-EU:"),
        TAILERD__TABLES__ORDERS_EU__SINK__FORMAT="parquet",
        TAILERD__ENGINE="arrow",
        tailerd__http__listen="localhost:0",
        TAILERD__TABLES__ORDERS_EU__FROM="12",
        TAILERD__SHUTDOWN_TIMEOUT="2m",
    )
    table = config.tables["Orders-EU"]
    assert (config.engine, config.http.listen, config.shutdown_timeout) == (
        "arrow",
        "localhost:0",
        120.0,
    )
    assert (table.start, table.sink.format, table.sink.path) == ("12", "parquet", "/data/out")


def test_the_environment_can_bring_a_table_of_its_own(load: Any) -> None:
    config = load(
        MINIMAL,
        TAILERD__TABLES__NEW__PATH="/new",
        TAILERD__TABLES__NEW__SINK__KIND="console",
    )
    assert config.tables["new"].sink.kind == "console"


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64 KiB", 65536), ("1.5MB", 1_500_000), ("2gib", 2 * 1024**3)],
)
def test_sizes_are_read_with_their_unit(load: Any, text: str, size: int) -> None:
    lines = f"{MINIMAL}    max_bytes_per_batch: {text}\n"
    if size < 1024:
        with pytest.raises(ConfigError, match="at least 1024"):
            load(lines)
    else:
        assert load(lines).tables["orders"].max_bytes_per_batch == size


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("snapshot", "snapshot"),
        ("42", "42"),
        ("2024-02-29", "2024-02-29"),
        ("2024-02-29T12:00:00Z", "2024-02-29T12:00:00+00:00"),
        ("'2024-02-29T12:00:00Z'", "2024-02-29T12:00:00Z"),
    ],
)
def test_every_form_of_from_is_read(load: Any, text: str, start: str) -> None:
    assert load(f"{MINIMAL}    from: {text}\n").tables["orders"].start == start


REFUSED = {
    "unknown field at the top": ("engin: spark" + MINIMAL, ["engin", "`engine`"]),
    "unknown field of a table": (
        MINIMAL + "    max_file_per_batch: 3",
        ["tables.orders.max_file_per_batch", "`max_files_per_batch`"],
    ),
    "unknown field of a sink": (
        MINIMAL.replace("path: /data/out", "path: /x, formatt: csv"),
        ["tables.orders.sink.formatt", "`format`"],
    ),
    "Spark Connect": (
        "spark: {master: 'sc://spark:15002'}" + MINIMAL,
        ["spark.master", "Spark Connect", "name the cluster itself"],
    ),
    "no Spark master": ("spark: {master: yarm}" + MINIMAL, ["spark.master", "'yarm'", "k8s://"]),
    "unknown engine": ("engine: flink" + MINIMAL, ["engine is 'flink'", "'spark' or 'arrow'"]),
    "size with a wrong unit": (
        MINIMAL + "    max_bytes_per_batch: 3 quux",
        ["tables.orders.max_bytes_per_batch is '3 quux'", "256MiB"],
    ),
    "duration without a unit": ("shutdown_timeout: 30" + MINIMAL, ["30", "such as 10s"]),
    "absurd number": (
        MINIMAL + "    max_files_per_batch: 0",
        ["max_files_per_batch is 0", "at least 1"],
    ),
    "no time zone": (
        MINIMAL + "    partition_timezone: Berlin",
        ["tables.orders.partition_timezone is 'Berlin'", "such as Europe/Berlin"],
    ),
    "absurd interval": (
        MINIMAL + "    poll_interval: 999d",
        ["poll_interval is '999d'", "86400"],
    ),
    "from is a riddle": (MINIMAL + "    from: yesterday", ["from is 'yesterday'", "snapshot"]),
    "from is a truth value": (MINIMAL + "    from: true", ["from is true"]),
    "listen without a port": ("http: {listen: localhost}" + MINIMAL, ["http.listen", "host:port"]),
    "listen with an impossible port": ("http: {listen: 'x:70000'}" + MINIMAL, ["65535"]),
    "no tables": ("tables: {}", ["tables is missing or empty", "nothing to do"]),
    "tables is a list": ("tables: [1]", ["tables is [1]", "mapping"]),
    "table is a number": ("tables: {o: 3}", ["tables.o is 3", "mapping"]),
    "no path": (
        "tables: {o: {sink: {kind: console}}}",
        ["tables.o.path is required: ", ", for example /data/orders."],
    ),
    "no sink": ("tables: {o: {path: x}}", ["tables.o.sink is required: "]),
    "sink without kind": ("tables: {o: {path: x, sink: {}}}", ["tables.o.sink.kind", "console"]),
    "unknown sink": ("tables: {o: {path: x, sink: {kind: fil}}}", ["'fil'", "`file`"]),
    "stream on Arrow": (
        "engine: arrow\ntables: {o: {path: x, sink: {kind: stream, format: json}}}",
        ["'stream'", "arrow engine cannot", "Set tables.o.engine to spark."],
    ),
    "table of a store not served": (
        "tables: {o: {path: 'hdfs://b/t', sink: {kind: console}}}",
        ["hdfs://", "not in this"],
    ),
    "net in a stream": (
        STREAMED + "    changes: net",
        ["tables.orders.changes requests", "Spark's own sinks do not receive", "leave changes out"],
    ),
    "net above versions in a stream": (
        STREAMED + "    net: {above_versions: 9}",
        ["tables.orders.net requests", "or leave net out"],
    ),
    "gap crossed in a stream": (
        STREAMED + "    on_gap: latest",
        ["tables.orders.on_gap is 'latest'", "checkpoint", "set on_gap to stop"],
    ),
    "commits left out of a stream": (
        STREAMED + "    on_corrupt_commit: skip-and-record",
        ["tables.orders.on_corrupt_commit is", "another sink", "set on_corrupt_commit to stop"],
    ),
    "net above versions of a feed": (
        "engine: arrow" + MINIMAL + "    changes: cdf\n    net: {above_versions: 9}",
        ["tables.orders", "`changes: auto`", "'cdf'"],
    ),
    "net above no versions": (
        "engine: arrow" + MINIMAL + "    net: {above_versions: 0}",
        ["tables.orders.net.above_versions is 0", "at least 1"],
    ),
    "net and single commits left out": (
        "engine: arrow" + MINIMAL + "    on_gap: net\n    on_corrupt_commit: skip-and-record",
        ["tables.orders", "on_corrupt_commit", "set it to stop"],
    ),
    "S3 state with a stream": (
        "state: s3://b/t" + STREAMED,
        ["state is s3://b/t", "tables.orders has a sink of Spark's own", "state to a folder"],
    ),
    "S3 state with streams of a pattern": (
        "state: s3://b/t\ndiscover: {lake: {path: s3://b/*,"
        " template: {sink: {kind: stream, format: json}}}}",
        ["state is s3://b/t", "discover.lake.template has a sink of Spark's own"],
    ),
    "S3 state without a prefix": (
        "engine: arrow\nstate: s3://b/" + MINIMAL,
        ["state", "s3://bucket/prefix"],
    ),
    "state of a store not served": ("state: hdfs://b/t" + MINIMAL, ["state", "hdfs://"]),
    "Spark's sink on arrow": (
        "tables: {o: {path: x, engine: arrow, sink: {kind: stream, format: delta}}}",
        ["tables.o.sink.kind", "tables.o.engine to spark"],
    ),
    "name that is no file name": (
        "tables: {'../o': {path: x, sink: {kind: console}}}",
        ["'../o'", "letters"],
    ),
    "names that differ in case only": (
        "tables: {a: {path: x, sink: {kind: console}}, A: {path: x, sink: {kind: console}}}",
        ["tables.A", "tables.a"],
    ),
    "one folder for two tables": (
        "tables: {a: {path: x, sink: {kind: file, path: out}},"
        " b: {path: y, sink: {kind: file, path: ./out}}}",
        ["tables.a", "tables.b", "out"],
    ),
    "key twice": (
        "tables:\n  o: 1\n  o: 2",
        ["tailerd.yaml:3:3 (tables.o) ", "`o` is there twice, first in line 2"],
    ),
    "no YAML": ("a: [", ["tailerd.yaml:1:5 (a) ", "not valid YAML", "closing bracket"]),
    "YAML of another kind": ("- 1", ["no mapping"]),
    "YAML that builds objects": ("!!python/object/apply:os.system ['true']", ["not valid YAML"]),
    "nothing": ("", ["no mapping"]),
}

SLIPS = {
    "tables:\n  o: {}\n\tp: {}\n": (
        "t.yaml:3:1 (tables.p)",
        "indented with a tab. Indent with spaces.",
    ),
    "tables:\n  o: {}\n\t p: {}\n": ("t.yaml:3:1", "indented with a tab"),
    "tables:\n\to: {}\n": ("t.yaml:2:1", "indented with a tab"),
    "a: b: c\n": ("t.yaml:1:5 (a)", "a second `: `"),
    "a: 1\n   b: 2\n": ("t.yaml:2:5", "indented too far"),
    "a:\n  b: 1\n c: 2\n": ("t.yaml:3:2 (", "indented differently from the fields above"),
    "a: [1, 2\nb: 3\n": ("t.yaml:2:2", "closing bracket is missing"),
    "a: {x: 1\n": ("t.yaml:2:1", "closing bracket is missing"),
    'a: "b\n': ("t.yaml:2:1", "a quote is not closed"),
    "a: 1\nb\nc: 2\n": ("t.yaml:3:1", "a line is no `key: value`"),
    "a: @b\n": ("t.yaml:1:4 (a)", "a character that YAML reserves. Write values in quotes"),
    "a: *b\n": ("t.yaml:1:4 (a)", "a character that YAML reserves"),
    "a: %b\n": ("t.yaml:1:4 (a)", "a character that YAML reserves"),
    "a: !b c\n": ("t.yaml:1:4 (a)", "a character that YAML reserves"),
    'a: "\\d"\n': ("t.yaml:1:6 (a)", "a backslash in double quotes"),
    "a: 1\n---\nb: 2\n": ("t.yaml", "more than one document"),
    "a: - b\n": ("t.yaml:1:4 (a)", "a list begins in the middle of a line"),
    "a: 2024-99-99\n": ("t.yaml:1:4 (a)", "a number or date is invalid"),
    "? [x]\n: 1\n": ("t.yaml:1:3", "a key is no text"),
    "a: \x07\n": ("t.yaml is not", "a character that YAML does not allow"),
}


@pytest.mark.parametrize("text", SLIPS, ids=repr)
def test_a_slip_of_yaml_is_told_in_our_words_with_its_position(text: str) -> None:
    position, words = SLIPS[text]
    with pytest.raises(ConfigError) as caught:
        parse_config(text, {}, where="t.yaml")
    message = str(caught.value)
    assert message.startswith(position)
    assert words in message
    assert re.search("scanning|token|expected|mapping values|parsing", message) is None


EXAMPLE = yaml.safe_load((ROOT / "config/tailerd.example.yaml").read_text())
NONSENSE: tuple[object, ...] = (
    "nonsense",
    -1,
    1.5,
    True,
    None,
    [],
    {},
    ["a"],
    {"a": "b"},
    10**30,
    "",
)
FOREIGN = re.compile(
    r"Input|input|should be a valid|unable to|parse|instance|validat|discriminat|pydantic|Value"
    r"|does not fit|None|True|False|union|Literal|literal|type="
)


def leaves(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in content.items():
        yield (*path, str(name))
        if isinstance(value, dict):
            yield from leaves(value, (*path, str(name)))


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_no_word_of_the_validator_is_in_a_message(value: object) -> None:
    foreign = {}
    for path in leaves(EXAMPLE):
        content = copy.deepcopy(EXAMPLE)
        section = content
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
        try:
            Config(**content)
        except (ValidationError, ConfigError) as error:
            for mistake in all_mistakes(content, error, lambda rest: Config(**rest)):
                if FOREIGN.search(mistake.text.replace(repr(value), "")):
                    foreign[".".join(path)] = mistake.text
    assert foreign == {}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("spelling", [str, lambda name: name.replace(".", "_")])
def test_a_name_of_debezium_leads_to_ours(name: str, spelling: Callable[[str], str]) -> None:
    content = yaml.safe_load(MINIMAL)
    content["tables"]["orders"][spelling(name)] = "x"
    with pytest.raises(ConfigError) as caught:
        parse_config(yaml.safe_dump(content), {}, where="t.yaml")
    ours = ELSEWHERE[name]
    assert f"Here it is called `{ours}`." in str(caught.value)
    model: type[BaseModel] = KafkaSinkConfig if ours.startswith("sink.") else TableConfig
    fields = {field.alias or known for known, field in model.model_fields.items()}
    assert ours.removeprefix("sink.") in fields | set(Config.model_fields)


def test_a_section_of_debezium_leads_to_ours() -> None:
    content = yaml.safe_load(MINIMAL)
    content["tables"]["orders"]["snapshot"] = {"mode": "initial"}
    with pytest.raises(ConfigError, match="Here it is called `from`"):
        parse_config(yaml.safe_dump(content), {}, where="t.yaml")


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_names_the_field_the_value_and_the_form(load: Any, case: str) -> None:
    text, words = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        load(text)
    message = str(caught.value)
    assert "tailerd.yaml" in message
    assert "\n" not in message
    for word in words:
        assert word in message
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "text",
    [
        MINIMAL + "    changes: net",
        MINIMAL + "    net: {above_versions: 9}",
        MINIMAL + "    on_gap: latest\n    on_corrupt_commit: skip-and-record",
        "state: s3://b/t" + MINIMAL,
        "tables: {orders: {path: x, sink: {kind: kafka, topic: t, bootstrap_servers: ['b:1'],"
        " heartbeat_interval: 1s}}}",
    ],
)
@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_what_is_delivered_does_not_depend_on_the_engine(load: Any, engine: str, text: str) -> None:
    assert list(load(f"engine: {engine}\n{text}").tables) == ["orders"]


def test_a_misspelt_variable_is_no_silence(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"TAILERD__TABELS__X.*Did you mean `tables`"):
        load(MINIMAL, TAILERD__TABELS__X="1")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_file_of_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bytes.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)


def test_a_value_that_may_be_secret_is_not_repeated(load: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load("spark: {conf: {spark.hadoop.fs.password: [hunter2]}}" + MINIMAL)
    assert "hunter2" not in str(caught.value)
    assert "spark.hadoop.fs.password" in str(caught.value)


def test_the_command_lines_engine_wins_over_every_table(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(MINIMAL + "    engine: spark")
    config = load_config(path, engine="arrow")
    assert config.select_engine("orders") == "arrow"


def test_generated_documents_are_in_step_with_the_code() -> None:
    for name, text in documents().items():
        again = "run `python -m tailerd.config config`"
        assert (ROOT / "config" / name).read_text() == text, again


NOT_OURS = {"alerts", "compose"}
SHIPPED = [path for path in sorted((ROOT / "config").glob("*.yaml")) if path.stem not in NOT_OURS]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.name)
def test_shipped_configurations_load_and_fit_the_schema(path: Path) -> None:
    load_config(path)
    jsonschema.validate(yaml.safe_load(path.read_text()), schema())


def test_the_schema_refuses_what_the_code_refuses() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for case in ("unknown field at the top", "unknown engine", "no tables", "unknown sink"):
        assert not validator.is_valid(yaml.safe_load(REFUSED[case][0])), case


def test_the_example_shows_every_field() -> None:
    text = (ROOT / "config/tailerd.example.yaml").read_text()
    properties = [schema()["properties"]]
    properties += [d["properties"] for d in schema()["$defs"].values() if "properties" in d]
    names = {name for group in properties for name in group}
    assert [name for name in names if f"{name}:" not in text] == []
    json.dumps(schema())
