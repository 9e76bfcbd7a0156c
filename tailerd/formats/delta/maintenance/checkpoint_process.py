"""Has a checkpoint written by another program, which is gone afterwards with all its memory."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from asyncio.subprocess import PIPE
from contextlib import suppress
from typing import IO

import msgspec

from tailerd.errors import EngineError
from tailerd.formats.delta.log.log_writer import CheckpointResult
from tailerd.formats.delta.maintenance.checkpoint_request import CheckpointRequest, answer_in
from tailerd.registry import CHECKPOINT_PROGRAMS

_LAST_WORDS_BYTES = 4096
_ANSWER_BYTES = 1 << 30
"""Names of sidecars, 60 bytes each."""


async def checkpoint_by(engine: str, request: CheckpointRequest) -> CheckpointResult:
    """Let a program write a checkpoint; cancelled, it is killed and leaves what no reader sees.

    Args:
        engine: Which, by its kind in the registry.

    Raises:
        TailerdError: What the program raised.
        EngineError: It could not be started, or died.
    """
    # The same modules as here, and none from the folder this process happens to run in.
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)  # noqa: PTH109
    with tempfile.TemporaryFile() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", CHECKPOINT_PROGRAMS[engine]),
                stdin=PIPE,
                stdout=PIPE,
                stderr=said,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
                limit=_ANSWER_BYTES,
            )
        except OSError as error:
            raise EngineError(f"The program for checkpoints cannot be started: {error}.") from error
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            # Its input stays open: where it ends, the program takes its parent for dead.
            line = await process.stdout.readline()
            await process.wait()
        finally:
            process.stdin.close()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return answer_in(line, _last_words(said)).result()


def _last_words(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
