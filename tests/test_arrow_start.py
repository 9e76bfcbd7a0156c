"""Arrow is started without pandas, and pandas is there for whoever asks for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest


def printed(program: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


START = "from tailerd.arrow_start import start_without_pandas; start_without_pandas()"


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
