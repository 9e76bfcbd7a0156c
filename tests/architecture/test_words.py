"""What users and maintainers read uses the field's terms: none of those that were replaced."""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator

from tests.conftest import ROOT

NAMES = re.compile(
    r"\b(?:Journey(?:Plan)?|Fleet|HintBoard|HintRelay|Hint|bells?|Silence|LogGuard|ListingNeed"
    r"|CommitWindow|StateTimeline|Overheard|worth_another_look|KeeperProcess|keeper_program"
    r"|TableKeeper|Survey|_mourn|_weighed|_occasion|_Paper|StateForfeited|Awaited|kept_offsets"
    r"|handed_storage|Merger|Outgoing|Wire|spare_collections|put_volatile|begin_look|end_look"
    r"|on_poison|[Pp]oison|[Tt]roubles?|not_deliberate)\b"
    r"|tailerd_offset_lag|tailerd_snapshot_advance|tailerd_daemon_troubles"
)
"""Names of the product that said something else to people who know the field."""

PHRASES = re.compile(
    r"\b(?:anew|truthfully|mended|likewise|[Ww]hoever|hears|Look whether|cannot be (?:had|told)"
    r"|may be had|told apart|[Nn]obody|[Ss]omebody|go(?:es)? on|Errors met|99 of 100|left alone"
    r"|for ever|shut out|made again|is held\.|pipeline ended|knows where it begins|so many commits"
    r"|Trouble)\b"
)
"""Words that no message, option, description or page has."""

FIRST_VERBS = re.compile(r"(?:Tell|Hear|Prepare|Say)\b")
"""Verbs that no docstring begins with: it says what is returned, written or sent."""

IDENTIFIER = re.compile(
    r"(?:^|_)(?:tells?|told|hears?|heard|behind|beside|anew|whoever|nobody|somebody)(?:_|$)",
    re.IGNORECASE,
)
"""Words that no identifier of the product contains."""

OUTER_NAMES = {
    "tell": "a method of Python's files",
    "hear": "a method of `ChangeSource`, which plug-ins implement",
}
"""Identifiers that others define."""

TEXT_WORDS = re.compile(
    r"\b(?:whoever|anew|nobody|somebody|behind|besides?|hears|may be had|likewise)\b", re.IGNORECASE
)
"""Words that no docstring and no comment has."""

HINT = re.compile(r"\b[Hh]int(?:s|ed)?\b")
"""Means one thing: `_last_checkpoint`, and Lance's file of the same kind, which may be stale."""

TEXTS = ("tailerd/docs", "config", "helm", "README.md")


def tracked(*locations: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *locations], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def sources() -> Iterator[tuple[str, str]]:
    for name in tracked("tailerd"):
        if name.endswith((".py", ".js", ".html", ".md")):
            yield name, (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def modules() -> list[tuple[str, str, ast.Module]]:
    """Return the name, source and syntax tree of each module."""
    python = (each for each in sources() if each[0].endswith(".py"))
    return [(name, source, ast.parse(source)) for name, source in python]


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that are no docstrings, each with its line."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(id(node.value))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) not in docstrings and " " in node.value:
            yield node.lineno, node.value


def test_no_name_that_was_replaced_is_left() -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for name, text in sources()
        for number, line in enumerate(text.splitlines(), 1)
        for match in NAMES.finditer(line)
    ]
    assert found == []


def test_messages_and_descriptions_are_in_plain_words() -> None:
    found = [
        f"{name}:{number}: {match[0]}: {text[:80]}"
        for name, _, tree in modules()
        for number, text in messages(tree)
        for match in PHRASES.finditer(text)
    ]
    assert found == []


def test_documents_configuration_and_charts_are_in_plain_words() -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for name in tracked(*TEXTS)
        if name.endswith((".md", ".yaml", ".json", ".tpl", ".txt"))
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1)
        for match in (*PHRASES.finditer(line), *NAMES.finditer(line))
    ]
    assert found == []


def test_docstrings_begin_with_a_verb_of_the_field() -> None:
    documented = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{name}:{node.lineno}: {text.splitlines()[0]}"
        for name, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, documented)
        and (text := ast.get_docstring(node) or "")
        and FIRST_VERBS.match(text)
    ]
    assert found == []


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines or uses, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name
            case _:
                pass


def explanations(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines of a module's comments and docstrings, each with its number."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    lines = source.splitlines()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                end = node.lineno if node.end_lineno is None else node.end_lineno
                yield from enumerate(lines[node.lineno - 1 : end], node.lineno)
            case _:
                pass


def test_identifiers_are_in_plain_words() -> None:
    found = [
        f"{name}:{number}: {identifier}"
        for name, _, tree in modules()
        for number, identifier in identifiers(tree)
        if IDENTIFIER.search(identifier) and identifier not in OUTER_NAMES
    ]
    assert found == []


def test_only_what_others_define_is_called_as_they_call_it() -> None:
    defined = {
        (node.name, name)
        for name, _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in OUTER_NAMES
    }
    files = {"storage/output", "storage/s3/remote_input"}
    sources_of_changes = {
        "formats/base",
        "formats/versioned_source",
    }
    assert defined == {
        *(("tell", f"tailerd/{name}.py") for name in files),
        *(("hear", f"tailerd/{name}.py") for name in sources_of_changes),
    }


def test_docstrings_and_comments_are_in_plain_words() -> None:
    found = [
        f"{name}:{number}: {match[0]}"
        for name, source, tree in modules()
        for number, text in explanations(source, tree)
        for match in TEXT_WORDS.finditer(text)
    ]
    assert found == []


def test_hint_means_one_thing() -> None:
    found = [
        f"{name}:{number}"
        for name, text in sources()
        if not name.startswith(("tailerd/formats/delta/", "tailerd/formats/lance/protocol/"))
        for number, line in enumerate(text.splitlines(), 1)
        if HINT.search(line)
    ]
    assert found == []
