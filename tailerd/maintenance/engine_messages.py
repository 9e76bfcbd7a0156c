"""The request to a program that runs one maintenance job on an engine, and its answer.

JSON, one line each. The job itself is the format's: its request and result pass through.
"""

from __future__ import annotations

import msgspec

from tailerd import errors
from tailerd.errors import BugError, EngineError, TailerdError


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run a job of a table's format.

    Attributes:
        place: Path or URL of the table.
        format: Name of the table's format.
        job: The format's request to itself.
        master, conf: Of the engine's session.
    """

    place: str
    format: str
    job: bytes
    master: str = "local[*]"
    conf: dict[str, str] = {}


class EngineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it: `error` is the class of an error; where it is empty, `result` counts."""

    error: str = ""
    message: str = ""
    hint: str = ""
    result: bytes = b""

    @classmethod
    def failed(cls, error: TailerdError) -> EngineAnswer:
        """Return the answer of a program whose job failed."""
        return cls(error=type(error).__name__, message=error.message, hint=error.hint)

    def taken(self) -> bytes:
        """Return the format's result.

        Raises:
            TailerdError: What the job raised.
        """
        if self.error:
            kind = getattr(errors, self.error, None)
            if not (isinstance(kind, type) and issubclass(kind, TailerdError)):
                kind = BugError
            raise kind(self.message, hint=self.hint)
        return self.result


def answer_in(line: bytes, last_words: str) -> EngineAnswer:
    """Read an answer.

    Args:
        last_words: What the program wrote to standard error, for the error's text.

    Raises:
        EngineError: It is none: the program died.
    """
    try:
        return msgspec.json.decode(line, type=EngineAnswer)
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"The program that runs a maintenance job ended without an answer: {last_words}",
            hint="Look at `spark.master` and `spark.conf`, and at the memory there is.",
        ) from error
