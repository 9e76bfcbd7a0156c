"""Map every error of the registry's client to a tailerd error; the only place that does so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# The module that the client itself uses: one of two with this interface.
from confluent_kafka.schema_registry.common._httpx_compat import httpx

from tailerd.errors import ConfigError, IncompatibleSchemaError, SinkError, SinkRefusedError
from tailerd.sinks.kafka.schema_registry.subjects import INCOMPATIBLE_HINT

NOT_FOUND = 404
_CONFLICT = 409
_NOT_ALLOWED = (401, 403)
_PASSING = (408, 429)
_MOST_CHARACTERS = 500
_MAX_EXCERPT = 120


class RegistryAnswerError(Exception):
    """The registry answered with an error status; never leaves this package.

    Attributes:
        status: HTTP status.
        reason: The registry's message, without secrets.
    """

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        self.reason = reason
        super().__init__(status, reason)


class NoRegistryError(Exception):
    """Something other than a registry answered; never leaves this package.

    Attributes:
        answer: The answer, without secrets.
        has_answered: Whether a registry answered at that address before.
    """

    def __init__(self, answer: str, has_answered: bool) -> None:
        self.answer = answer
        self.has_answered = has_answered
        super().__init__(answer, has_answered)


@contextmanager
def registry_calls(doing: str, address: str) -> Iterator[None]:
    """Map the errors of a request inside the context.

    Args:
        doing: What failed: `the schema of orders-value could not be registered`.
        address: The registry's address.

    Raises:
        IncompatibleSchemaError: Its rule for the subject forbids the schema.
        SinkRefusedError: A permanent refusal that the operator must resolve.
        SinkError: It cannot be reached, or has a transient failure.
        ConfigError: Certificates cannot be read.
    """
    try:
        yield
    except RegistryAnswerError as error:
        raise _of_answer(error, doing, address) from error
    except NoRegistryError as error:
        message = (
            f"The address of the schema registry, {address}, answers with something else, so"
            f" {doing}: {_short(error.answer, _MAX_EXCERPT)!r}."
        )
        if error.has_answered:
            remedy = "Check the proxy or server at that address; deliveries wait for the registry."
            raise SinkError(message, remedy=remedy) from error
        raise SinkRefusedError(message, remedy="Correct `schema_registry.urls`.") from error
    except httpx.TransportError as error:
        raise SinkError(
            f"The schema registry at {address} cannot be reached, so {doing}:"
            f" {_short(str(error)) or type(error).__name__}.",
            remedy="Check that it runs; deliveries wait for it.",
        ) from error
    except OSError as error:
        raise ConfigError(
            f"The certificates for the schema registry at {address} cannot be used: {error}.",
            remedy="Correct `schema_registry.tls`.",
        ) from error


def _of_answer(error: RegistryAnswerError, doing: str, address: str) -> SinkError:
    message = f"The schema registry at {address} refused, so {doing}: {_short(error.reason)}"
    message = f"{message.rstrip('.')} (HTTP {error.status})."
    if error.status in _NOT_ALLOWED:
        return SinkRefusedError(
            message, remedy="Check basic_auth, bearer_token and this user's rights."
        )
    if error.status == _CONFLICT:
        return IncompatibleSchemaError(message, remedy=INCOMPATIBLE_HINT)
    if error.status in _PASSING or error.status >= 500:
        return SinkError(message, remedy="Check the registry's log; deliveries wait for it.")
    return SinkRefusedError(message, remedy="Check `urls`, and what the registry says.")


def _short(text: str, most: int = _MOST_CHARACTERS) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
