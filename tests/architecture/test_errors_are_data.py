"""House law 5: nothing decides by the text of an exception; classes and fields are for that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tailerd"
MODULES = sorted(PACKAGE.rglob("*.py"))

VENDORS = {
    ("storage/s3/failures.py", "are_stale"): "botocore raises a bare RuntimeError for this alone",
    ("sinks/kafka/errors.py", "map_error"): "the same: what refuses differs by the text alone",
    ("sinks/kafka/errors.py", "_reason"): "kafka-python raises a KafkaConnectionError for a refused"
    " login or certificate, and only its text says which; secrets in it are hidden",
    ("formats/tiledb/library.py", "_is_gone"): "tiledb raises a TileDBError for everything",
    ("storage/object_store/failures.py", "read_status"): "obstore gives statuses only as text",
    ("storage/object_store/failures.py", "map_settings"): "obstore names wrong settings as text",
    ("storage/object_store/failures.py", "map_failure"): "the same, and codes of the server",
}
"""Where a vendor gives only text: module, function -> why."""

TEXT_ATTRIBUTES = {"message", "args", "remedy", "strerror", "msg", "reason", "__notes__"}
ERROR_NAMES = {"error", "exc", "exception", "failure", "damage"}
ERROR_SUFFIXES = ("Error", "Exception", "Warning")
DECIDING_METHODS = {
    *("startswith", "endswith", "find", "rfind", "index", "count", "partition", "rpartition"),
    *("replace", "removeprefix", "removesuffix"),
}
REGEX_METHODS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Scope:
    """One function: the names in it that are exceptions, and those that hold texts of them."""

    def __init__(self, function: Function, tellers: frozenset[str] = frozenset()) -> None:
        self._tellers = tellers
        self.errors = set(ERROR_NAMES)
        self.texts: set[str] = set()
        self._nodes = list(ast.walk(function))
        for node in self._nodes:
            if isinstance(node, ast.ExceptHandler) and node.name:
                self.errors.add(node.name)
            elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
                target = node.arg if isinstance(node, ast.arg) else node.target
                name = target.id if isinstance(target, ast.Name) else target
                if isinstance(name, str) and _names_an_error(node.annotation):
                    self.errors.add(name)
        for _ in range(2):
            for node in self._nodes:
                if isinstance(node, ast.Assign) and self._holds_text(node.value):
                    self.texts |= {t.id for t in node.targets if isinstance(t, ast.Name)}
                elif isinstance(node, ast.NamedExpr) and self._holds_text(node.value):
                    self.texts.add(node.target.id)

    def tells(self) -> bool:
        """Tell whether the function returns the text of an exception."""
        returned = [n.value for n in self._nodes if isinstance(n, ast.Return) and n.value]
        return any(map(self._holds_text, returned))

    def decisions(self) -> Iterator[ast.expr]:
        """Yield what decides by a text."""
        for node in self._nodes:
            match node:
                case ast.Compare():
                    sides = [node.left, *node.comparators]
                    if any(self._holds_text(side) for side in sides):
                        yield node
                case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args):
                    is_method = attr in DECIDING_METHODS and self._holds_text(value)
                    is_regex = attr in REGEX_METHODS and any(map(self._holds_text, args))
                    if is_method or is_regex:
                        yield node
                case ast.Match(subject=subject) if self._holds_text(subject):
                    yield subject

    def _holds_text(self, node: ast.expr) -> bool:
        """Tell whether a value is the text of an exception, or made of one."""
        match node:
            case ast.Name(id=name):
                return name in self.texts
            case ast.Call(func=ast.Name(id="str" | "repr" | "format"), args=[ast.Name(id=name)]):
                return name in self.errors
            case ast.Call(func=ast.Name(id=name)) if name in self._tellers:
                return True
            case ast.NamedExpr(value=value):
                return self._holds_text(value)
            case ast.IfExp(body=body, orelse=other):
                return self._holds_text(body) or self._holds_text(other)
            case ast.Call(func=ast.Attribute(value=value, attr=attr), args=args):
                is_made = attr in {"strip", "lower", "upper", "casefold", "join", "split"} | {
                    *("lstrip", "rstrip", "splitlines", "encode", "sub"),
                    *DECIDING_METHODS,
                }
                return is_made and any(map(self._holds_text, (value, *args)))
            case ast.Attribute(value=ast.Name(id=name), attr=attr):
                return name in self.errors and attr in TEXT_ATTRIBUTES
            case ast.JoinedStr(values=values):
                return any(
                    (isinstance(v.value, ast.Name) and v.value.id in self.errors)
                    or self._holds_text(v.value)
                    for v in values
                    if isinstance(v, ast.FormattedValue)
                )
            case ast.Subscript(value=value):
                return self._holds_text(value)
            case ast.BinOp(left=left, right=right):
                return self._holds_text(left) or self._holds_text(right)
            case ast.BoolOp(values=values):
                return any(map(self._holds_text, values))
        return False


def _names_an_error(annotation: ast.expr) -> bool:
    names = [n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)]
    names += [n.attr for n in ast.walk(annotation) if isinstance(n, ast.Attribute)]
    # A function or a mapping that has to do with errors is none.
    return not isinstance(annotation, ast.Subscript) and any(
        name.endswith(ERROR_SUFFIXES) for name in names
    )


def decisions_by_text(text: str) -> dict[str, list[str]]:
    """Return what decides by texts of exceptions in a module, by function."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, Function)]
    # What a function of the module makes of an error's text is a text too.
    tellers = frozenset(each.name for each in functions if _Scope(each).tells())
    found = {
        each.name: [ast.unparse(made) for made in _Scope(each, tellers).decisions()]
        for each in functions
    }
    return {name: made for name, made in found.items() if made}


@pytest.mark.full
def test_nothing_decides_by_the_text_of_an_exception() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), function): made
        for path in MODULES
        for function, made in decisions_by_text(path.read_text()).items()
    }
    assert {where: made for where, made in found.items() if where not in VENDORS} == {}
    # What is no longer needed is no longer allowed.
    assert set(VENDORS) <= set(found)


@pytest.mark.parametrize(
    "line",
    [
        'return "gone" in str(error)',
        'return e.message.startswith("The option ")',
        'return PATTERN.search(f"{e}")',
        'return re.match("x", str(e))',
        'return failure.message == "x"',
        'return str(e).lower().split()[0] == "x"',
        'return e.args[0] == "x"',
        'text = str(e) or "y"\n        return "x" in text',
        'if (text := e.strerror) != "x":\n            return text',
        'match str(e):\n            case "x":\n                return 1',
        'return e.message.replace("tables.first", "x")',
        'return "x" in " ".join(str(e).split())',
        'return str(cause) == "x"',
    ],
)
def test_each_way_to_decide_by_a_text_is_seen(line: str) -> None:
    text = f"""
def work(cause: BaseException | None = None):
    try:
        pass
    except OSError as e:
        {line}
"""
    assert list(decisions_by_text(text)) == ["work"]


def test_a_decision_by_what_another_function_says_is_seen() -> None:
    text = """
def said(error):
    return str(error).strip()

def work(error):
    about = said(error)
    return PATTERN.search(about)
"""
    assert list(decisions_by_text(text)) == ["work"]


@pytest.mark.parametrize(
    "line",
    [
        "raise TableError(f'{e.filename}: {e}') from e",
        "return e.errno == errno.ENOENT",
        "return isinstance(e, TableError) and e.code == 'table'",
        "text = str(e).rstrip('.') or type(e).__name__\n        return text[:300]",
        "return e.schema_version is None or e.table in tables",
        "return len(str(e)) > 400",
    ],
)
def test_what_is_only_said_is_no_decision(line: str) -> None:
    text = f"def work():\n    try:\n        pass\n    except OSError as e:\n        {line}\n"
    assert decisions_by_text(text) == {}
