"""No module keeps what changes (law 6), and no file imports itself by way of others (law 9)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "tailerd").rglob("*.py"))

ALLOWED_STATE = {
    "tailerd/formats/tiledb/library.py: library_lock": "what it guards is the memory of a library,"
    " which the process has once",
    "tailerd/threads.py: _own": "how much a thread decoded: Arrow's allocator is the process's",
    "tailerd/storage/io_thread.py: _thread": "the loop of connections: one a process, without"
    " any setting; loops and threads come and go while it lasts",
    "tailerd/storage/io_thread.py: _lock": "guards the making of that thread",
    "tailerd/sinks/kafka/remote_writer.py: _idle": "a process of an engine keeps nothing else"
    " from one task to the next, and a producer costs a second to connect",
    "tailerd/sinks/kafka/remote_writer.py: _schemas": "as above, and a registry is not asked again"
    " for every delivery",
}
"""Names that modules bind to something that changes, and why nothing else will do."""

MAKERS = {
    *("dict", "list", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"),
    *("WeakValueDictionary", "WeakKeyDictionary", "WeakSet", "Lock", "RLock", "Event", "local"),
}
"""Calls whose results change."""

CHANGING = {
    *("append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "clear"),
    *("remove", "discard"),
}
"""Methods that change what they are called on."""


def test_no_module_keeps_what_changes() -> None:
    found = {name for path in MODULES for name in changing_names(path)}
    assert found - ALLOWED_STATE.keys() == set()
    assert ALLOWED_STATE.keys() - found == set(), "allowed, and there no more"


def changing_names(path: Path) -> Iterator[str]:
    """Yield the names that a module binds, and binds again or changes inside functions."""
    tree = ast.parse(path.read_text())
    bound = dict(_bound(tree))
    changed = {name for name, value in bound.items() if _is_empty_or_guard(value)}
    for node in ast.walk(tree):
        match node:
            case ast.Global(names=names):
                changed |= {*names} & bound.keys()
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                changed |= {name} & bound.keys() if _is_inside(tree, node) else set()
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                is_change = method in CHANGING and _is_container(bound.get(name))
                changed |= {name} if is_change and _is_inside(tree, node) else set()
            case _:
                pass
    for name in sorted(changed):
        yield f"{path.relative_to(ROOT).as_posix()}: {name}"


def _bound(tree: ast.Module) -> Iterator[tuple[str, ast.expr | None]]:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                yield name, value
            case _:
                pass


def _is_container(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Dict | ast.List | ast.Set) or _made_by(value) in MAKERS


def _is_empty_or_guard(value: ast.expr | None) -> bool:
    """Tell whether a value can only be meant to be filled, or to be waited for."""
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(args=[], keywords=[]):
            return _made_by(value) in MAKERS
        case _:
            return False


def _made_by(value: ast.expr | None) -> str:
    match value:
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def _is_inside(tree: ast.Module, node: ast.AST) -> bool:
    """Tell whether a node is in a function: what a module does to its own names, it does once."""
    return any(
        inner is node
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(outer)
    )


def test_what_changes_is_found() -> None:
    module = ROOT / "tailerd/storage/io_thread.py"
    assert {*changing_names(module)} == {
        f"tailerd/storage/io_thread.py: {name}" for name in ("_thread", "_lock")
    }


def test_no_file_imports_itself_by_way_of_others() -> None:
    # What only the checker of types imports is no dependency of what runs.
    graph = grimp.build_graph("tailerd", exclude_type_checking_imports=True, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert [sorted(circle) for circle in _circles(imports) if len(circle) > 1] == []


def test_circles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set[str](), "e": {"a"}}
    assert {frozenset("abc"), frozenset("d"), frozenset("e")} == {*_circles(imports)}


def _circles(imports: dict[str, set[str]]) -> Iterator[frozenset[str]]:
    """Yield the strongly connected components: those that reach each other."""
    reached = {start: _reached(imports, start) for start in imports}
    done: set[str] = set()
    for start, others in reached.items():
        if start not in done:
            circle = frozenset({start, *(each for each in others if start in reached[each])})
            done |= circle
            yield circle


def _reached(imports: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        for each in imports[left.pop()] - found:
            found.add(each)
            left.append(each)
    return found
