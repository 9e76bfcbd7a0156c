"""All classes of errors, and one error of each with every field given."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import tailerd
from tailerd.errors import TailerdError

PACKAGE = Path(tailerd.__file__).parent
# Each process that collects tests looks through the whole package: parsing it takes a second.
_BASES = re.compile(r"^ *class \w+\(([^()]*)\)", re.MULTILINE)
_NAME = re.compile(r"[\w.]+")


def _load_all() -> None:
    """Import the modules that define an error of their own, and no others.

    Some modules hide a name of their package where they are imported by themselves.
    """
    for path in PACKAGE.rglob("*.py"):
        names = {
            name for bases in _BASES.findall(path.read_text()) for name in _NAME.findall(bases)
        }
        if names & {kind.__name__ for kind in _classes(TailerdError)}:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            import_module(".".join(parts))


def _classes(root: type[TailerdError]) -> list[type[TailerdError]]:
    ours = [kind for kind in root.__subclasses__() if kind.__module__.startswith("tailerd.")]
    return [root, *(found for kind in ours for found in _classes(kind))]


_load_all()
CLASSES = _classes(TailerdError)


def with_all_fields(kind: type[TailerdError]) -> TailerdError:
    """Return an error of a class with a value for each of its fields."""
    error = kind('It broke: "{x}" <y>\n$1 žluť.', remedy="Mend it:\n  `rm -r`.")
    for number, (name, expected) in enumerate(kind.fields.items()):
        values = {str: f"{name} {number}", int: number + 1, tuple: ("s3://a/b", "s3://a/c")}
        setattr(error, name, values[expected])
    return error
