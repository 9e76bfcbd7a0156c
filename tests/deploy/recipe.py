"""The Dockerfile, read as far as a test needs it."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_INSTRUCTION = re.compile(r"([A-Z]+)\s+(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage: from one FROM to the next.

    Attributes:
        base: What it is made from.
        name: How other stages call it.
        steps: Its instructions with their text, in order.
    """

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        """Return the texts of one instruction."""
        return [text for name, text in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        """Return the text that counts of an instruction that replaces earlier ones."""
        return self.all(instruction)[-1]

    def words(self, instruction: str) -> list[str]:
        """Return the words of an instruction in its exec form."""
        found: list[str] = json.loads(self.last(instruction).partition("[")[2].join("[]")[:-1])
        return found

    def pairs(self, instruction: str) -> dict[str, str]:
        """Return the `name=value` pairs of every such instruction."""
        words = [word for text in self.all(instruction) for word in shlex.split(text)]
        return {word.partition("=")[0]: word.partition("=")[2] for word in words}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole Dockerfile: arguments before the first stage, and the stages."""

    arguments: dict[str, str]
    stages: list[Stage]


def read_recipe(path: Path = ROOT / "Dockerfile") -> Recipe:
    """Read a Dockerfile; raises ValueError where a line is no instruction."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for text in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not text.strip():
            continue
        match = _INSTRUCTION.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no instruction")
        name, rest = match[1], " ".join(match[2].split(" "))
        if name == "FROM":
            base, _, called = rest.partition(" AS ")
            stages.append(Stage(base=base, name=called))
        elif stages:
            stages[-1].steps.append((name, rest))
        else:
            arguments[rest.partition("=")[0]] = rest.partition("=")[2]
    return Recipe(arguments=arguments, stages=stages)
