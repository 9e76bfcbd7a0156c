"""Talks to a running daemon over its HTTP address."""

from __future__ import annotations

import getpass
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import click

from tailerd.cli.table_options import config_option
from tailerd.errors import (
    DaemonRefusedError,
    DaemonUnreachableError,
    TailerdError,
    UsageError,
    find_class,
)

if TYPE_CHECKING:
    from tailerd.config import Config

DEFAULT_URL = "http://127.0.0.1:9464"
TOKEN_VARIABLE = "TAILERD__HTTP__TOKEN"
_TIMEOUT_SECONDS = 10.0
_CONTROL_SECONDS = 300.0
"""Control requests are answered when a pipeline has stopped, after at most `shutdown_timeout`."""
_LARGEST_ANSWER_BYTES = 256 * 1024**2

http_option = click.option(
    "--http",
    "url",
    metavar="URL",
    help=f"Address of the running daemon; {DEFAULT_URL} by default, or the one in --config.",
)
client_config_option = config_option(
    "The daemon's configuration, for its address and token", is_required=False
)
token_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help=f"File with the token of `http.token`; {TOKEN_VARIABLE} takes precedence.",
)


@dataclass(frozen=True, slots=True, repr=False)
class DaemonClient:
    """Address of a daemon, and the token that it requires."""

    url: str
    token: str = ""

    @classmethod
    def from_options(
        cls, url: str | None, config_path: Path | None, token_file: Path | None
    ) -> DaemonClient:
        """Return the client for a command's options.

        Raises:
            UsageError: The address is invalid, or the token cannot be read.
            DaemonUnreachableError: The configuration has no address.
            ConfigError: The configuration is wrong.
        """
        config = None
        if config_path is not None:
            from tailerd.config import load_config

            config = load_config(config_path)
        token = os.environ.get(TOKEN_VARIABLE, "")
        if not token and token_file is not None:
            token = _read_token(token_file)
        if not token and config is not None and config.http.token is not None:
            token = config.http.token.get_secret_value()
        return cls(
            _check_url(url or (DEFAULT_URL if config is None else format_url(config))), token
        )

    def status(self, timeout_seconds: float = _TIMEOUT_SECONDS) -> dict[str, object]:
        """Return what `/status` shows.

        Raises:
            DaemonUnreachableError: There is no answer.
            DaemonRefusedError: The answer is not that of a daemon.
        """
        return self._ask("GET", "/status", None, timeout_seconds)

    def table(self, name: str) -> dict[str, object]:
        """Return what `/tables/NAME` shows of a table; errors as `status`, or as `pause`."""
        return self._ask("GET", f"/tables/{quote(name, safe='')}", None, _TIMEOUT_SECONDS)

    def pause(self, name: str) -> dict[str, object]:
        """Pause a pipeline.

        Raises:
            DaemonUnreachableError, DaemonRefusedError: It is not paused.
            TailerdError: The daemon's error, of the same class.
        """
        return self._change(name, "pause", {})

    def resume(self, name: str) -> dict[str, object]:
        """Resume a pipeline; errors as `pause`."""
        return self._change(name, "resume", {})

    def reset(self, name: str, to: str) -> dict[str, object]:
        """Move a pipeline's offset; errors as `pause`."""
        return self._change(name, "reset", {"to": to})

    def _change(self, name: str, verb: str, body: dict[str, str]) -> dict[str, object]:
        path = f"/pipelines/{quote(name, safe='')}/{verb}"
        return self._ask("POST", path, json.dumps(body).encode(), _CONTROL_SECONDS)

    def _ask(
        self, method: str, path: str, body: bytes | None, timeout_seconds: float
    ) -> dict[str, object]:
        headers = {"X-Tailerd": _caller(), "Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        # A proxy of the environment must not see the token, nor answer instead of the daemon.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        try:
            with opener.open(request, timeout=timeout_seconds) as answer:
                return _parse_response(self.url, answer.read(_LARGEST_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _explain_refusal(
                    self.url, error.code, error.read(_LARGEST_ANSWER_BYTES)
                ) from error
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise DaemonUnreachableError(
                f"No daemon answers at {self.url}: {reason}.",
                remedy="Start it with `tailerd run`, or give its address with --http or --config.",
            ) from error


def _caller() -> str:
    """Return a name for the user; the daemon shows it as the author of a change."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return "the command line"
    return f"{name} on the command line".encode("ascii", "replace").decode()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: a daemon sends none, and the token must not reach another server."""

    def redirect_request(self, *_: object) -> None:
        """Treat a redirect as an error."""


def format_url(config: Config) -> str:
    """Return where a configured daemon listens, for a caller on the same machine.

    Raises:
        DaemonUnreachableError: It does not listen, or on a port that only the daemon knows.
    """
    address = config.http.address()
    if address is None:
        raise DaemonUnreachableError(
            "The configuration switches the listener off (http.listen is null).",
            remedy="Set http.listen; commands reach a running daemon through it.",
        )
    if address.port == 0:
        raise DaemonUnreachableError(
            "http.listen has port 0, so only the daemon's log knows the port.",
            remedy="Give the address with --http.",
        )
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    scheme = "http" if config.http.tls is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{address.port}"


def _read_token(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The token file {path} cannot be read: {error}.") from error


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        is_good = False
    if not is_good:
        raise UsageError(
            f"{url!r} is not a valid address of a daemon.", remedy=f"Write {DEFAULT_URL}."
        )
    return url.rstrip("/")


def _parse_response(url: str, body: bytes) -> dict[str, object]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise DaemonRefusedError(
            f"The server at {url} is not tailerd: its answer is not a JSON object.",
            remedy="Give the daemon's address with --http.",
        )
    return answer


def _explain_refusal(url: str, status: int, body: bytes) -> TailerdError:
    try:
        error = json.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body[:200].decode("utf-8", "replace").strip()
        return DaemonRefusedError(
            f"The server at {url} answered {status}: {text}",
            remedy="Check that it is a tailerd daemon of this release.",
        )
    remedy = f"Set {TOKEN_VARIABLE}, or give --token-file." if status == 401 else ""
    kind = UsageError if status == 404 else find_class(code) or DaemonRefusedError
    return kind(message, remedy=remedy)
