"""Engines that are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.config import load_config, loading
from tailerd.errors import MissingExtraError
from tailerd.java import JavaFound

SINK = "sink: {kind: console}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"engine: spark\ntables: {{orders: {{path: /x, {SINK}}}}}", "tables.orders"),
        (f"engine: arrow\ntables: {{a: {{path: /x, engine: spark, {SINK}}}}}", "tables.a"),
        (
            f"engine: spark\ndiscover: {{lake: {{path: '/x/*', template: {{{SINK}}}}}}}",
            "discover.lake",
        ),
        (f"engine: arrow\ntables: {{orders: {{path: /x, {SINK}}}}}", None),
    ],
)
def test_without_pyspark_the_engine_spark_is_refused_by_the_table(
    text: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tailerd.yaml"
    file.write_text(text)
    assert load_config(file).engine in ("spark", "arrow")
    monkeypatch.setattr(loading, "find_spec", lambda name: None)
    if named is None:
        assert load_config(file).engine == "arrow"
    else:
        with pytest.raises(MissingExtraError, match=rf"{named} is spark, but PySpark") as caught:
            load_config(file)
        assert "pip install 'tailerd[spark]'" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("has_pyspark", "java", "engine", "why"),
    [
        (True, JavaFound(version=21), "spark", "PySpark and Java 21 are installed"),
        (False, JavaFound(version=21), "arrow", "PySpark is not installed"),
        (True, JavaFound(version=8, reason="it is Java 8"), "arrow", "it is Java 8"),
    ],
)
def test_auto_is_spark_where_it_can_run_and_a_table_may_override_it(
    has_pyspark: bool,
    java: JavaFound,
    engine: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tailerd.java.find_spec", lambda _: object() if has_pyspark else None)
    monkeypatch.setattr("tailerd.java.java_home_or_version", lambda _: java)
    file = tmp_path / "tailerd.yaml"
    own = f"own: {{path: /y, engine: arrow, {SINK}}}"
    file.write_text(f"tables: {{orders: {{path: /x, {SINK}}}, {own}}}")
    config = load_config(file)
    assert config.select_engine("orders") == engine
    assert config.select_engine("own") == "arrow"
    assert config.explain_engines() == (", ".join(sorted({engine, "arrow"})), why)
    assert load_config(file, engine="arrow").explain_engines() == ("arrow", "it is configured")
    streamed = "{path: /x, sink: {kind: stream, format: delta, options: {path: /z}}}"
    file.write_text(f"tables: {{orders: {streamed}}}")
    if has_pyspark:
        assert load_config(file).select_engine("orders") == "spark"
