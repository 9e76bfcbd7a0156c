"""The house keeps its shape: directions, sizes, names, tests for every clause."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tailerd.storage.base import ObjectStore

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tailerd"
MODULES = sorted(PACKAGE.rglob("*.py"))
MAX_MODULE_LINES = 600
"""A module above this holds two ideas."""

MAX_ATTRIBUTES = 21
"""A class with more of its own does two things."""

MAX_FUNCTION_LINES = 40
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

FEATURE_SENTENCES = {
    "format_url": ("a_url_leads_back_to_the_file",),
    "list_from": ("listing_gives_names_strictly_greater", "ordered_by_the_utf8_bytes"),
    "get": ("get_returns_the_whole_file_or_a_range", "not_there_is_reported_as_missing"),
    "fetch": ("fetch_gives_what_get_and_head_give",),
    "get_many": ("get_many_returns_files_in_the_order",),
    "head": ("listing_and_head_tell_size_and_time",),
    "put": ("readers_see_all_of_a_put_or_nothing", "exactly_one_of_several_racing_writers"),
    "delete": ("deleting_a_file_that_does_not_exist",),
    "open_input": ("an_opened_file_is_read_at_random_by_pyarrow",),
}


def test_imports_go_in_the_directions_the_house_allows() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_modules_are_of_one_idea_documented_and_well_named() -> None:
    assert [fault for path in MODULES for fault in faults(path)] == []


def faults(path: Path) -> Iterator[str]:
    """Yield what is wrong with the shape of a module."""
    text = path.read_text()
    if text.count("\n") > MAX_MODULE_LINES:
        yield f"{path}: more than {MAX_MODULE_LINES} lines"
    if {path.stem, path.parent.name} & FORBIDDEN_NAMES:
        yield f"{path}: a name that says nothing"
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{path}: no docstring that says what it is"
    for node, lines in functions(tree):
        if lines > MAX_FUNCTION_LINES:
            yield f"{path}: {node.name} has {lines} lines"


def functions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    """Yield functions and their lines without the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node):
                first = node.body[0]
                lines -= (first.end_lineno or first.lineno) - first.lineno + 1
            yield node, lines


def test_every_method_of_the_object_store_has_contract_tests() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(ObjectStore, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods == set(FEATURE_SENTENCES)
    names = (ROOT / "tests/contracts/test_object_store.py").read_text()
    for sentences in FEATURE_SENTENCES.values():
        for sentence in sentences:
            assert f"def test_{sentence}" in names or f"_{sentence}" in names


def test_no_class_does_everything() -> None:
    large = [
        f"{path.relative_to(ROOT)}: {found.name}"
        for path in MODULES
        for found in ast.walk(ast.parse(path.read_text()))
        if isinstance(found, ast.ClassDef) and len(own_attributes(found)) > MAX_ATTRIBUTES
    ]
    assert large == []


def own_attributes(found: ast.ClassDef) -> set[str]:
    """Return the names that a class's methods set on `self`."""
    return {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_tests_stand_where_what_they_test_stands() -> None:
    """Each folder of the product has one of tests with the same name, and none has two."""
    elsewhere = {"checks": "cli/test_doctor.py"}
    missing = [
        name
        for name in sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
        if not (ROOT / "tests" / elsewhere.get(name, f"{name}/__init__.py")).exists()
    ]
    assert missing == []
    twice = {"integration": {"daemon", "spark"}}
    parts = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    second = [
        str(path.parent.relative_to(ROOT))
        for path in (ROOT / "tests").glob("*/*/__init__.py")
        if path.parent.name in parts - twice.get(path.parents[1].name, set())
    ]
    assert second == []


def test_test_folders_are_packages_so_that_equal_names_do_not_clash() -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [
        str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()
    ] == []
