"""Encodes errors of Python processes into the text that Spark passes on, and decodes them.

Spark passes on an error of a Python process as text only: its traceback, in the messages of one or
more Java exceptions. So in the worker (`worker_edge`) each error gets a trailer, one line after its
message with the error as data, and this module decodes it on the driver. The trailer has no
character that Spark, Java or a log escapes, substitutes or wraps, and it has a checksum: a trailer
that is truncated or mixed with other text is ignored.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from typing import cast

from tailerd.errors import EngineError, TailerdError

AS_DATA = "TAILERD_ERRORS_AS_DATA"
"""Environment variable of Spark's processes, set where a daemon reads their texts: only then errors
carry a trailer, because people want to read the sentence alone."""

_MARKER = "tailerd-error:1:"
_TRAILER = re.compile(rf"{_MARKER}([A-Za-z0-9_=-]*)(?::([0-9a-f]{{8}})\b)?")
_ANY_RAISED = re.compile(r"^(?:[a-z_]+\.)*([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_MAX_UNKNOWN = 600
_RELEVANT_LINES = re.compile(r"^(?!\s*(?:at |File |Traceback|\^|\.\.\. )).+$", re.MULTILINE)


def is_trailer(line: str) -> bool:
    """Return whether a note of an exception is a trailer."""
    return line.startswith(_MARKER)


def format_trailer(error: TailerdError) -> str:
    """Return the error as one line without spaces, of at most 256 KiB."""
    data = json.dumps(error.to_data(), separators=(",", ":"), ensure_ascii=False).encode()
    packed = base64.urlsafe_b64encode(data).decode("ascii")
    return f"{_MARKER}{packed}:{zlib.crc32(packed.encode('ascii')):08x}"


def parse_error(text: str) -> TailerdError:
    """Return the error whose trailer is in Spark's text of a failure.

    Java and Python both print causes before or below their effects, and Spark repeats texts: the
    last trailer is that of the error which ended the work.

    Returns:
        An `EngineError` with Spark's text if there is no trailer, or the last one is damaged.
    """
    trailers = _TRAILER.findall(text)
    error = _unpack_error(*trailers[-1]) if trailers else None
    return _unknown(_TRAILER.sub("", text)) if error is None else error


def _unpack_error(packed: str, checksum: str) -> TailerdError | None:
    if not checksum or zlib.crc32(packed.encode("ascii")) != int(checksum, 16):
        return None
    try:
        data = json.loads(base64.urlsafe_b64decode(packed))
    except (binascii.Error, ValueError, RecursionError):
        return None
    return TailerdError.from_data(cast("dict[str, object]", data)) if type(data) is dict else None


def _unknown(text: str) -> EngineError:
    """Return an error with the most informative line of a failure, for display only."""
    others = _ANY_RAISED.findall(text)
    if others:
        name, message = others[-1]
        return EngineError(f"The Spark query failed with {name}: {message.strip()[:_MAX_UNKNOWN]}")
    lines = _RELEVANT_LINES.findall(text.strip())
    reported = " ".join(line.strip() for line in lines)[:_MAX_UNKNOWN]
    return EngineError(f"The Spark query failed: {reported or 'it did not say why'}")
