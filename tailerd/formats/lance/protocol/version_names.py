"""Maps names of manifests to versions. Pure.

Specification: "Manifest Naming Schemes". Two schemes: the version itself, or its difference to the
largest number, in 20 digits, so that the newest is listed first. Other names in the folder are not
versions: `d….manifest` is detached, `….manifest-{uuid}` is staged for an external manifest store,
`latest_version_hint.json` is only an optimisation.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from tailerd.changefeed.offset import BEFORE_ALL, Version
from tailerd.errors import LogChangedError

VERSIONS_FOLDER = "_versions"
SUFFIX = ".manifest"
FIRST = Version(1)
_LARGEST = (1 << 64) - 1
_DIGITS = 20
_NAME = re.compile(r"(\d{1,20})\.manifest", re.ASCII)
_STAGED = re.compile(r"(\d{1,20})\.manifest-.+", re.ASCII)


class Scheme(enum.Enum):
    """How a table names its manifests."""

    ASCENDING = 1
    DESCENDING = 2

    def format_name(self, version: int) -> str:
        """Return the name of a version's manifest."""
        if self is Scheme.DESCENDING:
            return f"{_LARGEST - version:0{_DIGITS}}{SUFFIX}"
        return f"{version}{SUFFIX}"


def parse_version(name: str) -> Version | None:
    """Return the version in a manifest's name; None for other names."""
    found = _version(_NAME, name)
    return None if found is None else found[0]


def staged_version(name: str) -> Version | None:
    """Return the version of a manifest staged for an external store; None for other names."""
    found = _version(_STAGED, name)
    return None if found is None else found[0]


def detect_scheme(names: Iterable[str]) -> Scheme | None:
    """Return the naming scheme of manifests; None if there is none.

    Raises:
        LogChangedError: Both schemes are used: manifests are being renamed.
    """
    found = {each[1] for name in names if (each := _version(_NAME, name)) is not None}
    if len(found) > 1:
        raise LogChangedError(
            "The manifests of the table are named in both ways, by version and in 20 digits, so"
            " it is not known which is the newest.",
            remedy="Where they are being renamed (`migrate_manifest_paths_v2`), wait; else rename"
            " the rest.",
        )
    return next(iter(found), None)


def _version(pattern: re.Pattern[str], name: str) -> tuple[Version, Scheme] | None:
    match = pattern.fullmatch(name)
    if match is None:
        return None
    reported = int(match[1])
    if len(match[1]) == _DIGITS:
        return (Version(_LARGEST - reported), Scheme.DESCENDING) if reported < _LARGEST else None
    return (Version(reported), Scheme.ASCENDING) if reported >= FIRST else None


class LanceVersions:
    """Consecutive versions, starting at 1."""

    def version_before(self, version: Version) -> Version:
        """Return the last version below `version`; `BEFORE_ALL` if there is none."""
        return Version(version - 1) if version > FIRST else BEFORE_ALL

    def next_version(self, version: Version) -> Version:
        """Return the first version above `version`, which may not exist yet."""
        return Version(max(version + 1, FIRST))


VERSIONS = LanceVersions()
