"""The section of the HTTP sink; separate from the sink, so that validation imports no client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from tailerd.config import SinkConfig, SizeBytes
from tailerd.config.values import Seconds
from tailerd.sinks.topics.templates import TABLE_NAMES, check_placeholders

_SECTION = ConfigDict(
    extra="forbid", frozen=True, coerce_numbers_to_str=True, hide_input_in_errors=True
)
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = frozenset(
    {
        *("host", "content-type", "content-length", "content-encoding", "transfer-encoding"),
        *("idempotency-key", "webhook-id", "webhook-timestamp", "webhook-signature"),
    }
)


def _check_url(url: str) -> str:
    parts = urlsplit(url)
    is_http = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    if not is_http or url.split() != [url]:
        raise ValueError("write a URL with http:// or https:// and a host, without spaces")
    if "@" in parts.netloc:
        raise ValueError("leave the user out of the URL: set bearer_token, oauth or headers")
    if parts.query or parts.fragment:
        # Errors, logs and the state show the URL, and parameters are often secrets.
        raise ValueError("leave out what follows `?` or `#`: parameters belong into query")
    return url


def _check_secret(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not (text.isascii() and text.isprintable()) or text != text.strip() or not text:
        raise ValueError(
            "it is empty, begins or ends with a space, or has other characters than ASCII's"
        )
    return secret


PlainUrl = Annotated[str, AfterValidator(_check_url)]
PlainSecret = Annotated[SecretStr, AfterValidator(_check_secret)]


class EventsConfig(BaseModel):
    """Attributes and data of the events."""

    model_config = _SECTION

    data: Literal["json", "debezium"] = Field(
        default="json", description="Value format of the data in events.", examples=["json"]
    )
    source: str = Field(
        default="/tailerd/{table}",
        min_length=1,
        description="URI reference of the context of the events; `{table}` is filled in. With it"
        " the ids of a table's events are unique.",
        examples=["/lake/{table}"],
    )

    @field_validator("source")
    @classmethod
    def _has_known_placeholders(cls, value: str) -> str:
        check_placeholders(value, TABLE_NAMES)
        return value


class BatchConfig(BaseModel):
    """Size of one request; it never has events of two commits."""

    model_config = _SECTION

    max_events: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Maximum number of events of a request; with 1, a CloudEvent is sent alone"
        " instead of in a batch.",
        examples=[100],
    )
    max_bytes: SizeBytes = Field(
        default=1024**2,
        ge=1024,
        le=64 * 1024**2,
        description="Maximum size of the events of a request, with a unit, before compression; a"
        " larger event is sent alone.",
        examples=["1MiB"],
    )


class OAuthConfig(BaseModel):
    """Client credentials, for which a server issues tokens (RFC 6749, section 4.4)."""

    model_config = _SECTION

    token_url: PlainUrl = Field(
        description="Where tokens are requested.", examples=["https://login.example.org/token"]
    )
    client_id: str = Field(min_length=1, description="Id of the client.", examples=["tailerd"])
    client_secret: SecretStr = Field(
        description="Secret of the client; better given as"
        " TAILERD__TABLES__<NAME>__SINK__OAUTH__CLIENT_SECRET.",
        examples=["a-secret"],
    )
    scope: str | None = Field(
        default=None, description="Requested scopes, separated by spaces.", examples=["events"]
    )
    audience: str | None = Field(
        default=None,
        description="Parameter `audience` of the request, which some servers need.",
        examples=["https://example.org"],
    )


class HttpTlsConfig(BaseModel):
    """Certificates for `https` URLs."""

    model_config = _SECTION

    ca_file: str | None = Field(
        default=None,
        description="CA certificates (PEM) that the endpoint's certificate is verified with; by"
        " default those of the system.",
        examples=["/tls/ca.crt"],
    )
    certificate_file: str | None = Field(
        default=None, description="Own certificate (PEM).", examples=["/tls/tls.crt"]
    )
    key_file: str | None = Field(
        default=None, description="Key of the own certificate (PEM).", examples=["/tls/tls.key"]
    )

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.certificate_file is None and self.key_file is not None:
            raise ValueError("key_file belongs to certificate_file: give that too")
        return self


class HttpSinkConfig(SinkConfig):
    """Requests to an HTTP endpoint."""

    implementation: ClassVar[str] = "tailerd.sinks.http.sink:HttpSink"

    kind: Literal["http"] = Field(description="Requests to an HTTP endpoint.")
    url: PlainUrl = Field(
        description="Where events are posted, without parameters. Errors and logs show it.",
        examples=["https://example.org/hook"],
    )
    query: dict[str, PlainSecret] = Field(
        default_factory=dict,
        description="Parameters of the URL; their values are secrets.",
        examples=[{"code": "a-secret"}],
    )
    format: Literal["cloudevents", "json", "debezium"] = Field(
        default="cloudevents",
        description="`cloudevents`: CloudEvents 1.0, as a batch or alone; `json`: an array of rows"
        " with the change columns; `debezium`: an array of its envelopes.",
        examples=["cloudevents"],
    )
    cloudevents: EventsConfig = Field(
        default=EventsConfig(),
        description="Attributes and data of events of the format `cloudevents`.",
    )
    key: list[str] = Field(
        default_factory=list,
        description="Columns that identify a row. Events with equal keys are sent in the order of"
        " the commits, others concurrently. Without it there is one request at a time.",
        examples=[["order_id"]],
    )
    decimals: Literal["string", "number"] = Field(
        default="string", description="How decimals are written.", examples=["string"]
    )
    batch: BatchConfig = Field(default=BatchConfig(), description="Size of one request.")
    concurrency: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Maximum number of requests at a time, where there is a `key`.",
        examples=[4],
    )
    compression: Literal["none", "gzip"] = Field(
        default="none",
        description="`gzip` compresses bodies; the endpoint must accept it.",
        examples=["gzip"],
    )
    headers: dict[str, PlainSecret] = Field(
        default_factory=dict,
        description="Further headers of every request; their values are secrets.",
        examples=[{"X-Api-Key": "a-secret"}],
    )
    hmac_key: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Key of signatures by Standard Webhooks: the text itself, or base64 after"
        " `whsec_`.",
        examples=["a-long-random-text"],
    )
    bearer_token: PlainSecret | None = Field(
        default=None, description="Token of every request.", examples=["a-token"]
    )
    oauth: OAuthConfig | None = Field(
        default=None, description="Requests tokens, instead of `bearer_token`."
    )
    tls: HttpTlsConfig | None = Field(
        default=None, description="For `https` URLs.", examples=[{"ca_file": "/tls/ca.crt"}]
    )
    timeout: Seconds = Field(
        default=30.0,
        ge=0.1,
        le=600,
        description="Longest time of one request, with a unit.",
        examples=["30s"],
    )
    retry_for: Seconds = Field(
        default=30.0,
        ge=0.1,
        le=3600,
        description="How long a request is repeated, with a unit, that got no answer, or 408, 429"
        " or 5xx. Then the delivery fails and is repeated as a whole.",
        examples=["30s"],
    )
    max_retry_after: Seconds = Field(
        default=300.0,
        ge=0,
        le=86400,
        description="Longest wait that a `Retry-After` of the endpoint causes, with a unit.",
        examples=["5m"],
    )
    on_reject: Literal["dead-letter", "stop"] = Field(
        default="dead-letter",
        description="What to do with an event that the endpoint rejects (4xx but 408 and 429):"
        " write it to `dead_letters` and continue, or stop.",
        examples=["dead-letter"],
    )
    dead_letters: str | None = Field(
        default=None,
        min_length=1,
        description="File for rejected events, as JSON lines. Default:"
        " <state>/dead_letters/<table>.jsonl; required if `state` is in a bucket.",
        examples=["/data/orders.rejected.jsonl"],
    )
    stop_on: list[Annotated[int, Field(ge=400, le=499)]] = Field(
        default=[401, 403, 404, 405, 407, 410, 415],
        description="Answers that stop the pipeline, because the URL, the credentials or the form"
        " of requests are wrong, and not an event.",
        examples=[[401, 403, 404, 405, 407, 410, 415]],
    )

    @field_validator("headers")
    @classmethod
    def _are_allowed(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in value:
            if not _HEADER.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of a header")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"the sink itself sets {name}: leave it out")
        return value

    @field_validator("dead_letters")
    @classmethod
    def _is_a_file(cls, path: str | None) -> str | None:
        if path is not None and "://" in path:
            raise ValueError("give a file of this machine, not a URL")
        return path

    @field_validator("stop_on")
    @classmethod
    def _are_answers_to_stop_on(cls, value: list[int]) -> list[int]:
        for status in (408, 413, 429):
            if status in value:
                raise ValueError(f"{status} is about one request, which is repeated or halved")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        names = {name.lower() for name in self.headers}
        ways = ("bearer_token", "oauth", "headers.Authorization")
        are_set = (self.bearer_token, self.oauth, "authorization" in names or None)
        given = [way for way, value in zip(ways, are_set, strict=True) if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give one")
        return self

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns of an event's key; empty without a key."""
        return tuple(self.key)

    @property
    def content_type(self) -> str:
        """Return the media type of bodies."""
        if self.format != "cloudevents":
            return "application/json"
        kind = "cloudevents" if self.is_single else "cloudevents-batch"
        return f"application/{kind}+json; charset=UTF-8"

    @property
    def is_single(self) -> bool:
        """Return whether a body is one event, and not an array."""
        return self.format == "cloudevents" and self.batch.max_events == 1

    @property
    def lanes(self) -> int:
        """Return how many requests may be sent concurrently: one without a key."""
        return self.concurrency if self.key else 1

    def identity_location(self) -> str:
        """Return the URL."""
        return self.url

    def columns_by_field(self) -> Mapping[str, tuple[str, ...]]:
        """Return the columns of `key`."""
        return {"key": tuple(self.key)}
