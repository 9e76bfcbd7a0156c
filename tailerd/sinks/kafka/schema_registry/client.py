"""Send requests to a schema registry, with Confluent's client. Blocking; one thread at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from tailerd.errors import ConfigError, IncompatibleSchemaError, SinkError, SinkRefusedError
from tailerd.records.base import RecordSchema
from tailerd.sinks.kafka.schema_registry.config import SchemaRegistryConfig
from tailerd.sinks.kafka.schema_registry.subjects import INCOMPATIBLE_HINT

_FIRST_WAIT_MS = 200
_LONGEST_WAIT_MS = 2000
_CACHED_SCHEMAS = 100
_NO_SCHEMA = (40401, 40402, 40403)
"""Error codes of registries for a subject, a version or a schema that does not exist."""
_REGISTRY_CODES = range(40400, 40500)
"""Error codes of a registry that answers with the status 404."""
_HIDDEN = "(secret)"


class RegistryClient:
    """A `Registry` over HTTP.

    The time of every request is bounded by `timeout`, `retries` and the number of `urls`.
    """

    def __init__(self, config: SchemaRegistryConfig, *, has_answered: bool = False) -> None:
        """Initialize; no request is sent yet.

        Args:
            config: The registry's section.
            has_answered: Whether a registry has answered at this address before, so that another
                server there is an outage.

        Raises:
            ConfigError: Certificates cannot be read.
        """
        self._address = config.address
        self._secrets = _secrets(config)
        self._has_answered = has_answered
        with registry_calls("it is not asked", self._address):
            self._client = SchemaRegistryClient(_options(config))

    def close(self) -> None:
        """Close the connections; the client cannot be used afterwards."""
        self._client.close()

    def check(self, subject: str) -> None:
        """Check that the registry accepts requests from this user; the subject need not exist.

        Raises:
            TailerdError: It does not.
        """
        with self._request_errors("it cannot be used"):
            try:
                self._client.get_latest_version(subject)
            except SchemaRegistryError as error:
                if not _is_absent(error):
                    raise

    def registered_id(self, subject: str, schema: RecordSchema) -> int | None:
        """Return the id of a schema under a subject; None if it is not registered there.

        Raises:
            TailerdError: The registry cannot be reached.
        """
        with self._request_errors(f"the schema of {subject} is not known"):
            try:
                found = self._client.lookup_schema(subject, _schema(schema))
            except SchemaRegistryError as error:
                if _is_absent(error):
                    return None
                raise
            return None if found.schema_id is None else int(found.schema_id)

    def is_compatible(self, subject: str, schema: RecordSchema) -> bool:
        """Return whether a subject's compatibility rule allows a schema as its next version.

        Raises:
            TailerdError: The registry cannot be reached.
        """
        with self._request_errors(f"the schema of {subject} could not be checked"):
            try:
                return bool(self._client.test_compatibility(subject, _schema(schema)))
            except SchemaRegistryError as error:
                if _is_absent(error):
                    # The subject does not exist yet.
                    return True
                raise

    def register(self, subject: str, schema: RecordSchema) -> int:
        """Register a schema under a subject; return its id.

        Raises:
            IncompatibleSchemaError: The subject's compatibility rule forbids it.
            TailerdError: The registry cannot be reached, or refuses.
        """
        with self._request_errors(f"the schema of {subject} could not be registered"):
            return int(self._client.register_schema(subject, _schema(schema)))

    def latest_text(self, subject: str) -> str:
        """Return the text of the latest schema of a subject; empty if there is none.

        Raises:
            TailerdError: The registry cannot be reached.
        """
        with self._request_errors(f"the latest schema of {subject} is not known"):
            try:
                return self._client.get_latest_version(subject).schema.schema_str or ""
            except SchemaRegistryError as error:
                if _is_absent(error):
                    return ""
                raise

    def read_text(self, schema_id: int) -> str:
        """Return the text of a schema.

        Raises:
            TailerdError: The registry cannot be reached, or has no schema with that id.
        """
        with self._request_errors(f"the schema {schema_id} is not known"):
            return self._client.get_schema(schema_id).schema_str or ""

    def allow_every_schema(self, subject: str) -> None:
        """Disable the compatibility rule of a subject.

        Raises:
            TailerdError: The registry cannot be reached, or refuses.
        """
        with self._request_errors(f"the compatibility of {subject} could not be set"):
            self._client.set_compatibility(subject, "NONE")

    @contextmanager
    def _request_errors(self, doing: str) -> Iterator[None]:
        with registry_calls(doing, self._address):
            try:
                yield
                self._has_answered = True
            except SchemaRegistryError as error:
                status = error.http_status_code
                reason = self._without_secrets(str(error.error_message or f"HTTP {status}"))
                if status == NOT_FOUND and error.error_code not in _REGISTRY_CODES:
                    raise NoRegistryError(reason, self._has_answered) from error
                raise RegistryAnswerError(status, reason) from error
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # The answer is not JSON, or another JSON: it is from a different server.
                answer = self._without_secrets(str(getattr(error, "doc", error)))
                raise NoRegistryError(answer, self._has_answered) from error

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text


def _is_absent(error: SchemaRegistryError) -> bool:
    # A different server or a wrong path also returns 404, but not these codes.
    return error.error_code in _NO_SCHEMA


def _schema(schema: RecordSchema) -> Schema:
    return Schema(schema.text, schema.kind)


def _secrets(config: SchemaRegistryConfig) -> list[str]:
    given = [config.bearer_token]
    if config.basic_auth is not None:
        given.append(config.basic_auth.password)
    return [each.get_secret_value() for each in given if each]


def _options(config: SchemaRegistryConfig) -> dict[str, object]:
    options: dict[str, object] = {
        "url": ",".join(config.urls),
        "timeout": config.timeout,
        "max.retries": config.retries,
        "retries.wait.ms": _FIRST_WAIT_MS,
        "retries.max.wait.ms": _LONGEST_WAIT_MS,
        "cache.capacity": _CACHED_SCHEMAS,
        # The latest version is not cached: other clients register schemas too.
        "cache.latest.ttl.sec": 0,
    }
    if (basic := config.basic_auth) is not None:
        user = f"{basic.username}:{basic.password.get_secret_value()}"
        options["basic.auth.user.info"] = user
    if config.bearer_token is not None:
        options |= {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": config.bearer_token.get_secret_value(),
            # For Confluent Cloud; the client requires it.
            "bearer.auth.logical.cluster": "",
        }
    if (tls := config.tls) is not None:
        files = {
            "ssl.ca.location": tls.ca_file,
            "ssl.certificate.location": tls.certificate_file,
            "ssl.key.location": tls.key_file,
            "ssl.key.password": tls.key_password and tls.key_password.get_secret_value(),
        }
        options |= {name: value for name, value in files.items() if value is not None}
    return options


# The module that the client itself uses: one of two with this interface.

NOT_FOUND = 404
_CONFLICT = 409
_NOT_ALLOWED = (401, 403)
_PASSING = (408, 429)
_MAX_CHARACTERS = 500
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
        raise _explain_answer(error, doing, address) from error
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


def _explain_answer(error: RegistryAnswerError, doing: str, address: str) -> SinkError:
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
    return SinkRefusedError(message, remedy="Check `urls`, and the registry's answer.")


def _short(text: str, most: int = _MAX_CHARACTERS) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."
