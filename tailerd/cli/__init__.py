"""The command line: `tailerd COMMAND`, one module per command, loaded when it is used.

Exit status: 0 done, 1 something failed while running, 2 wrong usage or configuration, 3 the table
cannot be read correctly, 130 on Ctrl-C. An error is one paragraph on standard error; standard
output carries data only.
"""

from __future__ import annotations

import atexit
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from tailerd import __version__
from tailerd.cli.paragraphs import say_error
from tailerd.errors import StorageError, TailerdError, TooLargeError, UsageError
from tailerd.remedies import TAIL, Reader

COMMANDS = {
    "demo": "Run a table that keeps changing, and print its changes. Needs no setup.",
    "init": "Write a configuration for the tables of a folder or bucket.",
    "doctor": "Check this machine and a configuration, with a remedy for each problem.",
    "run": "Deliver the changes of every configured table: the daemon.",
    "tail": "Print the changes of one table.",
    "inspect": "Show the newest version of a table, or an older one: schema, protocol, files.",
    "growth": "Show how a table grew: size, files, commits, a forecast, unusual commits.",
    "history": "Show each commit in a line: its operation, and how tailerd reads its changes.",
    "status": "Show the pipelines of the running daemon.",
    "top": "Show the pipelines and their newest changes on a live screen.",
    "pause": "Pause one pipeline of the running daemon.",
    "resume": "Resume a paused or failed pipeline, and wait for the outcome.",
    "offsets": "Show the saved offset of every pipeline, or reset one.",
    "maintain": "Keep the log of a table short: checkpoints, compaction, checksums, cleanup.",
    "verify": "Replay the delivered changes, and compare the result with the table.",
    "validate": "Check a configuration, and connect to every table and sink.",
    "help": "Explain a topic (kafka, spark, s3, operating and others) or an error code.",
    "completion": "Print the completion of commands and table names for bash, zsh or fish.",
}
EXIT_INTERRUPTED = 130
EXIT_FAILED = 1

_ENVIRONMENT = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOMEM,
    errno.ENAMETOOLONG,
}
"""Errors of the machine: not a bug of tailerd, and nothing that a bug report would fix."""


@contextmanager
def _ending_quietly() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        # Click would report the error itself as a failure.
        raise click.exceptions.Exit(0) from error


class LazyGroup(click.Group):
    """Imports a command's module when the command is called: `tail` need not load the daemon."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command, in the order that a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command by its name; None for an unknown one."""
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"tailerd.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the arguments begin with.

        Raises:
            UsageError: There is none of that name.
        """
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from tailerd.registry import suggest_name

            raise UsageError(
                f"There is no command {args[0]!r}.", remedy=suggest_name(args[0], COMMANDS)
            )
        return super().resolve_command(ctx, args)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Read the arguments; a closed output pipe is not a failure."""
        with _ending_quietly():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a closed output pipe is not a failure."""
        with _ending_quietly():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' one-line help without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    "tailerd",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  tailerd demo\n  tailerd tail /lake/orders --from snapshot\n"
    "  tailerd run --config config/quickstart.yaml --once",
)
@click.version_option(__version__, prog_name="tailerd")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """`tail -f` for lakehouse tables: changes of Delta, Iceberg, Lance, TileDB and Kartothek."""
    context.ensure_object(dict)["debug"] = debug


def main() -> None:
    """Run the command line and leave the process with the contract's exit status."""
    _prepare_streams()
    status = [EXIT_FAILED]
    # Registered before all others, so called after them.
    atexit.register(lambda: _end_process(status[0]))
    status[0] = run(sys.argv[1:], is_own_process=True)
    sys.exit(status[0])


def _end_process(status: int) -> None:
    """End the process without taking the interpreter down.

    A thread of a native library that returns to Python meanwhile would end the process with
    SIGABRT, although all work is done.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _prepare_streams() -> None:
    """Ensure that standard streams exist and accept every text.

    The descriptor of a closed stream is reused by the next file that is opened, which would then
    get the output. With a locale other than UTF-8 most characters can only be written escaped.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            nothing = os.open(os.devnull, os.O_RDWR)
            if nothing != number:
                os.dup2(nothing, number)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str], *, is_own_process: bool = False) -> int:
    """Run a command line; return its exit status. Never raises.

    Args:
        arguments: Without the program's name.
        is_own_process: Whether the process ends with the command, which then handles its signals.
    """
    is_debug = "--debug" in arguments
    about: dict[str, Any] = {"is_own_process": is_own_process, "reader": TAIL}
    try:
        status = cli.main(arguments, prog_name="tailerd", standalone_mode=False, obj=about)
        # A failure can still be reported here; at the end of the process it cannot.
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Abort:
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        return _report_usage(error)
    except BaseException as error:  # noqa: BLE001 - the last line of defence
        if _is_reader_gone(error):
            # The reader closed the pipe, as `| head` does: that is not a failure.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        return _report(_first_error(error), is_debug, about["reader"])


def _is_reader_gone(error: BaseException) -> bool:
    """Return whether the reader of standard output has closed the pipe."""
    return isinstance(_first_error(error), BrokenPipeError)


def _report_usage(error: click.ClickException) -> int:
    """Report arguments that click rejected, in the form of every other error."""
    message = error.format_message().rstrip().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = "tailerd" if context is None else context.command_path
    say_error(UsageError.code, f"{message}.", f"See `{path} --help`.")
    return error.exit_code


def _first_error(error: BaseException) -> BaseException:
    """Return the most informative error of a group: a `TailerdError` before others."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    found = [_first_error(inner) for inner in error.exceptions]
    ours = [inner for inner in found if isinstance(inner, TailerdError)]
    return (ours or found)[0]


def _report(error: BaseException, is_debug: bool, reader: Reader) -> int:
    if is_debug:
        traceback.print_exception(error)
    if isinstance(error, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, TailerdError):
        error.address(reader)
        table = f"{error.table}: " if error.table else ""
        say_error(error.code, f"{table}{error.message}", error.remedy)
        return error.exit_status
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _ENVIRONMENT:
        reason = f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
        say_error(StorageError.code, f"The system refused: {reason}.")
        return StorageError.exit_status
    if isinstance(error, MemoryError):
        say_error(
            TooLargeError.code,
            "The system refuses more memory for this process.",
            "Raise its limit, or lower `memory` in the configuration.",
        )
        return EXIT_FAILED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else EXIT_FAILED
    say_error(
        "bug",
        f"{type(error).__name__}: {error}. This should not happen.",
        "Run again with --debug and report its output.",
    )
    return EXIT_FAILED
