"""Where Structured Streaming keeps the offsets of tables whose sink is Spark's own, as files."""

from __future__ import annotations

import json
from pathlib import Path

from tailerd.changefeed.offset import Offset
from tailerd.config import Config
from tailerd.spark.checkpoints import batch_end, logged_batches


def stream_checkpoint(config: Config, name: str) -> Path:
    """Return the folder of a table's checkpoint."""
    return Path(config.state).absolute() / "spark" / name


def delivered_until(checkpoint: Path) -> Offset | None:
    """Return the end of the newest batch of a query that is done; None before it.

    Raises:
        OffsetError: The checkpoint cannot be read.
    """
    done = logged_batches(checkpoint).committed
    return None if done is None else Offset.from_json(json.dumps(batch_end(checkpoint, done)))
