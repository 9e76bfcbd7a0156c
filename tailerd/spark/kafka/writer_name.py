"""What brokers know a group as: its transactional id, and the key of its delivered batches.

Names of groups are alike in every folder of state: they tell brokers and delivery. Two daemons on
one Kafka would shut out each other and overwrite each other's records, so each group is given a
name of its own, kept beside its checkpoint; whoever runs a copy of the folder has the same one and
is shut out.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from tailerd.errors import OffsetError
from tailerd.spark.group.durable import read_document, write_durably

_FILE = "writer.json"


def writer_name(folder: Path, group: str) -> str:
    """Return the name of a group to brokers, the same in every run; blocking.

    Args:
        folder: Of the group.
        group: Its name.

    Raises:
        OffsetError: The file with the name is damaged.
        StorageError: It cannot be read or written.
    """
    path = folder / _FILE
    document = read_document(path)
    if not document:
        document = {"name": f"{group}-{uuid.uuid4().hex[:12]}"}
        write_durably(path, document)
    found = document.get("name")
    if not isinstance(found, str) or not found:
        raise OffsetError(
            f"{path} is damaged: it has no name.", hint="Restore the state folder from a copy."
        )
    return found
