"""Sentences on a terminal break between words; on a pipe, and as JSON, they stay as they are."""

from __future__ import annotations

import io

import pytest

from tailerd.cli.paragraphs import say, say_error, show_pages, wrap_text

LONG = "error[x]: " + "A sentence of words. " * 6 + "See /a/" + "long/" * 20


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_breaks_between_words_and_keeps_paths_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = wrap_text(LONG, Screen()).split("\n")
    assert [len(line) > 60 for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1] == "/a/" + "long/" * 20
    assert " ".join(lines) == LONG


def test_lines_that_were_there_stay_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = "t.yaml:1:2: one\n  t.yaml:2:2: two"
    assert wrap_text(text, Screen()) == text


def test_a_pipe_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert wrap_text(LONG, io.StringIO()) == LONG


def test_json_is_never_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    say(f'{{"a": "{LONG}"}}', is_json=True)
    say(LONG)
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f'{{"a": "{LONG}"}}'
    assert len(others) > 1


def test_a_terminal_that_does_not_say_its_width_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert wrap_text(LONG, Screen()) == LONG


def test_an_error_on_a_terminal_is_coloured_with_its_remedy_on_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("click.utils.should_strip_ansi", lambda *_, **__: False)
    say_error("storage", "The disk is full. " * 5, "Free space on it.")
    *message, remedy = capsys.readouterr().err.splitlines()
    assert message[0].startswith("\x1b[31m\x1b[1merror[storage]:\x1b[0m The disk is full.")
    assert len(message) > 1
    assert remedy == "\x1b[36m\x1b[1mremedy:\x1b[0m Free space on it."
    monkeypatch.setenv("NO_COLOR", "1")
    say_error("zone_assumed", "UTC is assumed.", kind="warning")
    assert capsys.readouterr().err == "warning[zone_assumed]: UTC is assumed.\n"


def test_an_error_on_a_pipe_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_error("storage", "The disk is full.", "Free space.")
    assert capsys.readouterr().err == "error[storage]: The disk is full. Free space.\n"


@pytest.mark.parametrize(("lines", "is_paged"), [(10, False), (100, True)])
def test_only_what_does_not_fit_the_terminal_is_paged(
    monkeypatch: pytest.MonkeyPatch, lines: int, is_paged: bool
) -> None:
    shown: dict[str, str] = {}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setattr("click.echo_via_pager", lambda text: shown.update(paged=text))
    monkeypatch.setattr("click.echo", lambda text, nl: shown.update(printed=text))
    show_pages("line\n" * lines)
    assert shown == {"paged" if is_paged else "printed": "line\n" * lines}
