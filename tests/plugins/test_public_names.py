"""Plug-ins are built on `tailerd.plugins` alone, whose names stay."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tailerd import plugins
from tests.plugins import EXAMPLE

ROOT = Path(__file__).resolve().parents[2]
NAMES = Path(__file__).with_name("public_names.txt")
PLUG_INS = [
    *sorted((EXAMPLE / "tailerd_example").glob("*.py")),
    ROOT / "tests/doubles/memory_format.py",
]


def test_no_public_name_goes_and_none_comes_unseen() -> None:
    """A name that goes breaks plug-ins of others; one that comes is a promise: edit the list."""
    assert plugins.__all__ == NAMES.read_text().split()


@pytest.mark.parametrize("name", plugins.__all__)
def test_each_name_is_there_and_documented(name: str) -> None:
    found = getattr(plugins, name)
    assert not isinstance(found, type) or found.__doc__


@pytest.mark.parametrize("path", PLUG_INS, ids=lambda path: path.name)
def test_a_plug_in_needs_nothing_else(path: Path) -> None:
    used = {
        name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else [each.name for each in node.names]
        )
    }
    assert {name for name in used if name.partition(".")[0] == "tailerd"} <= {"tailerd.plugins"}
