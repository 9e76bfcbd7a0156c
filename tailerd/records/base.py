"""The contract of an encoder: change rows in, the bytes of records out. Pure and columnar."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from tailerd.changefeed.change_batch import ChangeBatch


class Encoder(Protocol):
    """Turns the rows of a batch into records, each a finished byte string.

    An encoder keeps no state between batches, does no IO and asks no clock: the same batch gives
    the same bytes, in any process. A row does not depend on the batch it came in, except where a
    format joins rows (an update's two images), which never reaches beyond one batch.

    Errors: `TableError` for values that the format cannot carry or that are damaged. Nothing is
    returned then; no row is left out silently.
    """

    def encode(self, batch: ChangeBatch) -> pa.Array:
        """Return one `binary` or `large_binary` value per record, without nulls.

        One record per row in the order of the rows, unless the format says how it joins and
        orders rows. An empty batch gives an empty array.
        """
        ...

    def encode_lines(self, batch: ChangeBatch) -> bytes:
        r"""Return the same records as text lines, each ended by `\n`; no record contains one.

        An empty batch gives no bytes.
        """
        ...
