"""The options of kafka-python that a configuration may pass through, under their own names.

They are listed here, so that validating a configuration does not load the Kafka client; a test
compares the list with the installed client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import SecretStr

from tailerd.registry import suggest_name

OptionValue = bool | int | float | str | SecretStr | None

OPTIONS: Mapping[str, type] = {
    "acks": str,
    "allow_auto_create_topics": bool,
    "batch_size": int,
    "bootstrap_timeout_ms": int,
    "client_dns_lookup": str,
    "client_id": str,
    "compression_type": str,
    "connections_max_idle_ms": int,
    "delivery_timeout_ms": int,
    "enable_idempotence": bool,
    "linger_ms": int,
    "max_block_ms": int,
    "max_in_flight_requests_per_connection": int,
    "max_request_size": int,
    "metadata_max_age_ms": int,
    "metrics_enabled": bool,
    "metrics_num_samples": int,
    "metrics_sample_window_ms": int,
    "proxy_url": str,
    "receive_buffer_bytes": int,
    "receive_message_max_bytes": int,
    "reconnect_backoff_max_ms": int,
    "reconnect_backoff_ms": int,
    "request_timeout_ms": int,
    "retries": int,
    "retry_backoff_ms": int,
    "sasl_kerberos_domain_name": str,
    "sasl_kerberos_name": str,
    "sasl_kerberos_service_name": str,
    "sasl_mechanism": str,
    "sasl_plain_password": str,
    "sasl_plain_username": str,
    "security_protocol": str,
    "send_buffer_bytes": int,
    "ssl_cafile": str,
    "ssl_certfile": str,
    "ssl_check_hostname": bool,
    "ssl_ciphers": str,
    "ssl_crlfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "transaction_timeout_ms": int,
}
"""Name -> the type of its value."""

ELSEWHERE: Mapping[str, str] = {
    "bootstrap_servers": "set `bootstrap_servers` of the sink",
    "transactional_id": "set `transactional_id` of the sink",
    "api_version": "it is negotiated with the brokers",
    "key_serializer": "`format` says how keys and values are written",
    "value_serializer": "`format` says how keys and values are written",
    "partitioner": "set `partition` of the sink",
    "ssl_context": "it cannot be written in a file; use the ssl_... options",
    "sasl_oauth_token_provider": "it cannot be written in a file",
    "socket_options": "they cannot be written in a file",
    "metric_reporters": "they cannot be written in a file",
    "selector": "it cannot be written in a file",
    "kafka_client": "it cannot be written in a file",
    "socks5_proxy": "it is deprecated; use `proxy_url`",
}
"""Options of kafka-python that this sink does not pass through -> what to do instead."""

SECRETS = frozenset({"sasl_plain_password", "ssl_password", "proxy_url"})

CONNECTION = frozenset(
    {
        "bootstrap_timeout_ms",
        "client_id",
        "connections_max_idle_ms",
        "metadata_max_age_ms",
        "proxy_url",
        "receive_buffer_bytes",
        "receive_message_max_bytes",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "request_timeout_ms",
        "retry_backoff_ms",
        "send_buffer_bytes",
        "client_dns_lookup",
        *(name for name in OPTIONS if name.startswith(("sasl_", "security_"))),
        *(name for name in OPTIONS if name.startswith("ssl_") and name != "ssl_ciphers"),
    }
)
"""Options of the connection to a broker, which consumers and admin clients also accept."""

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "GSSAPI", "SCRAM-SHA-256", "SCRAM-SHA-512")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "compression_type": COMPRESSIONS,
    "security_protocol": _PROTOCOLS,
    "sasl_mechanism": _MECHANISMS,
}


def checked_options(
    options: Mapping[str, object], delivery: Literal["at-least-once", "exactly-once"]
) -> dict[str, OptionValue]:
    """Return the options with values of the right types and secrets wrapped.

    Raises:
        ValueError: A name is unknown, or a value is invalid or contradicts the guarantee.
    """
    checked = {str(name): _check_option(str(name), value) for name, value in options.items()}
    if checked.get("enable_idempotence") is False:
        raise ValueError(
            f"enable_idempotence is off, but {delivery} needs it: records would be duplicated"
        )
    if checked.get("acks", "all") not in ("all", "-1"):
        raise ValueError(
            f"acks is {checked['acks']}, but {delivery} needs all: acknowledged records could be"
            " lost"
        )
    if checked.get("retries") == 0:
        raise ValueError(f"retries is 0, but {delivery} needs them; leave it out")
    in_flight = checked.get("max_in_flight_requests_per_connection", 5)
    if isinstance(in_flight, int) and not 1 <= in_flight <= 5:
        raise ValueError("max_in_flight_requests_per_connection is 1 to 5, to keep the order")
    return checked


def reveal_secrets(
    options: Mapping[str, OptionValue],
) -> dict[str, bool | int | float | str | None]:
    """Return the options for the client, with secrets in plain text."""
    plain = {
        name: value.get_secret_value() if isinstance(value, SecretStr) else value
        for name, value in options.items()
    }
    if plain.get("compression_type") == "none":
        plain["compression_type"] = None
    return plain


def _check_option(name: str, value: object) -> OptionValue:
    if name in ELSEWHERE:
        raise ValueError(f"{name} is not passed through: {ELSEWHERE[name]}")
    if name not in OPTIONS:
        raise ValueError(
            f"kafka-python has no option {name}. {suggest_name(name, OPTIONS)}".strip()
        )
    if value is None:
        return None
    if name in SECRETS:
        if not isinstance(value, SecretStr | str | int):
            raise ValueError(f"{name} is not a text (not shown)")
        return value if isinstance(value, SecretStr) else SecretStr(str(value))
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"{name} is a list or a mapping, but it must be one value")
    typed = _convert_value(name, value)
    words = _WORDS.get(name)
    if words is not None and typed not in words:
        raise ValueError(f"{name} is {typed!r}, but it must be one of {', '.join(words)}")
    return typed


def _convert_value(name: str, value: bool | int | float | str) -> bool | int | str:
    kind = OPTIONS[name]
    text = str(value).strip()
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name} is {text!r}, but it must be true or false")
        return text.lower() == "true"
    if kind is int:
        if isinstance(value, bool) or not text.removeprefix("-").isdecimal():
            raise ValueError(f"{name} is {text!r}, but it must be a whole number")
        return int(text)
    return text
