"""What users and maintainers read uses the field's terms: none of those that were replaced."""

from __future__ import annotations

import ast
import re
import subprocess
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
    r"|may be had|told apart|nobody|somebody|goes on behind|Errors met|99 of 100|left alone"
    r"|is held\.|pipeline ended|knows where it begins|so many commits|Trouble)\b"
)
"""Words that no message, option, description or page has."""

FIRST_VERBS = re.compile(r"(?:Tell|Hear|Prepare|Say)\b")
"""Verbs that no docstring begins with: it says what is returned, written or sent."""

HINT = re.compile(r"\b[Hh]int(?:s|ed)?\b")
"""Means one thing: `_last_checkpoint`, and Lance's file of the same kind, which may be stale."""

TEXTS = ("tailerd/docs", "config", "helm", "README.md")


def tracked(*places: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.split()


def sources() -> Iterator[tuple[str, str]]:
    for name in tracked("tailerd"):
        if name.endswith((".py", ".js", ".html", ".md")):
            yield name, (ROOT / name).read_text(encoding="utf-8")


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module that are no docstrings, each with its line."""
    tree = ast.parse(source)
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
        for name, source in sources()
        if name.endswith(".py")
        for number, text in messages(source)
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
        for name, source in sources()
        if name.endswith(".py")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented)
        and (text := ast.get_docstring(node) or "")
        and FIRST_VERBS.match(text)
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
