"""The request to a program that runs one maintenance job on an engine, and its answer.

JSON, one line each. The job belongs to the format: its request and result pass through unchanged.
"""

from __future__ import annotations

import msgspec

from tailerd.errors import EngineError, TailerdError


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run a job of a table's format.

    Attributes:
        place: Path or URL of the table.
        format: Name of the table's format.
        job: The format's request to itself.
        master, conf: Of the engine's session.
        storage: How files are reached, as `StoreSettings.to_json`; may hold secrets.
    """

    place: str
    format: str
    job: bytes
    master: str = "local[*]"
    conf: dict[str, str] = {}
    storage: dict[str, msgspec.Raw] = {}


class EngineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the job: an error as `TailerdError.to_data`; without one, `result`."""

    error: dict[str, object] | None = None
    result: bytes = b""

    @classmethod
    def failed(cls, error: TailerdError) -> EngineAnswer:
        """Return the answer for a failed job."""
        return cls(error=error.to_data())

    def taken(self) -> bytes:
        """Return the format's result.

        Raises:
            TailerdError: What the job raised.
        """
        if self.error is not None:
            raise TailerdError.from_data(self.error)
        return self.result


def answer_in(line: bytes, last_words: str) -> EngineAnswer:
    """Read an answer.

    Args:
        last_words: What the program wrote to standard error, for the error's text.

    Raises:
        EngineError: It is not an answer: the program died.
    """
    try:
        return msgspec.json.decode(line, type=EngineAnswer)
    except msgspec.MsgspecError as error:
        raise EngineError(
            f"The program that runs a maintenance job ended without an answer: {last_words}",
            remedy="Check `spark.master` and `spark.conf`, and the available memory.",
        ) from error
