"""`tailerd completion`: programs for three shells, and names of tables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from tailerd.cli import cli
from tailerd.cli.completion import table_names
from tailerd.cli.pause import command as pause
from tests.cli.commands import Commands
from tests.cli.test_daemon_client import STATUS, listening


def completed(incomplete: str, **params: object) -> list[str]:
    context = click.Context(pause)
    context.params.update(params)
    return [each.value for each in table_names(context, click.Argument(["name"]), incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_program_that_asks_tailerd(command: Commands, shell: str) -> None:
    ran = command("completion", shell)
    assert (ran.status, ran.errors) == (0, "")
    assert f"_TAILERD_COMPLETE={shell}_complete" in ran.output
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=ran.output, text=True).returncode == 0


def test_another_shell_is_refused(command: Commands) -> None:
    assert command("completion", "csh").status == 2


def test_names_come_from_the_configuration_even_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("tables:\n  orders: {pth: x}\n  offers: {}\n  payments: {}\n")
    assert completed("o", config_path=path) == ["offers", "orders"]
    path.write_text("tables: [")
    assert completed("o", config_path=path) == []
    assert completed("o", config_path=tmp_path / "nowhere") == []


def test_names_come_from_the_daemon_that_runs() -> None:
    with listening(body=STATUS) as (url, _):
        assert completed("", url=url) == ["orders", "refunds"]
    assert completed("", url="http://127.0.0.1:1") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_names_of_tables(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("tables: {orders: {}, offers: {}, payments: {}}\n")
    monkeypatch.setenv("COMP_WORDS", f"tailerd pause --config {path} o")
    # Fish gives the word itself, the others its location.
    monkeypatch.setenv("COMP_CWORD", "o" if shell == "fish" else "4")
    kind = get_completion_class(shell)
    assert kind is not None
    answer = kind(cli, {}, "tailerd", "_TAILERD_COMPLETE").complete()
    assert [name in answer for name in ("orders", "offers", "payments")] == [True, True, False]
