"""Arrow is started without pandas and huge pages, and they are there for whoever asks for them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    return done.stdout.split()


START = "from tailerd.arrow_start import start_arrow; start_arrow()"


def test_arrays_and_scalars_import_no_pandas_afterwards() -> None:
    made = "import sys; import pyarrow as pa; pa.array([1]); pa.scalar('a')"
    reported = (
        "print('pandas' in sys.modules, len([f for f in sys.meta_path if 'Pandas' in str(f)]))"
    )
    assert printed(f"{made}; {reported}") == ["True", "0"], "Arrow no longer needs this"
    assert printed(f"{START}; {made}; {reported}") == ["False", "0"]


def test_who_converts_to_pandas_later_has_it_whole() -> None:
    program = """
        import pyarrow as pa
        frame = pa.table({"a": [1, None]}).to_pandas()
        import pandas as pd
        texts = pa.array(pd.Series(["x", "y", "x"], dtype="category"))
        print(type(frame).__name__, str(texts.type).partition("<")[0])
    """
    assert printed(START + textwrap.dedent(program)) == ["DataFrame", "dictionary"]


@pytest.mark.parametrize("first", ["import pandas", "pass"])
def test_starting_twice_or_behind_pandas_changes_nothing(first: str) -> None:
    program = f"""
        {first}
        import pyarrow as pa
        {START}
        {START}
        import pandas as pd
        print(len(pa.array(pd.Series([1, 2]))), pd.__name__)
    """
    assert printed(program) == ["2", "pandas"]


@pytest.mark.parametrize("chosen", [None, "1"])
def test_memory_is_taken_in_small_pages_unless_the_user_chose_otherwise(chosen: str | None) -> None:
    program = f"""
        import os, re
        chosen = {chosen!r}
        os.environ.pop("MIMALLOC_ALLOW_THP", None)
        if chosen:
            os.environ["MIMALLOC_ALLOW_THP"] = chosen
        {START}
        import numpy as np
        import pyarrow as pa
        buffer = pa.allocate_buffer(128 << 20)
        np.frombuffer(buffer, np.uint8)[:] = 1
        about = open("/proc/self/smaps_rollup").read()
        taken = int(re.search("AnonHugePages: +([0-9]+)", about)[1])
        mapped = open("/proc/self/smaps").read()
        mappings = re.findall("Size: +([0-9]+) kB(?s:.*?)VmFlags:(.*)", mapped)
        asked = sum(int(size) for size, flags in mappings if " hg" in flags)
        print(taken >> 10, asked >> 10)
    """
    taken, asked = map(int, printed(program))
    # Where the system gives huge pages to nobody or to all, nobody has a choice.
    kinds = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    if "[madvise]" in kinds:
        if chosen:
            # The system may have none left to give.
            assert asked >= 128
        else:
            assert taken <= 16
            assert asked == 0


def test_importing_modules_makes_no_array() -> None:
    program = """
        import importlib, pkgutil, sys
        import tailerd
        for module in pkgutil.walk_packages(tailerd.__path__, "tailerd."):
            # PySpark itself imports pandas.
            if not module.name.startswith(("tailerd.spark", "tailerd.__main__")):
                importlib.import_module(module.name)
        print("pandas" in sys.modules)
    """
    assert printed(program) == ["False"]
