"""Prepares a session for executors on other machines: above all, ships this package to them."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tailerd
from tailerd.errors import ConfigError
from tailerd.spark.query_errors import AS_DATA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = "tailerd.zip"
PYTHON = "spark.pyspark.python"
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)


def is_local(master: str) -> bool:
    """Return whether the executors of a master are threads of the driver's own Java."""
    return master == "local" or master.startswith("local[")


def remote_settings() -> Mapping[str, str]:
    """Return Spark properties that executors need and threads of the driver do not."""
    return {
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.executorEnv.TZ": "UTC",
        f"spark.executorEnv.{AS_DATA}": "1",
    }


def ship_package(spark: SparkSession) -> None:
    """Send this package to the executors, even if their Python has one installed.

    Raises:
        ConfigError: It cannot be written to a temporary folder.
    """
    folder = temporary_folder("tailerd-package-")
    try:
        archive = write_archive(folder)
    except OSError as error:
        raise ConfigError(
            f"The package for the executors cannot be written to {folder}: {error.strerror}.",
            remedy="Free space there, or point TMPDIR at another folder.",
        ) from error
    spark.sparkContext.addPyFile(str(archive))


def temporary_folder(prefix: str) -> Path:
    """Return a new folder for files that Java reads; it is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_archive(folder: Path) -> Path:
    """Write the package's modules into an archive that Python can import from; return it."""
    package = Path(tailerd.__file__).parent
    archive = folder / ARCHIVE
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for module in sorted(package.rglob("*.py")):
            # The same modules make the same bytes: Spark rejects another file of the same name.
            entry = zipfile.ZipInfo(str(module.relative_to(package.parent)), _FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, module.read_bytes())
    return archive
