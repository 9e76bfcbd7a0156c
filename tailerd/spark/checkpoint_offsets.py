"""Reads the offsets that Structured Streaming keeps for tables with one of Spark's own sinks."""

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
    """Return the end of the newest committed batch of a query; None if there is none.

    Raises:
        OffsetError: The checkpoint cannot be read.
    """
    done = logged_batches(checkpoint).committed
    return None if done is None else Offset.from_json(json.dumps(batch_end(checkpoint, done)))
