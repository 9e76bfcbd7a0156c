"""The section of the PostgreSQL sink; separate from it, so that validation loads no driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from tailerd.config import SinkConfig

MAX_NAME_BYTES = 63
DELETED_AT = "deleted_at"
OFFSETS_TABLE = "tailerd_offsets"

_TABLE = re.compile(r'("(?:[^"]|"")+"|[^".\s]+)(?:\.("(?:[^"]|"")+"|[^".\s]+))?')
_SECRETS = ("password", "sslpassword", "oauth_client_secret")


class PostgresSinkConfig(SinkConfig):
    """A table of PostgreSQL 15 or newer."""

    implementation: ClassVar[str] = "tailerd.sinks.postgres.sink:PostgresSink"

    kind: Literal["postgres"] = Field(description="A PostgreSQL table.")
    dsn: str = Field(
        description="Database, as a URL with libpq's parameters, TLS among them, without the"
        " password.",
        examples=["postgresql://tailerd@db.example.org/lake?sslmode=verify-full"],
    )
    password: SecretStr | None = Field(
        default=None,
        min_length=1,
        description="Password of the user. Default: what libpq finds in PGPASSWORD or ~/.pgpass.",
        examples=["${file:/run/secrets/postgres}"],
    )
    table: str = Field(
        description="Target table, created if it does not exist: TABLE in the schema `public`, or"
        " SCHEMA.TABLE. Names keep their case; one with a dot or a space is in double quotes.",
        examples=["public.orders"],
    )
    mode: Literal["upsert", "append"] = Field(
        description="`upsert`: the target mirrors the table, a row for each key; `append`: the"
        " target is a log of all changes.",
        examples=["upsert"],
    )
    key: list[str] = Field(
        default_factory=list,
        description="Columns that identify a row; `upsert` needs them.",
        examples=[["order_id"]],
    )
    deletes: Literal["hard", "soft"] = Field(
        default="hard",
        description="`hard` removes deleted rows; `soft` sets their `deleted_at` to the time of"
        " the commit (upsert).",
        examples=["hard"],
    )
    snapshot: Literal["swap", "truncate"] = Field(
        default="swap",
        description="How a snapshot replaces the rows (upsert): `swap` fills another table, which"
        " then takes the name; `truncate` copies the rows into the emptied target, which stays"
        " locked meanwhile, but keeps views, triggers and foreign keys.",
        examples=["swap"],
    )
    on_unrepresentable: Literal["stop", "null"] = Field(
        default="stop",
        description="What to do with a value that PostgreSQL cannot store, such as a text with"
        " U+0000: stop, or write null.",
        examples=["stop"],
    )
    on_incompatible_schema: Literal["stop", "ignore"] = Field(
        default="stop",
        description="What to do if the table drops or renames a column: `stop`; or `ignore`: keep"
        " the column in the target, without new values. Columns that are new or wider are always"
        " followed; another change of a type always stops.",
        examples=["stop"],
    )

    @field_validator("dsn")
    @classmethod
    def _is_a_url_without_secrets(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("postgresql", "postgres"):
            raise ValueError("write postgresql://USER@HOST:PORT/DATABASE?sslmode=verify-full")
        if parts.password is not None or set(_SECRETS) & parse_qs(parts.query).keys():
            # Messages and status pages show the address.
            raise ValueError("leave the password out of the URL and set `password`")
        if not _find_database(value):
            raise ValueError("name the database: postgresql://USER@HOST:PORT/DATABASE")
        return value

    @field_validator("table")
    @classmethod
    def _is_a_table(cls, value: str) -> str:
        for name in split_table(value):
            check_name(name)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.mode == "upsert" and not self.key:
            raise ValueError("mode upsert needs `key`: the columns that identify a row")
        if len(set(self.key)) != len(self.key):
            raise ValueError("a column of `key` is named twice")
        if self.mode == "append":
            foreign = {"key", "deletes", "snapshot"} & self.model_fields_set
            if foreign:
                raise ValueError(f"mode append has no `{min(foreign)}`; remove it")
        return self

    @property
    def database(self) -> str:
        """Return the name of the database."""
        return _find_database(self.dsn)

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """Return the names of the target's schema and table."""
        return split_table(self.table)

    @property
    def is_mirror(self) -> bool:
        """Return whether the target has one row for each key."""
        return self.mode == "upsert"

    @property
    def is_soft(self) -> bool:
        """Return whether deleted rows stay, with the time of their deletion."""
        return self.deletes == "soft"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the columns that identify a row; empty for a log."""
        return tuple(self.key)

    def columns_by_field(self) -> Mapping[str, tuple[str, ...]]:
        """Return the columns of `key`."""
        return {"key": tuple(self.key)}

    def location(self) -> str:
        """Return host, database and table."""
        return f"{self._server()}/{self.identity_location()}"

    def identity_location(self) -> str:
        """Return database, schema and table; a failover to another host is the same pipeline."""
        return "/".join((self.database, *self.schema_and_table))

    def offsets_location(self) -> str:
        """Return the table of the offsets."""
        return f"the table {self.schema_and_table[0]}.{OFFSETS_TABLE} of {self.database}"

    def guarantee(self) -> str:
        """Return `exactly-once`: rows and offset are in one transaction."""
        return "exactly-once"

    def _server(self) -> str:
        parts = urlsplit(self.dsn)
        query = parse_qs(parts.query)
        hosts = [parts.netloc.rpartition("@")[2], *query.get("host", ()), *query.get("port", ())]
        return ",".join(each for each in hosts if each)


def split_table(text: str) -> tuple[str, str]:
    """Return schema and name of a table; without a schema it is in `public`.

    Raises:
        ValueError: The text is not of the form.
    """
    match = _TABLE.fullmatch(text)
    if match is None:
        raise ValueError('write TABLE or SCHEMA.TABLE; quote names with dots: public."a.b"')
    first, second = match.groups()
    return ("public", _unquote(first)) if second is None else (_unquote(first), _unquote(second))


def check_name(name: str) -> None:
    """Check that PostgreSQL does not cut a name.

    Raises:
        ValueError: It is longer than 63 bytes, or has U+0000.
    """
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        raise ValueError(
            f"the name {name!r} has more than {MAX_NAME_BYTES} bytes, and PostgreSQL would cut it"
        )
    if not name or "\0" in name:
        raise ValueError(f"{name!r} is not a name that PostgreSQL can store")


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _find_database(dsn: str) -> str:
    parts = urlsplit(dsn)
    named = parse_qs(parts.query).get("dbname", [""])[-1]
    return named or unquote(parts.path.removeprefix("/"))
