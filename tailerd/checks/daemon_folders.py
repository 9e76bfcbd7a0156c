"""Checks the daemon's own resources: its state and the address of its listener; blocking."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tailerd.checks.finding import Finding, run_check
from tailerd.config import Config
from tailerd.errors import ConfigError
from tailerd.registry import is_remote
from tailerd.state.locked_files import LOCK_NAME


def daemon_findings(config: Config) -> Iterator[Finding]:
    """Yield whether the state folder and the listener's address can be used; change nothing.

    If a daemon runs on this state, it holds both, and neither is a problem.
    """
    is_running = False
    if not is_remote(config.state):
        folder = Path(config.state)
        is_running = is_held(folder)
        yield from run_check("state", lambda: state_finding(folder, is_held=is_running))
    yield from run_check("port", lambda: port_finding(config, is_running=is_running))


def is_held(state: Path) -> bool:
    """Return whether a daemon holds a state folder."""
    try:
        with (state / LOCK_NAME).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except OSError:
        return False
    return False


def state_finding(folder: Path, *, is_held: bool) -> Finding:
    """Return whether a state folder can be created and written."""
    check = "state"
    if is_held:
        return Finding.ok(check, f"A daemon is running on {folder}")
    location = folder.absolute()
    while not location.exists():
        location = location.parent
    remedy = "Set `state` to a folder that this user can write."
    if not location.is_dir():
        error = ConfigError(
            f"The state folder {folder} cannot be made, because {location} is a file.",
            remedy=remedy,
        )
        return Finding.problem(check, error)
    if not os.access(location, os.W_OK | os.X_OK):
        error = ConfigError(
            f"The state folder {folder} cannot be written, because this user may not write to"
            f" {location}.",
            remedy=remedy,
        )
        return Finding.problem(check, error)
    return Finding.ok(check, f"{folder} can be written")


def port_finding(config: Config, *, is_running: bool) -> Finding:
    """Return whether the listener's address is free.

    Args:
        is_running: Whether a daemon runs on the same state, which then has the address.
    """
    check = "port"
    address = config.http.address()
    if address is None:
        return Finding.skip(check, "The listener is off (http.listen is null)")
    if address.port == 0:
        return Finding.ok(check, f"{address.host}, any free port")
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the listener does: an address with closing connections is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address.host, address.port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and is_running:
            return Finding.ok(check, f"{address} is used by the running daemon")
        if error.errno == errno.EADDRINUSE and is_remote(config.state):
            # The holder of a state in a bucket is not checked: it may be this address's daemon.
            return Finding.warning(
                check,
                f"The address {address} is in use.",
                "If this configuration's daemon runs here, do nothing; else set http.listen to"
                " another port.",
            )
        if error.errno == errno.EADDRINUSE:
            message = f"The address {address} is in use by another process."
            remedy = "Set http.listen to another port (0 takes any free one), or stop that process."
        else:
            message = f"The listener cannot use {address}: {error.strerror or error}."
            remedy = "Set http.listen to an address of this machine, such as 127.0.0.1:9464."
        return Finding.problem(check, ConfigError(message, remedy=remedy, where="http.listen"))
    return Finding.ok(check, f"{address} is free")
