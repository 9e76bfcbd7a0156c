"""Map every error of kafka-python to a tailerd error; the only module that does so."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from kafka import errors as kafka_errors

from tailerd.errors import ConfigError, SinkError, SinkFencedError, SinkRefusedError, TailerdError

_RIGHTS = "Give this user the right to it (kafka-acls), or configure another user."
_LOGIN = "Check sasl_mechanism, sasl_plain_username and sasl_plain_password under `producer`."

_REFUSED: Mapping[str, str] = {
    "TopicAuthorizationFailedError": _RIGHTS,
    "GroupAuthorizationFailedError": _RIGHTS,
    "ClusterAuthorizationFailedError": _RIGHTS,
    "TransactionalIdAuthorizationFailedError": (
        "Give this user Write and Describe on the transactional id (kafka-acls)."
    ),
    "AuthorizationError": _RIGHTS,
    "SaslAuthenticationFailedError": _LOGIN,
    "UnsupportedSaslMechanismError": _LOGIN,
    "IllegalSaslStateError": _LOGIN,
    "MessageSizeTooLargeError": (
        "Raise max.message.bytes of the topic and max_request_size under `producer`, or set"
        " on_oversize to dead-letter."
    ),
    "RecordListTooLargeError": "Raise the topic's segment.bytes.",
    "InvalidTopicError": "Give the topic another name.",
    "InvalidRequiredAcksError": "Leave acks out.",
    "InvalidReplicationFactorError": "Lower create_topic.replication_factor to the number of"
    " brokers.",
    "InvalidPartitionsError": "Set create_topic.partitions.",
    "InvalidConfigurationError": "Check create_topic.configs.",
    "PolicyViolationError": "The brokers' policy rejects the topic: see their reason.",
    "InvalidTransactionTimeoutError": (
        "Lower transaction_timeout_ms under `producer`, or raise the brokers'"
        " transaction.max.timeout.ms."
    ),
    "InvalidRecordError": (
        "The broker checks records: a compacted topic takes none without a key, so set `key`."
    ),
    "InvalidTimestampError": (
        "Raise message.timestamp.before.max.ms of the topic: commits are older than it allows; or"
        " set `timestamp: delivery`."
    ),
    "UnsupportedForMessageFormatError": "Use brokers with message format 2 (Kafka 0.11 or newer).",
    "UnsupportedVersionError": "Use newer brokers.",
    "IncompatibleBrokerVersion": "Use newer brokers.",
    "UnrecognizedBrokerVersion": "Use newer brokers.",
    "UnsupportedCompressionTypeError": "Choose another compression_type under `producer`.",
    "UnsupportedCodecError": "Choose another compression_type under `producer`.",
    "SecurityDisabledError": "The brokers have no authorizer.",
}
"""Permanent errors -> remedy for the operator."""

_FENCED = "ProducerFencedError"
_OLD_EPOCH = "InvalidProducerEpochError"
"""Of a transactional producer the same; without transactions no other process has the id."""

_PASSING: Mapping[str, str] = {
    "NotEnoughReplicasError": "Bring brokers back, or lower min.insync.replicas of the topic.",
    "NotEnoughReplicasAfterAppendError": (
        "Bring brokers back, or lower min.insync.replicas of the topic."
    ),
    "KafkaStorageError": "Check the broker's disk.",
    "UnknownTopicOrPartitionError": "Check that the topic exists and that this user may describe"
    " it.",
    "KafkaTimeoutError": "Check that the brokers are running and reachable.",
    "KafkaConnectionError": "Check that the brokers are running and reachable.",
    "NodeNotReadyError": "Check that the brokers are running and reachable.",
}
_DUMP = re.compile(r"\s*Request '\w+Request.*", re.DOTALL)
"""A request and its response as kafka-python prints them: pages of irrelevant fields."""
_SAID = re.compile(r"error_message=(['\"])(.+?)\1")
"""The broker's message in such a response."""

CLOSED_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""How a connection closed by its other end is raised; which of them depends on Python's release."""
_LOOKS_LIKE_CLOSED_TLS = re.compile(r"EOF occurred|closed \(EOF\)")
_LOOKS_LIKE_TLS = re.compile(r"ssl|certificate|tlsv1", re.IGNORECASE)
_LOOKS_LIKE_LOGIN = re.compile(r"authenticat|sasl|invalid credentials", re.IGNORECASE)


def find_reason(error: BaseException) -> BaseException:
    """Return the error that stopped a producer, if `error` only says that it cannot continue.

    After a refused record a transactional producer raises such an error for every call, which may
    come before the acknowledgement that has the refusal itself.
    """
    if type(error) is not kafka_errors.KafkaError:
        return error
    return next((e for e in error.args if isinstance(e, kafka_errors.KafkaError)), error)


def map_error(
    error: BaseException,
    doing: str,
    *,
    secrets: tuple[str, ...] = (),
    is_transactional: bool = False,
) -> TailerdError:
    """Return the tailerd error for an error of kafka-python.

    Args:
        error: The error that was raised, or with which an acknowledgement failed.
        doing: What failed: `Topic orders.changes could not be written`.
        secrets: Texts to remove from the message.
        is_transactional: Whether a producer with a transactional id failed.
    """
    if isinstance(error, TailerdError):
        return error
    error = find_reason(error)
    names = [kind.__name__ for kind in type(error).__mro__]
    reason = _reason(error, secrets)
    message = f"{doing}: {reason}."
    if _FENCED in names or (is_transactional and _OLD_EPOCH in names):
        return build_fenced_error(doing)
    for name in names:
        if name in _REFUSED:
            return SinkRefusedError(message, remedy=_REFUSED[name])
    if isinstance(error, kafka_errors.KafkaConfigurationError):
        return ConfigError(message, remedy="Check the options under `producer`.")
    # A broker that stops closes its connections, and comes back.
    is_closed = isinstance(error, CLOSED_TLS) or _LOOKS_LIKE_CLOSED_TLS.search(reason)
    is_tls = isinstance(error, ssl.SSLError) or _LOOKS_LIKE_TLS.search(reason)
    if is_tls and not is_closed:
        return SinkRefusedError(
            message, remedy="Check security_protocol and the ssl_... options under `producer`."
        )
    if _LOOKS_LIKE_LOGIN.search(reason):
        return SinkRefusedError(message, remedy=_LOGIN)
    remedy = next((_PASSING[name] for name in names if name in _PASSING), "")
    return SinkError(message, remedy=remedy)


def build_fenced_error(doing: str) -> SinkFencedError:
    """Return the error for a transactional id that another process has claimed."""
    return SinkFencedError(
        f"{doing}, because another process has claimed the transactional id, so this one is"
        " fenced.",
        remedy="Run each pipeline once, or give this one another transactional_id.",
    )


@contextmanager
def kafka_calls(doing: str, *, secrets: tuple[str, ...] = ()) -> Iterator[None]:
    """Map errors of kafka-python inside the context.

    Raises:
        TailerdError: The mapped error.
    """
    try:
        yield
    except (kafka_errors.KafkaError, OSError, ValueError, AssertionError, RuntimeError) as error:
        raise map_error(error, doing, secrets=secrets) from error


def _reason(error: BaseException, secrets: tuple[str, ...]) -> str:
    whole = " ".join(str(error).split())
    reported = _SAID.search(whole)
    text = _DUMP.sub("", whole).rstrip(":. ")
    if reported is not None:
        text = f"{text}: {reported[2].rstrip('.')}"
    text = text or type(error).__name__
    if isinstance(error, kafka_errors.KafkaError) and type(error).__name__ not in text:
        text = f"{type(error).__name__}: {text}"
    for secret in secrets:
        if secret:
            text = text.replace(secret, "(secret)")
    return text if len(text) <= 400 else f"{text[:400]}..."
