"""What a failed query says, turned back into the error that was raised in its Python process."""

from __future__ import annotations

import re

from tailerd import errors
from tailerd.errors import EngineError, TailerdError

_ANY_RAISED = re.compile(r"^(?:[a-z_]+\.)*([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_RAISED = re.compile(r"^\s*(?:pyspark\.\S+:\s*)?tailerd\.errors\.(\w+): (.+)$", re.MULTILINE)
_MAX_UNKNOWN = 600
_LINES_THAT_TELL = re.compile(r"^(?!\s*(?:at |File |Traceback|\^|\.\.\. )).+$", re.MULTILINE)


def error_of(text: str) -> TailerdError:
    """Return the tailerd error whose traceback is in `text`, else an `EngineError` about it.

    Spark hands errors of Python processes on as text only.
    """
    raised = _RAISED.findall(text)
    for name, message in reversed(raised):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TailerdError):
            return kind(message.strip())
    others = _ANY_RAISED.findall(text)
    if others:
        name, message = others[-1]
        return EngineError(f"The Spark query failed with {name}: {message.strip()[:_MAX_UNKNOWN]}")
    lines = _LINES_THAT_TELL.findall(text.strip())
    said = " ".join(line.strip() for line in lines)[:_MAX_UNKNOWN]
    return EngineError(f"The Spark query failed: {said or 'it did not say why'}")
