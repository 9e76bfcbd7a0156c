"""Every part works without the libraries of extras that it does not need."""

from __future__ import annotations

import json
import subprocess
import sys

from tailerd.registry import EXTRAS, FORMATS, SINKS, STORES, VALUE_FORMATS

PROGRAM = """
import json, sys
from importlib import import_module

WITHOUT = set(json.loads(sys.argv[1]))

class Absent:
    # As if nothing but the package itself had been installed.
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in WITHOUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Absent)

from tailerd.errors import TailerdError
from tailerd.registry import load_class

found = {}
for reference in json.loads(sys.argv[2]):
    try:
        load_class(reference)
        found[reference] = ""
    except TailerdError as error:
        found[reference] = str(error)
print(json.dumps(found))
"""
IMPLEMENTATIONS = {
    "console": "tailerd.sinks.console.sink:ConsoleSink",
    "file": "tailerd.sinks.file.sink:FileSink",
    "bucket": "tailerd.sinks.bucket.sink:BucketSink",
    "http": "tailerd.sinks.http.sink:HttpSink",
    "kafka": "tailerd.sinks.kafka.sink:KafkaSink",
    "postgres": "tailerd.sinks.postgres.sink:PostgresSink",
}


def load_without_extras(references: list[str]) -> dict[str, str]:
    """Return the error of each part, empty if it can be loaded."""
    arguments = json.dumps(sorted(EXTRAS)), json.dumps(references)
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(ran.stdout)
    return found


def test_only_the_parts_of_an_extra_need_it() -> None:
    parts = [*FORMATS.values(), *SINKS.values(), *{*STORES.values()}, *VALUE_FORMATS.values()]
    found = load_without_extras([*parts, *IMPLEMENTATIONS.values()])
    missing = {reference: error for reference, error in found.items() if error}
    assert set(missing) == {IMPLEMENTATIONS["postgres"]}


def test_a_part_without_its_extra_says_how_to_install_it() -> None:
    [error] = load_without_extras([IMPLEMENTATIONS["postgres"]]).values()
    assert "needs psycopg, which is not installed" in error
    assert "pip install 'tailerd[postgres]'" in error
