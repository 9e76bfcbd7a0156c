"""Predicates over rows: a part of SQL, parsed by sqlglot and evaluated on Arrow columns.

Three-valued: a row passes only if the predicate is true for it, not if it is null. Texts are in
single quotes (two of them are one quote), names in double quotes or backticks where they need any.

- Numbers of different types are compared by value: as doubles if one is a float, else exactly. NaN
  equals itself and is greater than all other numbers, as in Spark.
- Texts are compared by their bytes. A text between quotes next to a date, a time or a boolean is
  read as one. Times without a zone are UTC.
- A value that a cast cannot convert becomes null.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import expressions as sql
from sqlglot import tokens
from sqlglot.errors import SqlglotError

from tailerd.changefeed.column_filter import ColumnFilter, Comparison
from tailerd.errors import UsageError
from tailerd.rows.hash_kernels import Bools
from tailerd.transforms.columns import suggest
from tailerd.transforms.comparing import (
    UTC,
    as_type,
    cast_or_null,
    common_type,
    compare_values,
    is_text,
    like_regex,
    plain_layout,
    plain_text,
    type_name,
)

_MAX_DEPTH = 100
"""Nested conditions; each takes some frames of Python's stack."""
_MAX_CHARACTERS = 20_000
_INT64 = range(-(2**63), 2**63)
_ALLOWED = (
    "A condition has comparisons (=, <>, <, <=, >, >=), between, in, like, is null, is true, and,"
    " or, not, fields (a.b), cast, lower and upper."
)


def predicate_error(text: str, at: int | None, reason: str, remedy: str = _ALLOWED) -> UsageError:
    """Return the error for a predicate, with an arrow below the character at an index."""
    if at is None:
        return UsageError(reason, remedy=remedy)
    start = text.rfind("\n", 0, at) + 1
    line = text[start:].split("\n", 1)[0]
    pointer = f"  {line}\n  {' ' * (at - start)}^"
    return UsageError(f"The condition cannot be used:\n{pointer}\n{reason}", remedy=remedy)


class _Sql(sqlglot.Dialect):
    """SQL's own quotes, and backticks for names."""

    class Tokenizer(tokens.Tokenizer):
        """Adds the backtick."""

        IDENTIFIERS: ClassVar = ['"', "`"]
        HEX_STRINGS: ClassVar = [("x'", "'"), ("X'", "'")]


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition that rows pass or not. Made by `parse_predicate`; picklable.

    Attributes:
        text: As the user wrote it.
    """

    text: str

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns that it reads, sorted."""
        tree = _parse(self.text)
        return tuple(sorted({_path(node)[0] for node in tree.find_all(sql.Column)}))

    def check(self, schema: pa.Schema) -> None:
        """Make sure that it can be evaluated on rows of a schema.

        Raises:
            UsageError: It cannot: a column is unknown, or types do not fit.
        """
        _Evaluation(self.text, _no_rows(schema), is_strict=True).condition(_parse(self.text))

    def passes(self, rows: pa.RecordBatch) -> Bools:
        """Return for each row whether it passes; shape (n,).

        Columns that rows of an older version do not have are null.

        Raises:
            UsageError: As `check`.
        """
        found = _Evaluation(self.text, rows).condition(_parse(self.text))
        if isinstance(found, pa.Scalar):
            return np.full(rows.num_rows, found.as_py() is True)
        passing: Bools = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
        return passing

    def filters(self, schema: pa.Schema) -> tuple[ColumnFilter, ...]:
        """Return conditions on single columns that every passing row meets, to skip files."""
        return tuple(_filters(_Evaluation(self.text, _no_rows(schema)), _parse(self.text)))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def parse_predicate(text: str) -> Predicate:
    """Return the predicate of a text.

    Raises:
        UsageError: It is not one; the error points at the character.
    """
    _parse(text)
    return Predicate(text)


@functools.lru_cache(maxsize=256)
def _parse(text: str) -> sql.Expr:
    if not text.strip():
        raise predicate_error(text, None, "The condition is empty.")
    if len(text) > _MAX_CHARACTERS:
        raise predicate_error(text, None, f"The condition has over {_MAX_CHARACTERS} characters.")
    try:
        tree = sqlglot.parse_one(text, dialect=_Sql)
    except SqlglotError as error:
        found = getattr(error, "errors", None) or [{}]
        raise predicate_error(
            text, _index(text, found[0]), "The condition is not valid SQL."
        ) from None
    except RecursionError:
        raise predicate_error(text, None, "The condition is nested too deeply.") from None
    _Evaluation(text, None).check_nodes(tree, 0)
    return tree


def _index(text: str, found: dict[str, Any]) -> int | None:
    """Return the index of the token that an error of sqlglot is about."""
    line, column = found.get("line"), found.get("col")
    if not line or column is None:
        return None
    starts = [0, *(at + 1 for at, character in enumerate(text) if character == "\n")]
    # The column is that of the token's last character.
    last = starts[min(line, len(starts)) - 1] + column - 1
    first = last - len(str(found.get("highlight") or "x")) + 1
    return max(0, min(len(text) - 1, int(first)))


def _path(node: sql.Expr) -> tuple[str, ...]:
    """Return the names of a column and the fields inside it."""
    if isinstance(node, sql.Dot):
        return (*_path(node.this), node.expression.name)
    assert isinstance(node, sql.Column)
    return tuple(part.name for part in node.parts)


_COMPARED: dict[type[sql.Expr], tuple[Comparison | None, str]] = {
    sql.EQ: (Comparison.EQUAL, "equal"),
    sql.NEQ: (None, "not_equal"),
    sql.LT: (Comparison.LESS, "less"),
    sql.LTE: (Comparison.AT_MOST, "less_equal"),
    sql.GT: (Comparison.GREATER, "greater"),
    sql.GTE: (Comparison.AT_LEAST, "greater_equal"),
}
_MIRRORED = {
    Comparison.LESS: Comparison.GREATER,
    Comparison.GREATER: Comparison.LESS,
    Comparison.AT_MOST: Comparison.AT_LEAST,
    Comparison.AT_LEAST: Comparison.AT_MOST,
}
_Kind = sql.DataType.Type
_CASTS: dict[Any, pa.DataType] = {
    _Kind.BOOLEAN: pa.bool_(),
    _Kind.TINYINT: pa.int8(),
    _Kind.SMALLINT: pa.int16(),
    _Kind.INT: pa.int32(),
    _Kind.BIGINT: pa.int64(),
    _Kind.FLOAT: pa.float32(),
    _Kind.DOUBLE: pa.float64(),
    _Kind.DATE: pa.date32(),
    _Kind.TIMESTAMP: UTC,
    _Kind.TIMESTAMPTZ: UTC,
    _Kind.TIMESTAMPLTZ: UTC,
    _Kind.TIMESTAMPNTZ: pa.timestamp("us"),
    _Kind.TEXT: pa.string(),
    _Kind.VARCHAR: pa.string(),
    _Kind.BINARY: pa.binary(),
    _Kind.VARBINARY: pa.binary(),
}
_LITERALS = (sql.Literal, sql.Null, sql.Boolean, sql.HexString)


_ARGUMENTS = frozenset(
    ("this", "expression", "expressions", "low", "high", "negate", "to", "is_string", "safe")
)


class _Evaluation:
    """Evaluates a tree on the rows of a batch; without one it only checks the kinds of nodes.

    Args:
        is_strict: Whether a missing column is an error; else it is null.
    """

    def __init__(self, text: str, rows: pa.RecordBatch | None, *, is_strict: bool = False) -> None:
        self._text = text
        self._rows = rows
        self._is_strict = is_strict

    def _refuse(self, node: sql.Expr, reason: str, remedy: str = _ALLOWED) -> NoReturn:
        raise predicate_error(self._text, self._find(node), reason, remedy)

    def _find(self, node: sql.Expr) -> int | None:
        """Return where a node begins; sqlglot notes the positions of names only."""
        if (column := next(node.find_all(sql.Identifier), None)) is not None:
            starts = [each.meta.get("start") for each in node.find_all(sql.Identifier)]
            known = [start for start in starts if start is not None]
            return min(known) if known else column.meta.get("start")
        # The text of a literal, after the last name that comes before it.
        literal = next(node.find_all(*_LITERALS), node)
        is_text = isinstance(literal, sql.Literal) and literal.is_string
        word = literal.name if isinstance(literal, sql.Literal) and not is_text else literal.sql()
        before, parent = 0, node.parent
        while parent is not None and not before:
            ends = [each.meta.get("end") for each in parent.find_all(sql.Identifier)]
            before = max((end + 1 for end in ends if end is not None), default=0)
            parent = parent.parent
        found = [self._text.lower().find(word.lower(), start) for start in (before, 0)]
        return next((at for at in found if at >= 0), None)

    def check_nodes(self, node: sql.Expr, depth: int) -> None:
        """Refuse everything that is not a part of a condition."""
        if depth > _MAX_DEPTH:
            self._refuse(node, "The condition is nested too deeply.")
        children: Iterable[sql.Expr] = ()
        if isinstance(node, sql.And | sql.Or):
            children = _operands(node, type(node))
        else:
            self._check_node(node)
            if not isinstance(node, sql.Column | sql.Dot):
                children = node.iter_expressions()
        for child in children:
            if not isinstance(child, sql.DataType):
                self.check_nodes(child, depth + 1)

    def _check_node(self, node: sql.Expr) -> None:
        if type(node) not in _NODES:
            word = node.name if isinstance(node, sql.Anonymous) else type(node).key
            self._refuse(node, f"{word!r} is not possible in a condition.")
        if isinstance(node, sql.Column | sql.Dot):
            if isinstance(node, sql.Dot) and not isinstance(node.expression, sql.Identifier):
                self._refuse(node, "Only a field may follow a dot.")
            if isinstance(node.this, sql.Star):
                self._refuse(node, "* is not possible in a condition.")
            return
        if isinstance(node, sql.In) and not node.expressions:
            self._refuse(node, "IN needs a list of values.")
        if isinstance(node, sql.Cast):
            self._cast_type(node)
        if extra := [name for name, given in node.args.items() if given and name not in _ARGUMENTS]:
            # A clause that is not known here would change the meaning silently.
            self._refuse(node, f"{extra[0]!r} is not possible in a condition.")

    def _cast_type(self, node: sql.Cast) -> pa.DataType:
        kind = node.to.this
        if kind in (_Kind.DECIMAL, _Kind.NUMERIC if hasattr(_Kind, "NUMERIC") else None):
            numbers = [int(each.name) for each in node.to.expressions] or [10, 0]
            precision, scale = (*numbers, 0)[:2]
            if not 0 < precision <= 38 or not 0 <= scale <= precision:
                self._refuse(node, "A decimal has 1 to 38 digits.")
            return pa.decimal128(precision, scale)
        if kind not in _CASTS:
            self._refuse(node, f"Nothing can be cast to {node.to.sql().lower()!r} in a condition.")
        return _CASTS[kind]

    # ------------------------------------------------------------------ conditions

    def condition(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        """Return whether rows meet a condition: booleans and nulls."""
        found = self._value(node)
        if pa.types.is_null(found.type):
            return pa.scalar(None, pa.bool_())
        if not pa.types.is_boolean(found.type):
            self._refuse(
                node,
                f"A condition is needed here, not a value of the type {found.type}.",
                "Compare it with something.",
            )
        return found

    def _value(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        return _NODES[type(node)](self, node)

    def _paren(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        return self._value(node.this)

    def _junction(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        join = pc.and_kleene if isinstance(node, sql.And) else pc.or_kleene
        return functools.reduce(join, map(self.condition, _operands(node, type(node))))

    def _not(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        return pc.invert(self.condition(node.this))

    def _is(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        expected = node.expression
        if isinstance(expected, sql.Null):
            return pc.is_null(self._value(node.this))
        if not isinstance(expected, sql.Boolean):
            self._refuse(node, "IS is followed by NULL, TRUE or FALSE.")
        is_equal = pc.equal(self.condition(node.this), bool(expected.this))
        return pc.fill_null(is_equal, False)

    def _compare(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        one, other = self._align(node.this, node.expression)
        return compare_values(_COMPARED[type(node)][1], one, other)

    def _null_safe(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        one, other = self._align(node.this, node.expression)
        both = pc.and_(pc.is_null(one), pc.is_null(other))
        equal = pc.fill_null(compare_values("equal", one, other), False)
        found = pc.or_(both, equal)
        return pc.invert(found) if isinstance(node, sql.NullSafeNEQ) else found

    def _between(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        bounds = [("greater_equal", node.args["low"]), ("less_equal", node.args["high"])]
        found = [compare_values(how, *self._align(node.this, bound)) for how, bound in bounds]
        return pc.and_kleene(*found)

    def _in(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        each = [
            compare_values("equal", *self._align(node.this, value)) for value in node.expressions
        ]
        return functools.reduce(pc.or_kleene, each)

    def _like(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        escape = ""
        if isinstance(node, sql.Escape):
            node, escape = node.this, node.expression.name
        pattern = node.expression
        if not (isinstance(pattern, sql.Literal) and pattern.is_string) or len(escape) > 1:
            self._refuse(node, "LIKE needs a pattern between quotes.")
        value = self._value(node.this)
        if not is_text(value.type):
            self._refuse(node.this, f"LIKE needs a text, not a value of the type {value.type}.")
        found = pc.match_substring_regex(
            plain_text(value),
            like_regex(pattern.name, escape or "\\"),
            ignore_case=isinstance(node, sql.ILike),
        )
        return pc.invert(found) if node.args.get("negate") else found

    # ------------------------------------------------------------------ values

    def _column(self, node: sql.Expr) -> pa.Array:
        assert self._rows is not None
        path = _path(node)
        schema = self._rows.schema
        index = schema.get_field_index(path[0])
        if index < 0:
            if not self._is_strict:
                return pa.nulls(self._rows.num_rows)
            self._refuse(
                node,
                f"There is no column {path[0]!r}.",
                suggest(path[0], schema.names, "columns"),
            )
        found, before = self._rows.column(index), path[0]
        for name in path[1:]:
            if pa.types.is_null(found.type):
                return found
            if not pa.types.is_struct(found.type):
                self._refuse(node, f"{before!r} has no fields: its type is {found.type}.")
            if found.type.get_field_index(name) < 0:
                names = [field.name for field in found.type]
                self._refuse(
                    node, f"{before!r} has no field {name!r}.", suggest(name, names, "fields")
                )
            found, before = pc.struct_field(found, [found.type.get_field_index(name)]), name
        return plain_layout(found)

    def _literal(self, node: sql.Expr) -> pa.Scalar:
        if isinstance(node, sql.Null):
            return pa.scalar(None, pa.null())
        if isinstance(node, sql.Boolean):
            return pa.scalar(bool(node.this))
        if isinstance(node, sql.HexString):
            try:
                return pa.scalar(bytes.fromhex(node.name))
            except ValueError:
                self._refuse(node, "X'...' has an even number of hexadecimal digits.")
        if node.is_string:
            return pa.scalar(node.name, pa.string())
        return self._number(node, node.name)

    def _number(self, node: sql.Expr, text: str) -> pa.Scalar:
        try:
            if "e" in text.lower():
                return pa.scalar(float(text), pa.float64())
            number = Decimal(text)
            if number == int(number) and "." not in text and int(number) in _INT64:
                return pa.scalar(int(number), pa.int64())
            return pa.scalar(number)
        except (ValueError, InvalidOperation, pa.ArrowException):
            self._refuse(node, f"{text} is not a number that can be compared.")

    def _negative(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        value = node.this
        if not isinstance(value, sql.Literal) or value.is_string:
            self._refuse(node, "Only a number may follow a minus sign.")
        return self._number(node, f"-{value.name}")

    def _change_case(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        value = self._value(node.this)
        if not is_text(value.type):
            name = type(node).key
            self._refuse(node.this, f"{name} needs a text, not a value of the type {value.type}.")
        change = pc.utf8_lower if isinstance(node, sql.Lower) else pc.utf8_upper
        return change(plain_text(value))

    def _cast(self, node: sql.Expr) -> pa.Array | pa.Scalar:
        assert isinstance(node, sql.Cast)
        value, target = self._value(node.this), self._cast_type(node)
        if isinstance(value, pa.Scalar):
            return self._cast_literal(node.this, value, target)
        if pa.types.is_nested(value.type):
            self._refuse(node.this, f"A value of the type {value.type} cannot be cast.")
        try:
            return cast_or_null(value, target)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            self._refuse(node, f"A value of the type {value.type} cannot become {target}.")

    def _cast_literal(self, node: sql.Expr, value: pa.Scalar, target: pa.DataType) -> pa.Scalar:
        if not value.is_valid:
            return pa.scalar(None, target)
        try:
            [found] = cast_or_null(pa.array([value.as_py()], value.type), target)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
            found = pa.scalar(None)
        if not found.is_valid:
            self._refuse(
                node,
                f"{value.as_py()!r} is not a value of the type {type_name(target)}.",
                "Correct it."
                if not pa.types.is_temporal(target)
                else "Write it like 2026-01-31 or 2026-01-31 09:30:00.",
            )
        return found

    def _align(self, left: sql.Expr, right: sql.Expr) -> tuple[Any, Any]:
        """Return two operands as values of one type that Arrow compares."""
        one, other = self._value(left), self._value(right)
        if _is_quoted(left) and not is_text(other.type):
            one = self._as_literal_of(left, one, other.type)
        if _is_quoted(right) and not is_text(one.type):
            other = self._as_literal_of(right, other, one.type)
        common = common_type(one.type, other.type)
        if common is None:
            self._refuse(
                left,
                f"Values of the types {type_name(one.type)} and {type_name(other.type)} cannot"
                " be compared.",
                "Cast one of them: cast(... as ...).",
            )
        return as_type(one, common), as_type(other, common)

    def _as_literal_of(self, node: sql.Expr, value: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
        if pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
            return self._cast_literal(node, value, kind)
        return value


_NODES: dict[type[sql.Expr], Callable[[_Evaluation, Any], Any]] = {
    sql.Paren: _Evaluation._paren,
    sql.And: _Evaluation._junction,
    sql.Or: _Evaluation._junction,
    sql.Not: _Evaluation._not,
    sql.Is: _Evaluation._is,
    **dict.fromkeys(_COMPARED, _Evaluation._compare),
    sql.NullSafeEQ: _Evaluation._null_safe,
    sql.NullSafeNEQ: _Evaluation._null_safe,
    sql.Between: _Evaluation._between,
    sql.In: _Evaluation._in,
    sql.Like: _Evaluation._like,
    sql.ILike: _Evaluation._like,
    sql.Escape: _Evaluation._like,
    sql.Column: _Evaluation._column,
    sql.Dot: _Evaluation._column,
    **dict.fromkeys(_LITERALS, _Evaluation._literal),
    sql.Neg: _Evaluation._negative,
    sql.Lower: _Evaluation._change_case,
    sql.Upper: _Evaluation._change_case,
    sql.Cast: _Evaluation._cast,
    sql.TryCast: _Evaluation._cast,
}


def _operands(node: sql.Expr, kind: type[sql.Expr]) -> list[sql.Expr]:
    """Return the operands of a chain of one operator, in order; the chain may be long."""
    found: list[sql.Expr] = []
    while type(node) is kind:
        found.append(node.expression)
        node = node.this
    return [node, *reversed(found)]


def _is_quoted(node: sql.Expr) -> bool:
    while isinstance(node, sql.Paren):
        node = node.this
    return isinstance(node, sql.Literal) and bool(node.is_string)


def _filters(evaluation: _Evaluation, node: sql.Expr) -> Iterator[ColumnFilter]:
    """Yield conditions on single columns that follow from a condition."""
    for each in _operands(node, sql.And):
        if isinstance(each, sql.Paren):
            yield from _filters(evaluation, each.this)
        elif isinstance(each, sql.And):
            yield from _filters(evaluation, each)
        else:
            yield from _filter(evaluation, each)


def _filter(evaluation: _Evaluation, node: sql.Expr) -> Iterator[ColumnFilter]:
    if isinstance(node, sql.Is) and isinstance(node.expression, sql.Null):
        yield from _on_column(node.this, Comparison.IS_NULL)
    elif isinstance(node, sql.Not) and isinstance(node.this, sql.Is):
        if isinstance(node.this.expression, sql.Null):
            yield from _on_column(node.this.this, Comparison.IS_NOT_NULL)
    elif isinstance(node, sql.In):
        values = [_aligned_value(evaluation, node.this, each) for each in node.expressions]
        if all(value is not None for value in values):
            yield from _on_column(node.this, Comparison.IN, tuple(values))
    elif isinstance(node, sql.Between):
        bounds = {Comparison.AT_LEAST: node.args["low"], Comparison.AT_MOST: node.args["high"]}
        for comparison, bound in bounds.items():
            value = _aligned_value(evaluation, node.this, bound)
            if value is not None:
                yield from _on_column(node.this, comparison, (value,))
    elif type(node) in _COMPARED and (written := _COMPARED[type(node)][0]) is not None:
        column, literal, comparison = node.this, node.expression, written
        if not isinstance(column, sql.Column):
            column, literal = literal, column
            comparison = _MIRRORED.get(written, written)
        value = _aligned_value(evaluation, column, literal)
        if value is not None:
            yield from _on_column(column, comparison, (value,))


def _on_column(
    node: sql.Expr, comparison: Comparison, values: tuple[object, ...] = ()
) -> Iterator[ColumnFilter]:
    if isinstance(node, sql.Column) and len(path := _path(node)) == 1:
        yield ColumnFilter(column=path[0], comparison=comparison, values=values)


def _aligned_value(evaluation: _Evaluation, column: sql.Expr, literal: sql.Expr) -> object | None:
    """Return a literal as a value of Python of the type that it is compared as; None for others."""
    if not isinstance(column, sql.Column) or len(_path(column)) != 1:
        return None
    _, value = evaluation._align(column, literal)
    if not isinstance(value, pa.Scalar) or pa.types.is_floating(value.type):
        return None
    found: object = value.as_py()
    return found
