"""Sentences on a terminal break between words; on a pipe, and as JSON, they stay as they are."""

from __future__ import annotations

import io

import pytest

from tailerd.cli.paragraphs import say, wrap_text

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
