"""Parts of another distribution, as if it were installed: by entry points in a folder."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailerd.formats.detect import table_format
from tailerd.registry import plugged_in

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def installed(folder: Path, group: str, parts: Mapping[str, str]) -> Iterator[None]:
    """Let this process, and those it starts, find `parts` (name -> module:Class) of a group."""
    about = folder / "parts_of_tests-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: parts-of-tests\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in parts.items()]
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        paths = [str(folder), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
        forget_parts()
        yield
    forget_parts()


def forget_parts() -> None:
    """Let this process look anew which distributions are installed."""
    importlib.invalidate_caches()
    plugged_in.cache_clear()
    table_format.cache_clear()
