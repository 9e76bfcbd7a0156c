"""Finds the Java that Spark would use, and chooses the engine of `engine: auto`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

MIN_JAVA = 17
_JAVA_TIMEOUT_SECONDS = 20
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaFound:
    """The Java that was found.

    Attributes:
        version: Major version of a usable Java; 0 if there is none.
        reason: Why it is not usable; empty if it is.
        is_passing: Whether the reason may pass by itself: Java was killed, or took too long.
    """

    version: int
    reason: str = ""
    is_passing: bool = False

    @property
    def is_usable(self) -> bool:
        """Whether Spark can start on it."""
        return not self.reason


def java_home_or_version(environment: Mapping[str, str] | None = None) -> JavaFound:
    """Find the Java that Spark would use: `JAVA_HOME`, else `java` on the `PATH`."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME", "")
    java = (
        str(Path(home) / "bin" / "java")
        if home
        else shutil.which("java", path=environment.get("PATH"))
    )
    if java is None:
        return JavaFound(
            version=0, reason="there is no `java` on the PATH and JAVA_HOME is not set"
        )
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=_JAVA_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        is_passing = not isinstance(error, FileNotFoundError | PermissionError)
        return JavaFound(
            version=0, reason=f"{java} cannot be started ({error})", is_passing=is_passing
        )
    match = _VERSION.search(answer.stderr) or _VERSION.search(answer.stdout)
    if match is None:
        reason = f"{java} does not print its version"
        return JavaFound(version=0, reason=reason, is_passing=answer.returncode < 0)
    # Java 8 calls itself 1.8.
    version = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if version < MIN_JAVA:
        return JavaFound(
            version=version, reason=f"{java} is Java {version}, Spark needs {MIN_JAVA} or newer"
        )
    return JavaFound(version=version)


def choose_engine(
    environment: Mapping[str, str] | None = None,
) -> tuple[Literal["spark", "arrow"], str]:
    """Return the engine of `engine: auto` on this machine, and the reason; may start Java."""
    if find_spec("pyspark") is None:
        return "arrow", "PySpark is not installed"
    java = java_home_or_version(environment)
    if not java.is_usable:
        return "arrow", java.reason
    return "spark", f"PySpark and Java {java.version} are installed"
