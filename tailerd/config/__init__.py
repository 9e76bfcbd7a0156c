"""Configuration: models, loading from file and environment, and documents made from the models."""

from __future__ import annotations

from tailerd.config.discovery import Discovery
from tailerd.config.http import HttpConfig, TlsConfig
from tailerd.config.loading import load_config
from tailerd.config.maintenance import MaintenanceConfig
from tailerd.config.models import Config
from tailerd.config.sections import (
    DiscoverConfig,
    Engine,
    SinkConfig,
    SparkConfig,
    TableConfig,
)
from tailerd.config.values import Address, Seconds, SizeBytes

__all__ = [
    "Address",
    "Config",
    "DiscoverConfig",
    "Discovery",
    "Engine",
    "HttpConfig",
    "MaintenanceConfig",
    "Seconds",
    "SinkConfig",
    "SizeBytes",
    "SparkConfig",
    "TableConfig",
    "TlsConfig",
    "load_config",
]
