"""Whether what a configuration asks for is installed here."""

from __future__ import annotations

from importlib.util import find_spec

from tailerd.config.models import Config
from tailerd.errors import ConfigError


def require_engines(config: Config) -> None:
    """Make sure that the engines of all tables are installed; an image without Java has no PySpark.

    Raises:
        ConfigError: One is not.
    """
    engines = {f"tables.{name}": config.engine_of(name) for name in config.tables}
    for name, group in config.discover.items():
        engines[f"discover.{name}"] = group.template.engine or config.engine
    wanting = [name for name, engine in engines.items() if engine == "spark"]
    if wanting and find_spec("pyspark") is None:
        raise ConfigError(
            f"The engine of {wanting[0]} is spark, but PySpark is not installed here.",
            remedy="Set engine: arrow, or use an installation or image with Spark and Java.",
        )
