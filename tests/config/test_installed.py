"""Engines that are not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailerd.config import load_config, loading
from tailerd.errors import MissingExtraError

SINK = "sink: {kind: console}"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"tables: {{orders: {{path: /x, {SINK}}}}}", "tables.orders"),
        (f"engine: arrow\ntables: {{a: {{path: /x, engine: spark, {SINK}}}}}", "tables.a"),
        (f"discover: {{lake: {{path: '/x/*', template: {{{SINK}}}}}}}", "discover.lake"),
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
