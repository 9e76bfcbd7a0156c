"""Read configurations from Kubernetes manifests, such as those that Helm renders.

The file is `tailerd.yaml` in a ConfigMap, the environment that of the workload which mounts it.
Values from a Secret are unknown; a placeholder, long enough to be valid, replaces them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from tailerd.config.loading import parse_config
from tailerd.config.models import ENV_PREFIX, Config
from tailerd.config.positions import yaml_mistake
from tailerd.errors import ConfigError

FILE_NAME = "tailerd.yaml"
_UNKNOWN = "known-to-kubernetes-only"
_LARGEST_TEXT = 16 * 1024**2


def read_manifests(text: str, where: str) -> dict[str, Config]:
    """Return every configuration in a stream of manifests, by the name of its ConfigMap.

    Args:
        text: YAML documents; lists of manifests are expanded.
        where: Source of the text, for errors.

    Raises:
        ConfigError: There is no configuration, or one is invalid.
    """
    manifests = list(_manifests(text, where))
    found = {}
    for manifest in manifests:
        if manifest.get("kind") != "ConfigMap" or not isinstance(manifest.get("data"), dict):
            continue
        content = manifest["data"].get(FILE_NAME)
        if isinstance(content, str):
            name = _name(manifest)
            environment = _environment(manifests, name)
            label = f"{FILE_NAME} of ConfigMap {name}"
            found[name] = parse_config(content, environment, where=label, substitutes=False)
    if not found:
        raise ConfigError(
            f"{where} has no ConfigMap with a file {FILE_NAME} among its {len(manifests)}"
            " manifests.",
            remedy="Give what `helm template` prints for the chart.",
        )
    return found


def _manifests(text: str, where: str) -> Iterator[dict[str, Any]]:
    if len(text) > _LARGEST_TEXT:
        raise ConfigError(f"{where} is larger than 16 MiB, too large for manifests.")
    try:
        ahead = list(yaml.load_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        position, mistake, remedy = yaml_mistake(error, text)
        raise ConfigError(
            f"{where}{position} is not valid YAML: {mistake}.", remedy=remedy
        ) from None
    for manifest in ahead:
        items = manifest.get("items") if isinstance(manifest, dict) else None
        if isinstance(items, list) and str(manifest.get("kind", "")).endswith("List"):
            yield from (item for item in items if isinstance(item, dict))
        elif isinstance(manifest, dict):
            yield manifest


def _name(manifest: dict[str, Any]) -> str:
    metadata = manifest.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _environment(manifests: list[dict[str, Any]], config_map: str) -> dict[str, str]:
    """Return the tailerd variables of containers in pods that mount a ConfigMap."""
    found = {}
    for pod in (pod for manifest in manifests for pod in _pods(manifest)):
        if not any(_mounts(volume, config_map) for volume in _sections(pod, "volumes")):
            continue
        for container in _sections(pod, "containers"):
            for variable in _sections(container, "env"):
                name = str(variable.get("name", ""))
                if name.upper().startswith(ENV_PREFIX):
                    found[name] = str(variable.get("value", _UNKNOWN))
    return found


def _sections(value: dict[str, Any], key: str) -> list[dict[str, Any]]:
    below = value.get(key)
    return [item for item in below if isinstance(item, dict)] if isinstance(below, list) else []


def _pods(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        else:
            for below in value.values():
                yield from _pods(below)


def _mounts(volume: dict[str, Any], config_map: str) -> bool:
    section = volume.get("configMap")
    return isinstance(section, dict) and section.get("name") == config_map
