"""Runs the due jobs of a table in a short-lived process, which ends with them.

A job that is killed, or that runs out of memory, fails alone, and the system gets all its memory
back. A program reads requests as lines of JSON from standard input, and answers each with lines of
`Message` on standard output. It ends when its input ends, which also happens when this process is
killed. It is not meant to be started by hand.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO, Literal, TypeVar

import msgspec

from tailerd.changefeed.offset import Version
from tailerd.errors import BugError, EngineError, MaintenanceProcessError, TailerdError
from tailerd.formats.maintenance import (
    AskFloor,
    Decision,
    EngineSettings,
    JobResult,
    LogAssessment,
    MaintenancePolicies,
    RetentionFloor,
    RunOnEngine,
    TableMaintenance,
)
from tailerd.formats.statistics import TableSize
from tailerd.registry import AUTO, MAINTENANCE_PROGRAMS
from tailerd.storage.stores import Stores
from tailerd.telemetry import Telemetry, events

CANCEL_SECONDS = 1.5
"""How long a cancelled job may take to end before its process is killed, which is safe: a daemon
that shuts down waits a little longer before it treats its own threads as stuck."""
_PROGRAM = "tailerd.maintenance.job_program"
_LAST_WORDS_BYTES = 4096
_MAX_ANSWER_BYTES = 1 << 30
"""Names of a checkpoint's files, about 60 bytes each."""
# Freed arrays are returned to the system at once, as in the daemon itself.
_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(4 * 1024 * 1024), "MALLOC_ARENA_MAX": "2"}

_Result = TypeVar("_Result")


# ---------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTarget:
    """A table whose log is maintained.

    Attributes:
        location: Path or URL, as configured.
        folder: Its log, as the watchers call it.
        is_alone: Whether no pipeline delivers it.
        is_measured: Whether its size is measured too.
        allowed: Locations that symbolic links in its log may lead to, for reading.
        format: Name of its format; `auto` to detect it.
        ledgers: Locations of the ledgers of all pipelines.
    """

    location: str
    folder: str
    policies: MaintenancePolicies
    is_alone: bool
    is_measured: bool = False
    allowed: tuple[str, ...] = ()
    format: str = AUTO
    ledgers: tuple[str, ...] = ()


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Assess a table with its cleanup, apply a decision, or measure the table.

    Attributes:
        decision: The decision to apply.
        storage: How files are reached, as `StoreSettings.to_json`; may hold secrets.
    """

    kind: Literal["assess", "apply", "measure"]
    table: MaintenanceTarget
    is_requested: bool = False
    decision: Decision | None = None
    storage: dict[str, msgspec.Raw] = {}


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Run a job of a table's format on an engine.

    Attributes:
        location: Path or URL of the table.
        format: Name of the table's format.
        job: The format's request to itself, which passes through unchanged.
        master, conf: Of the engine's session.
        storage: How files are reached, as `StoreSettings.to_json`; may hold secrets.
    """

    location: str
    format: str
    job: bytes
    master: str = "local[*]"
    conf: dict[str, str] = {}
    storage: dict[str, msgspec.Raw] = {}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a program: its answer, or before that a question.

    Attributes:
        question: Id of the table of which it needs the retention floor; None in an answer.
        error: As `TailerdError.to_data`; None if the job succeeded.
        requests: Requests to the storage, by kind.
    """

    question: str | None = None
    error: dict[str, object] | None = None
    result: bytes = b""
    requests: dict[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The size of a table, and in how many seconds it changes without a commit; None for never."""

    size: TableSize
    due_seconds: float | None


async def answer_with(work: Awaitable[bytes]) -> Message:
    """Return the answer of a program that does this work."""
    try:
        return Message(result=await work)
    except TailerdError as error:
        failure = error
    except MemoryError:
        failure = MaintenanceProcessError("The process of a maintenance job ran out of memory.")
    except Exception as error:  # noqa: BLE001 - the parent reports it
        failure = BugError(
            f"A maintenance job failed unexpectedly: {error!r}.", remedy="Please report it."
        )
    return Message(error=failure.to_data())


def encode_result(value: object) -> bytes:
    """Encode a result; an error inside of it travels as data."""
    return msgspec.json.encode(value, enc_hook=_encode_error)


def decode_result(body: bytes, kind: type[_Result]) -> _Result:
    """Decode what `encode_result` returned."""
    return msgspec.json.decode(body, type=kind, dec_hook=_decode_error)


def _encode_error(value: object) -> object:
    if isinstance(value, TailerdError):
        return value.to_data()
    raise NotImplementedError(f"{type(value).__name__} is no part of a message.")


def _decode_error(kind: type, value: object) -> object:
    if kind is TailerdError and isinstance(value, dict):
        return TailerdError.from_data(value)
    if kind is object:
        # The payload of an assessment, which stays in its process.
        return value
    raise NotImplementedError(f"{kind.__name__} is no part of a message.")


# ---------------------------------------------------------------------- jobs in processes


class TableJobs:
    """Runs the jobs of one table in a process, which is started by the first and ended by `close`.

    Args:
        stores: How its files are reached; their settings are read at each job.
        needs: Returns which versions pipelines still need.
    """

    def __init__(
        self, table: MaintenanceTarget, *, stores: Stores, needs: AskFloor, telemetry: Telemetry
    ) -> None:
        self._table = table
        self._stores = stores
        self._telemetry = telemetry
        self._program = Program(_PROGRAM, fail=_explain_death, needs=needs)
        self.close = self._program.close

    def wrap(self, work: TableMaintenance) -> TableMaintenance:
        """Return maintenance that runs jobs in the process, and light assessments in this one."""
        return _ProcessMaintenance(self, work)

    async def measure(self) -> Measurement:
        """Measure the table.

        Raises:
            TailerdError: It cannot be read.
            MaintenanceProcessError: The process died.
        """
        return decode_result(await self.run("measure"), Measurement)

    async def run(
        self,
        kind: Literal["assess", "apply", "measure"],
        *,
        is_requested: bool = False,
        decision: Decision | None = None,
    ) -> bytes:
        """Run a job; return its result.

        Raises:
            TailerdError: The error of the job.
            MaintenanceProcessError: The process died.
        """
        request = JobRequest(
            kind=kind,
            table=self._table,
            is_requested=is_requested,
            decision=decision,
            storage=self._stores.settings.to_json(),
        )
        answer = await self._program.ask(request)
        for operation, count in answer.requests.items():
            self._telemetry.emit(events.StorageRequested(operation=operation, count=count))
        return _result(answer)


class _ProcessMaintenance:
    """`TableMaintenance` whose work that grows with the table is done in a process."""

    def __init__(self, jobs: TableJobs, work: TableMaintenance) -> None:
        self._jobs = jobs
        self._work = work

    @property
    def unleased_jobs(self) -> frozenset[str]:
        """Jobs that run without the lease."""
        return self._work.unleased_jobs

    async def assessment(
        self, *, with_cleanup: bool = True, is_requested: bool = False
    ) -> LogAssessment:
        """Assess here what each commit triggers; search for expired files in a process."""
        failure: TailerdError | None = None
        if with_cleanup:
            try:
                body = await self._jobs.run("assess", is_requested=is_requested)
                return decode_result(body, LogAssessment)
            except MaintenanceProcessError as error:
                failure = error
        found = await self._work.assessment(with_cleanup=False, is_requested=is_requested)
        return replace(found, cleanup_error=failure)

    async def apply(self, assessment: LogAssessment, decision: Decision) -> JobResult:
        """Run one due job, in the process, which assesses the table again."""
        body = await self._jobs.run("apply", decision=decision)
        result = decode_result(body, JobResult)
        self._work.note_result(assessment, result)
        return result

    def note_result(self, assessment: LogAssessment, result: JobResult) -> None:
        """Note the result of a job that another object ran."""
        self._work.note_result(assessment, result)

    async def check_readable_from(self, version: Version, reader: str) -> None:
        """Make sure that a reader which has yet to read `version` can continue from there."""
        await self._work.check_readable_from(version, reader)


def _explain_death(why: str) -> TailerdError:
    return MaintenanceProcessError(
        f"The process of a maintenance job failed: {why}. Its partial work is invisible to readers;"
        " deliveries continue."
    )


def on_engine(location: str, table_format: str, stores: Stores) -> RunOnEngine:
    """Return a function that runs requests of one table's format on the engine they name.

    Args:
        location: Path or URL of the table.
        table_format: Name of its format.
        stores: How its files are reached; their settings are read at each request.
    """

    async def run(engine: EngineSettings, job: bytes) -> bytes:
        request = EngineRequest(
            location=location,
            format=table_format,
            job=job,
            master=engine.master,
            conf=engine.conf,
            storage=stores.settings.to_json(),
        )
        program = Program(MAINTENANCE_PROGRAMS[engine.kind], fail=_engine_failed)
        try:
            return _result(await program.ask(request))
        finally:
            await program.close()

    return run


def _engine_failed(why: str) -> TailerdError:
    return EngineError(
        f"The program that runs a maintenance job failed: {why}.",
        remedy="Check `spark.master` and `spark.conf`, and the available memory.",
    )


def _result(answer: Message) -> bytes:
    if answer.error is not None:
        raise TailerdError.from_data(answer.error)
    return answer.result


# ---------------------------------------------------------------------- one process


class Program:
    """A program in a process. Used by one task at a time.

    Args:
        module: What to run.
        fail: Returns the error to raise if the program dies, from the reason.
        needs: Answers its questions.
    """

    def __init__(
        self, module: str, *, fail: Callable[[str], TailerdError], needs: AskFloor | None = None
    ) -> None:
        self._module = module
        self._fail = fail
        self._needs = needs
        self._process: Process | None = None
        self._reported: IO[bytes] | None = None

    async def ask(self, request: msgspec.Struct) -> Message:
        """Return the answer to a request; starts the program unless it runs.

        Raises:
            TailerdError: The program could not be started, or died.
        """
        try:
            process = self._process or await self._start()
        except OSError as error:
            raise self._fail(f"it could not be started: {error}") from error
        _write(process, request)
        answer = await self._read_answer(process)
        if answer is None:
            await self._end(process)
            reason = _reason(process.returncode or 0, _last_words(self._reported))
            await self.close()
            raise self._fail(reason)
        return answer

    async def close(self) -> None:
        """End the program; if a job was cancelled, it leaves nothing visible to readers."""
        process, self._process = self._process, None
        try:
            if process is not None:
                await self._end(process)
        finally:
            if self._reported is not None:
                self._reported.close()

    async def _start(self) -> Process:
        self._reported = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        # The same modules as here, and none from the current folder of this process.
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)  # noqa: PTH109
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._module),
            stdin=PIPE,
            stdout=PIPE,
            stderr=self._reported,
            env={**_ENVIRONMENT, **os.environ, "PYTHONPATH": path},
            # Ctrl-C is for the daemon, which lets the job end.
            start_new_session=True,
            limit=_MAX_ANSWER_BYTES,
        )
        return self._process

    async def _read_answer(self, process: Process) -> Message | None:
        """Return the program's next answer; None if it died."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            try:
                message = msgspec.json.decode(line, type=Message)
            except msgspec.MsgspecError:
                return None
            if message.question is None:
                return message
            floor = RetentionFloor()
            if self._needs is not None:
                floor = await self._needs(message.question)
            _write(process, floor)
        return None

    async def _end(self, process: Process) -> None:
        assert process.stdin is not None
        process.stdin.close()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def _write(process: Process, message: object) -> None:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(message) + b"\n")


def _last_words(reported: IO[bytes] | None) -> str:
    if reported is None:
        return ""
    reported.seek(max(0, reported.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
    lines = reported.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _reason(status: int, last_words: str) -> str:
    if status >= 0:
        return f"it ended with status {status} ({last_words})"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    is_killed = name == "SIGKILL"
    return f"it was ended by {name}" + ", as the system does where memory runs out" * is_killed
