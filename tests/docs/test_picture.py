"""The moving picture: made from what a terminal showed, and in step with what README shows."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from tests.conftest import ROOT
from tests.docs.picture import COLUMNS, ROWS, Line, picture

SHOWN = ROOT / "tests/docs/tail.svg"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_picture_of_readme_shows_a_run() -> None:
    lines = texts(SHOWN.read_text())
    assert lines[0] == "$ tailerd tail orders --from snapshot"
    assert lines[1].split()[:2] == ["change", "version"]
    kinds = {line.split()[0] for line in lines[2:]}
    assert {"insert", "update_postimage", "delete"} <= kinds
    assert max(map(len, lines)) <= COLUMNS
    assert SHOWN.name in (ROOT / "README.md").read_text()


def test_lines_appear_at_their_times_and_the_screen_scrolls() -> None:
    svg = picture([Line(float(number), f"line {number}") for number in range(ROWS + 2)])
    root = ET.fromstring(svg)
    moves = next(root.iter(f"{SVG}animateTransform")).attrib["values"].split(";")
    assert len(moves) == 3
    starts = re.findall(r'keyTimes="0;([0-9.]+);1"', svg)
    assert starts == sorted(starts)
    assert len(starts) == ROWS + 2


def test_colours_are_kept_and_markup_is_escaped() -> None:
    svg = picture([Line(0.0, "\x1b[32minsert\x1b[0m <b> & c")])
    assert texts(svg) == ["insert <b> & c"]
    assert 'fill="#57ab5a">insert' in svg
