"""Configuration: models, the file and the environment, and the documents made of the models."""

from __future__ import annotations

from tailerd.config.loading import load_config
from tailerd.config.models import (
    Config,
    Engine,
    HttpConfig,
    SinkConfig,
    SparkConfig,
    TableConfig,
)
from tailerd.config.values import Address, Seconds, SizeBytes

__all__ = [
    "Address",
    "Config",
    "Engine",
    "HttpConfig",
    "Seconds",
    "SinkConfig",
    "SizeBytes",
    "SparkConfig",
    "TableConfig",
    "load_config",
]
