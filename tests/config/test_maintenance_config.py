"""The section `maintenance`: what it means, and which wishes contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.clock import SystemClock
from tailerd.config import Config, load_config
from tailerd.config.documents import example, schema
from tailerd.config.maintenance import MaintenanceConfig, maintenance_class
from tailerd.config.sections import SparkConfig
from tailerd.errors import ConfigError
from tailerd.formats.delta.config import DeltaMaintenanceConfig
from tailerd.formats.delta.maintenance.policies import (
    CheckpointPolicy,
    ChecksumPolicy,
    LogCompactionPolicy,
    Policies,
)
from tailerd.formats.detect import table_format
from tailerd.formats.maintenance import DailyPause, EngineSettings, MaintenancePolicies
from tailerd.maintenance.settings import make_policies
from tailerd.registry import FORMATS
from tests.tables.opened import part_request


def load(folder: Path, section: str) -> Config:
    path = folder / "tailerd.yaml"
    path.write_text(f"tables: {{orders: {{path: /data/orders, maintenance: {section}}}}}")
    return load_config(path)


def policies(folder: Path, section: str) -> Policies:
    maintenance = load(folder, section).tables["orders"].maintenance
    assert maintenance is not None
    return Policies.from_section(make_policies(maintenance))


def test_the_section_of_the_contract_is_read(tmp_path: Path) -> None:
    found = policies(
        tmp_path,
        "{checkpoint: {every_commits: 10, every_bytes: 64MiB, min_interval: 10s},"
        " log_compaction: {every_commits: 100}, checksum: true, cleanup: {enabled: false}}",
    )
    assert found == Policies(
        checkpoint=CheckpointPolicy(
            every_commits=10, every_bytes=64 * 1024**2, min_interval_seconds=10.0
        ),
        log_compaction=LogCompactionPolicy(every_commits=100),
        checksum=ChecksumPolicy(is_enabled=True),
    )


def test_an_empty_section_checkpoints_as_the_table_says_and_nothing_else(tmp_path: Path) -> None:
    assert policies(tmp_path, "{}") == Policies()
    assert Policies().checkpoint.every_commits is None
    assert not Policies().cleanup.is_enabled


@pytest.mark.parametrize("field", ["every: 1h", "every: 2h", "wait_for_pins: [nightly-export]"])
def test_a_cleanup_may_be_described_before_it_is_switched_on(tmp_path: Path, field: str) -> None:
    # As the example says it, which loads everywhere.
    found = policies(tmp_path, f"{{cleanup: {{enabled: false, {field}}}}}")
    assert not found.cleanup.is_enabled


def test_spark_runs_where_its_section_says(tmp_path: Path) -> None:
    config = load(tmp_path, "{engine: spark, checkpoint: {manifest: parquet}}")
    section = config.tables["orders"].maintenance
    assert section is not None
    spark = SparkConfig(master="local[3]", conf={"a": "b"})
    found = Policies.from_section(make_policies(section, spark))
    assert found.engine == EngineSettings(master="local[3]", conf={"a": "b"})
    assert found.checkpoint.manifest == "parquet"


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        ("{engine: spark, checksum: true}", "leave checksum out"),
        ("{engine: spark, checkpoint: null, cleanup: {enabled: true}}", "Spark does nothing else"),
    ],
)
def test_spark_is_refused_where_it_cannot_help(tmp_path: Path, section: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, section)


def test_every_other_field_reaches_its_policy(tmp_path: Path) -> None:
    found = policies(
        tmp_path,
        "{checkpoint: {every_age: 1h, max_replay: 500ms, quiet: 5s, every_bytes: null},"
        " cleanup: {enabled: true, older_than: 60d, every: 2h}, not_between: ['22:30-06:00']}",
    )
    assert found.checkpoint == CheckpointPolicy(
        every_bytes=None, every_seconds=3600.0, max_replay_seconds=0.5, quiet_seconds=5.0
    )
    assert found.cleanup.is_enabled
    assert (found.cleanup.older_than_seconds, found.cleanup.every_seconds) == (5_184_000.0, 7200.0)
    assert found.pauses == (DailyPause(22 * 60 + 30, 6 * 60),)


def test_without_the_section_nothing_is_maintained(tmp_path: Path) -> None:
    path = tmp_path / "tailerd.yaml"
    path.write_text("tables: {orders: {path: /data/orders, sink: {kind: console}}}")
    table = load_config(path).tables["orders"]
    assert table.maintenance is None
    assert table.has_sink


def test_a_table_that_is_maintained_needs_no_sink(tmp_path: Path) -> None:
    assert not load(tmp_path, "{}").tables["orders"].has_sink


def test_a_template_may_maintain_all_tables_of_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "tailerd.yaml"
    path.write_text(
        "discover: {lake: {path: /lake/*, template: {maintenance: {checksum: true}}}}",
    )
    table = load_config(path).discover["lake"].template.table("orders", "/lake/orders")
    assert not table.has_sink
    assert isinstance(table.maintenance, DeltaMaintenanceConfig)
    assert table.maintenance.checksum


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            "{checkpoint: {every_age: 1m, min_interval: 1h}}",
            "min_interval is longer than every_age",
        ),
        ("{checkpoint: {every_age: 1m, quiet: 1h}}", "quiet is longer than every_age"),
        ("{checkpoint: null}", "everything is switched off"),
        ("{cleanup: {older_than: 60d}}", "cleanup.older_than is set, but cleanup.enabled is false"),
        ("{cleanup: {enabled: false, keep_from: 0}}", "cleanup.keep_from is set"),
        (
            "{checkpoint: {every_age: 2d}, cleanup: {enabled: true, older_than: 1d}}",
            "no checkpoint covers",
        ),
        (
            "{checkpoint: {min_interval: 7d}, cleanup: {enabled: true, older_than: 6d}}",
            "shorter than the time between two checkpoints",
        ),
        ("{not_between: ['00:00-12:00', '12:00-00:00']}", "covers the whole day"),
        ("{not_between: ['8-18']}", "HH:MM-HH:MM"),
        ("{not_between: ['25:00-26:00']}", "HH:MM-HH:MM"),
        ("{not_between: ['08:00-08:00']}", "begins when it ends"),
        ("{checkpoint: {every_commits: 0}}", "every_commits is 0"),
        ("{checkpoint: {every_comits: 5}}", "`every_commits`"),
        ("{checkpoint: {min_interval: 10}}", "such as 10s"),
        ("{log_compaction: {}}", "log_compaction.every_commits is required"),
        ("{log_compaction: {every_commits: 1}}", "at least 2"),
        ("{cleanup: {enabled: true, every: 1s}}", "at least 60"),
        ("true", "mapping"),
    ],
)
def test_what_contradicts_itself_is_refused_with_the_reason(
    tmp_path: Path, section: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=r"tables\.orders\.maintenance") as caught:
        load(tmp_path, section)
    assert words in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize("section", ["null", ""])
def test_a_table_with_neither_sink_nor_maintenance_is_refused(tmp_path: Path, section: str) -> None:
    with pytest.raises(ConfigError, match=r"tables\.orders\.sink is required.*maintenance"):
        load(tmp_path, section)


def test_a_template_with_neither_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tailerd.yaml"
    path.write_text("discover: {lake: {path: /lake/*, template: {from: latest}}}")
    with pytest.raises(ConfigError, match="sink is missing"):
        load_config(path)


def test_the_schema_knows_that_one_of_them_is_needed() -> None:
    for name in ("TableConfig", "TemplateConfig"):
        assert schema()["$defs"][name]["anyOf"] == [
            {"required": ["sink"]},
            {"required": ["sinks"]},
            {"required": ["maintenance"]},
        ]


FIELDS = {
    "delta": ("checkpoint: {}", "log_compaction: {every_commits: 9}", "checksum: true"),
    "lance": ("compaction: {}", "optimize_indices: 3", "tag: true"),
    "tiledb": ("commits: {}", "fragment_meta: null", "fragments: {every_commits: 9}"),
    "kartothek": (),
}
"""Fields of the section that only one format has."""


def reported(table_format: str) -> str:
    names = ", ".join(sorted(maintenance_class(table_format).model_fields))
    return f"format {table_format}, which has {names}."


@pytest.mark.parametrize("table_format", FIELDS)
@pytest.mark.parametrize(
    ("owner", "field"), [(name, each) for name, fields in FIELDS.items() for each in fields]
)
def test_a_format_has_its_own_fields_and_refuses_those_of_others(
    tmp_path: Path, table_format: str, owner: str, field: str
) -> None:
    path = tmp_path / "tailerd.yaml"
    path.write_text(
        f"tables: {{o: {{path: /o, format: {table_format}, maintenance: {{{field}}}}}}}"
    )
    if owner == table_format:
        section = load_config(path).tables["o"].maintenance
        assert type(section) is maintenance_class(table_format)
        return
    name = field.partition(":")[0]
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert f"tables.o.maintenance.{name} is not a known field" in str(caught.value)
    assert reported(table_format) in str(caught.value)


@pytest.mark.parametrize(
    ("owner", "field"), [(name, each) for name, fields in FIELDS.items() for each in fields]
)
def test_without_a_format_the_fields_say_whose_they_are(
    tmp_path: Path, owner: str, field: str
) -> None:
    assert type(load(tmp_path, f"{{{field}}}").tables["orders"].maintenance) is maintenance_class(
        owner
    )


def test_fields_of_two_formats_are_no_section(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"maintenance\.tag is not a known field"):
        load(tmp_path, "{checkpoint: {}, checksum: true, tag: true}")


def test_no_two_formats_share_a_field_of_their_own() -> None:
    own = [
        maintenance_class(name).model_fields.keys() - MaintenanceConfig.model_fields.keys()
        for name in FORMATS
    ]
    assert sum(map(len, own)) == len(frozenset().union(*own))


def test_the_schema_and_the_example_have_the_fields_of_all_formats() -> None:
    properties = schema()["$defs"]["MaintenanceConfig"]["properties"]
    for name in FORMATS:
        for field in maintenance_class(name).model_fields:
            assert field in properties
            assert f"{field}:" in example()


def test_a_name_that_is_nearly_right_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"maintenance\.checkpont .*Did you mean `checkpoint`\?"):
        load(tmp_path, "{checkpont: {}}")


MAINTAINED = [name for name in FORMATS if table_format(name).maintainer is not None]


@pytest.mark.parametrize("name", MAINTAINED)
def test_what_a_format_is_given_has_the_fields_of_its_section(tmp_path: Path, name: str) -> None:
    maintainer = table_format(name).maintainer
    assert maintainer is not None
    request, expected = part_request(tmp_path, name), '{"bogus": 1}'
    with pytest.raises(ConfigError) as caught:
        maintainer.open(request, MaintenancePolicies(jobs=expected), clock=SystemClock())
    assert reported(name) in str(caught.value)
