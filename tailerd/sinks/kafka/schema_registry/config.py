"""The Kafka sink's section `schema_registry`; validating it does not load the client."""

from __future__ import annotations

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from tailerd.config.values import Seconds

SubjectStrategy = Literal["topic", "record", "topic_record"]
OnIncompatible = Literal["stop", "dead_letter", "new_topic"]

_SECTION = ConfigDict(extra="forbid", frozen=True)


class BasicAuthConfig(BaseModel):
    """User and password."""

    model_config = _SECTION

    username: str = Field(min_length=1, description="Name of the user.", examples=["tailerd"])
    password: SecretStr = Field(
        description="Password; better given as"
        " TAILERD__TABLES__<NAME>__SINK__SCHEMA_REGISTRY__BASIC_AUTH__PASSWORD.",
        examples=["a-secret"],
    )

    @field_validator("username")
    @classmethod
    def _has_no_colon(cls, value: str) -> str:
        if ":" in value:
            raise ValueError("a name with a colon cannot be sent by basic authentication")
        return value


class RegistryTlsConfig(BaseModel):
    """Certificates for `https` URLs."""

    model_config = _SECTION

    ca_file: str | None = Field(
        default=None,
        description="CA certificates (PEM) that the registry's certificate is verified with; by"
        " default those of the package certifi.",
        examples=["/tls/ca.crt"],
    )
    certificate_file: str | None = Field(
        default=None, description="Own certificate (PEM).", examples=["/tls/tls.crt"]
    )
    key_file: str | None = Field(
        default=None, description="Key of the own certificate (PEM).", examples=["/tls/tls.key"]
    )
    key_password: SecretStr | None = Field(
        default=None, description="Password of the key.", examples=["a-secret"]
    )

    @model_validator(mode="after")
    def _key_has_a_certificate(self) -> Self:
        if self.certificate_file is None and (self.key_file or self.key_password):
            raise ValueError("key_file and key_password belong to certificate_file: give that too")
        return self


class SchemaRegistryConfig(BaseModel):
    """A schema registry with Confluent's interface."""

    model_config = _SECTION

    urls: list[str] = Field(
        min_length=1,
        description="Registry URLs; later ones are used if earlier ones do not answer.",
        examples=[["http://127.0.0.1:8081"]],
    )
    basic_auth: BasicAuthConfig | None = Field(
        default=None,
        description="User and password.",
        examples=[{"username": "tailerd", "password": "a-secret"}],
    )
    bearer_token: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Token, instead of user and password.",
        examples=["a-token"],
    )
    tls: RegistryTlsConfig | None = Field(
        default=None, description="For `https` URLs.", examples=[{"ca_file": "/tls/ca.crt"}]
    )
    subject_strategy: SubjectStrategy = Field(
        default="topic",
        description="Names of subjects: `topic`: <topic>-value and <topic>-key; `record`: the full"
        " name of the record; `topic_record`: <topic>-<full name of the record>.",
        examples=["topic"],
    )
    auto_register: bool = Field(
        default=True,
        description="Register schemas that are not registered; if false, they must be registered.",
        examples=[True],
    )
    on_incompatible_schema: OnIncompatible = Field(
        default="stop",
        description="What to do with rows whose schema the registry's rule forbids: `stop`;"
        " `dead_letter`: write them to `dead_letter_topic`; `new_topic`: write them to <topic>.v2"
        " and so on.",
        examples=["stop"],
    )
    timeout: Seconds = Field(
        default=5.0,
        ge=0.1,
        le=60,
        description="Longest time of one request, with a unit; stopping waits for it.",
        examples=["5s"],
    )
    retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="How often a failed request is retried before the delivery waits.",
        examples=[2],
    )

    @field_validator("urls", mode="before")
    @classmethod
    def _is_a_list(cls, value: object) -> object:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("urls")
    @classmethod
    def _are_urls(cls, value: list[str]) -> list[str]:
        for url in value:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or "," in url:
                raise ValueError("write http://host:port or https://host:port, with its path")
            if parts.username is not None or parts.password is not None:
                # Messages show the address, which must not contain a password.
                raise ValueError("leave the user out of the URL and set basic_auth")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.basic_auth is not None and self.bearer_token is not None:
            raise ValueError("basic_auth and bearer_token exclude each other: give one")
        if self.on_incompatible_schema == "new_topic" and self.subject_strategy == "record":
            raise ValueError(
                "on_incompatible_schema is new_topic, and with subject_strategy record a topic"
                " has no separate subjects: choose another strategy"
            )
        if self.on_incompatible_schema != "stop" and not self.auto_register:
            raise ValueError(
                "auto_register is false, so rows whose schema is not registered cannot be"
                " delivered: leave on_incompatible_schema at stop"
            )
        return self

    @property
    def address(self) -> str:
        """Return the URLs, for messages."""
        return ", ".join(self.urls)
