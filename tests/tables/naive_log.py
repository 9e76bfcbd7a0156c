"""A naive replay of JSON commits: slow, obvious, and therefore the model to test against."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from tests.tables.vectors import unique_id

Action = dict[str, Any]
FileKey = tuple[str, str]


def key_of(file_action: Action) -> FileKey:
    """Return the identity of the inside of an `add` or `remove`."""
    return unquote(file_action["path"]), unique_id(file_action.get("deletionVector"))


@dataclass(slots=True)
class NaiveState:
    """A table's state at one version, as plain dictionaries."""

    version: int = -1
    protocol: Action | None = None
    metadata: Action | None = None
    adds: dict[FileKey, Action] = field(default_factory=dict)
    removes: dict[FileKey, Action] = field(default_factory=dict)
    transactions: dict[str, Action] = field(default_factory=dict)
    domains: dict[str, Action] = field(default_factory=dict)

    def apply(self, version: int, actions: list[Action]) -> None:
        """Apply one commit; removes first, because their order in a commit means nothing."""
        self.version = version
        for action in actions:
            if "remove" in action:
                key = key_of(action["remove"])
                self.adds.pop(key, None)
                self.removes[key] = action["remove"]
        for action in actions:
            [(kind, body)] = action.items()
            match kind:
                case "add":
                    self.adds[key_of(body)] = body
                    self.removes.pop(key_of(body), None)
                case "protocol":
                    self.protocol = body
                case "metaData":
                    self.metadata = body
                case "txn":
                    self.transactions[body["appId"]] = body
                case "domainMetadata":
                    self.domains[body["domain"]] = body

    def actions(self) -> list[Action]:
        """Return the actions a checkpoint of this state holds, in a stable order."""
        found: list[Action] = []
        if self.protocol is not None:
            found.append({"protocol": self.protocol})
        if self.metadata is not None:
            found.append({"metaData": self.metadata})
        found += [{"txn": body} for body in self.transactions.values()]
        found += [{"domainMetadata": body} for body in self.domains.values()]
        found += [{"remove": {**body, "dataChange": False}} for body in self.removes.values()]
        found += [{"add": {**body, "dataChange": False}} for body in self.adds.values()]
        return found


def read_commit(path: Path) -> list[Action]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def replay(log: Path, version: int | None = None, *, first: int = 0) -> NaiveState:
    """Replay the commits `first`..`version` (default: the newest) of a `_delta_log` folder."""
    state = NaiveState()
    for path in sorted(log.glob("*.json")):
        if not path.stem.isdigit() or int(path.stem) < first:
            continue
        if version is not None and int(path.stem) > version:
            break
        state.apply(int(path.stem), read_commit(path))
    return state
