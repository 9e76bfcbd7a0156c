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
    path.write_text("tables: {orders: {sinks: {eu: {}, all: null}}, offers: {sinks: [}}")
    assert completed("o", config_path=path) == []
    path.write_text("tables: {orders: {sinks: {eu: {}, all: }}, offers: {sinks: 3}}")
    assert completed("o", config_path=path) == ["offers", "orders", "orders/all", "orders/eu"]
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


def test_names_come_from_the_configuration_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed("o", url="http://127.0.0.1:1") == []
    (tmp_path / "tailerd.yaml").write_text("tables: {orders: {}, payments: {}}")
    assert completed("o") == ["orders"]


@pytest.mark.parametrize("name", ["tail", "inspect", "history", "maintain", "init"])
def test_locations_of_tables_are_completed_as_folders(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", f"tailerd {name} ./la")
    monkeypatch.setenv("COMP_CWORD", "2")
    kind = get_completion_class("bash")
    assert kind is not None
    assert kind(cli, {}, "tailerd", "_TAILERD_COMPLETE").complete() == "dir,./la"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_program_that_is_not_on_the_path_is_called_by_its_own(
    command: Commands, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/my venv/bin/tailerd", "completion"])
    output = command("completion", shell).output
    assert "'/opt/my venv/bin/tailerd')" in output
    assert "$+commands" not in output
