"""The sections `http` and `web`: the listener's address and access control, and the page."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from tailerd.config.values import Address, Listen, parse_address

_SECTION = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


def _check_host(name: str) -> str:
    if not _HOST.fullmatch(name):
        raise ValueError("write a host name without scheme, port or path, such as tailerd.example")
    return name.lower()


class TlsConfig(BaseModel):
    """Certificates of the listener, as PEM files; renewed files are taken without a restart."""

    model_config = _SECTION

    cert: str = Field(
        min_length=1,
        description="File with the certificate and its chain.",
        examples=["/tls/tls.crt"],
    )
    key: str = Field(
        min_length=1, description="File with its private key.", examples=["/tls/tls.key"]
    )
    client_ca: str | None = Field(
        default=None,
        min_length=1,
        description="File with CA certificates. A client certificate signed by one of them counts"
        " as the token; a client without one is treated as one without a token.",
        examples=["/tls/ca.crt"],
    )


class HttpConfig(BaseModel):
    """The HTTP listener: /metrics, /healthz, /readyz, /status, and control of pipelines."""

    model_config = _SECTION

    listen: Listen | None = Field(
        default="127.0.0.1:9464",
        description="Address of the pages and of control, host:port. Port 0 takes a free one; null"
        " switches the listener off.",
        examples=["127.0.0.1:9464"],
    )
    token: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Token required for control requests (pause, resume, reset) (`Authorization:"
        " Bearer ...`), 16 characters at least; better given as TAILERD__HTTP__TOKEN. Without it"
        " only a loopback listener has control.",
        examples=["a-long-random-text"],
    )
    read: Literal["open", "token"] = Field(
        default="open",
        description="Who may read: everyone who reaches the listener (`open`), or who has the"
        " token or a client certificate (`token`). /healthz and /readyz answer everyone. A"
        " listener outside loopback without a token or client_ca shows only these and /metrics,"
        " unless `read: open` is written here.",
        examples=["open"],
    )
    hosts: list[Annotated[str, AfterValidator(_check_host)]] = Field(
        default_factory=list,
        description="Additional host names of this listener, for example of an ingress; a"
        " request for another name is refused. Its own address, numbers where it listens on all"
        " addresses, and localhost need not be named.",
        examples=[["tailerd.example.org"]],
    )
    tls: TlsConfig | None = Field(
        default=None,
        description="Speaks HTTPS instead of HTTP.",
        examples=[{"cert": "/tls/tls.crt", "key": "/tls/tls.key", "client_ca": "/tls/ca.crt"}],
    )

    @field_validator("token")
    @classmethod
    def _can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        text = "" if token is None else token.get_secret_value()
        if not (text.isascii() and text.isprintable()) or text != text.strip():
            raise ValueError(
                "it begins or ends with a space, or has characters that a header cannot contain"
            )
        return token

    @model_validator(mode="after")
    def _requires_a_token_or_ca(self) -> Self:
        has_ca = self.tls is not None and self.tls.client_ca is not None
        if self.read == "token" and self.token is None and not has_ca:
            raise ValueError(
                "read is `token`, but neither token nor tls.client_ca defines who may read; set"
                " TAILERD__HTTP__TOKEN"
            )
        return self

    def address(self) -> Address | None:
        """Return the address; None if the listener is off."""
        return None if self.listen is None else parse_address(self.listen)


class WebConfig(BaseModel):
    """The page of the daemon. Figures are always shown; rows only if this section allows it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int = Field(
        default=0,
        ge=0,
        le=100,
        description="How many of a table's newest change rows its page shows (Arrow engine), and"
        " whether rows of any table may be shown: 0 keeps none and shows none. Everyone who may"
        " read the page sees them.",
        examples=[0],
    )
    mask: list[str] = Field(
        default_factory=list,
        description="Columns, of any table, whose values never leave the process through the page,"
        " and cannot be searched; `customer.email` is a field of a struct. Names that a table"
        " lacks are in the log.",
        examples=[["email", "card_number"]],
    )
    storage_price: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Price of one GiB for a month. The page then shows the cost of the live data"
        " files of each table, now and in 30 days.",
        examples=[0.023],
    )
    currency: str = Field(
        default="USD",
        pattern=r"^[A-Z]{3}$",
        description="Currency of `storage_price`, a code of three letters.",
        examples=["EUR"],
    )
