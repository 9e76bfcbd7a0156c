"""Runs a maintenance job on an engine, in a program that ends with the job and frees all memory."""

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
from tailerd.formats.maintenance import EngineSettings, RunOnEngine
from tailerd.maintenance.engine_messages import EngineRequest, answer_in
from tailerd.registry import MAINTENANCE_PROGRAMS
from tailerd.storage.stores import Stores

_LAST_WORDS_BYTES = 4096
_ANSWER_BYTES = 1 << 30
"""Names of a checkpoint's files, about 60 bytes each."""


def on_engine(place: str, table_format: str, stores: Stores) -> RunOnEngine:
    """Return a function that runs requests of one table's format on the engine they name.

    Args:
        place: Path or URL of the table.
        table_format: Name of its format.
        stores: How its files are reached; asked for their settings at each request.
    """

    async def run(engine: EngineSettings, job: bytes) -> bytes:
        request = EngineRequest(
            place=place,
            format=table_format,
            job=job,
            master=engine.master,
            conf=engine.conf,
            storage=stores.settings.to_json(),
        )
        return await run_request(engine.kind, request)

    return run


async def run_request(engine: str, request: EngineRequest) -> bytes:
    """Let a program run a job; if cancelled, kill it: it leaves nothing visible to readers.

    Args:
        engine: Which, by its kind in the registry.

    Returns:
        The format's result.

    Raises:
        TailerdError: What the job raised.
        EngineError: The program could not be started, or died.
    """
    # The same modules as here, and none from the current folder of this process.
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)  # noqa: PTH109
    with _temporary_file() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", MAINTENANCE_PROGRAMS[engine]),
                stdin=PIPE,
                stdout=PIPE,
                stderr=said,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
                limit=_ANSWER_BYTES,
            )
        except OSError as error:
            raise EngineError(
                f"The program for maintenance jobs cannot be started: {error}."
            ) from error
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            # Its input stays open: the program exits when its input ends.
            line = await process.stdout.readline()
            await process.wait()
        finally:
            process.stdin.close()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return answer_in(line, _last_words(said)).taken()


def _temporary_file() -> IO[bytes]:
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise EngineError(
            f"The program for maintenance jobs cannot be started: {error}.",
            remedy="Free space in the temporary folder.",
        ) from error


def _last_words(said: IO[bytes]) -> str:
    said.seek(max(0, said.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
