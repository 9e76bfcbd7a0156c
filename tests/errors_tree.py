"""All classes of errors, and one error of each with every field given."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import tailerd
from tailerd.errors import TailerdError


def _load_all() -> None:
    """Import the modules that may define an error of their own."""
    for module in pkgutil.walk_packages(tailerd.__path__, "tailerd."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def _classes(root: type[TailerdError]) -> list[type[TailerdError]]:
    ours = [kind for kind in root.__subclasses__() if kind.__module__.startswith("tailerd.")]
    return [root, *(found for kind in ours for found in _classes(kind))]


_load_all()
CLASSES = _classes(TailerdError)


def with_all_fields(kind: type[TailerdError]) -> TailerdError:
    """Return an error of a class with a value for each of its fields."""
    error = kind('It broke: "{x}" <y>\n$1 žluť.', hint="Mend it:\n  `rm -r`.")
    for number, (name, expected) in enumerate(kind.fields.items()):
        values = {str: f"{name} {number}", int: number + 1, tuple: ("s3://a/b", "s3://a/c")}
        setattr(error, name, values[expected])
    return error
