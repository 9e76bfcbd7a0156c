"""The section `storage`: how buckets are reached."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, Secret, SecretStr, model_validator

from tailerd.config.values import HttpUrl, Seconds

_SECTION = ConfigDict(extra="forbid", frozen=True)


class BucketConfig(BaseModel):
    """Location and credentials of a bucket. Fields left out come from the environment (`AWS_*`)."""

    model_config = _SECTION

    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of the server; without it, AWS, or what AWS_ENDPOINT_URL says.",
        examples=["http://127.0.0.1:9000"],
    )
    region: str | None = Field(
        default=None, description="Region of the buckets.", examples=["eu-central-1"]
    )
    path_style: bool | None = Field(
        default=None,
        description="Whether the bucket is in the URL's path and not in its host name; by default,"
        " if there is an endpoint.",
        examples=[True],
    )
    profile: str | None = Field(
        default=None,
        description="Profile of the AWS configuration files that has the credentials.",
        examples=["lake"],
    )
    access_key_id: SecretStr | None = Field(
        default=None,
        description="Static or temporary key; better given as TAILERD__STORAGE__ACCESS_KEY_ID."
        " Without key and profile the SDK looks for credentials: environment, files, web identity,"
        " the machine's role.",
        examples=["AKIAIOSFODNN7EXAMPLE"],
    )
    secret_access_key: SecretStr | None = Field(
        default=None, description="The key's secret.", examples=["a-secret"]
    )
    session_token: SecretStr | None = Field(
        default=None, description="The token of a temporary key.", examples=["a-token"]
    )
    anonymous: bool = Field(
        default=False,
        description="Send requests without credentials, for public buckets.",
        examples=[False],
    )

    @model_validator(mode="after")
    def _credentials_fit(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together: give both")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token belongs to access_key_id: give that too")
        ways = (self.profile is not None, self.access_key_id is not None, self.anonymous)
        if sum(ways) > 1:
            raise ValueError("profile, access_key_id and anonymous exclude each other: give one")
        return self


class AzureConfig(BaseModel):
    """A storage account of Azure. Fields left out come from the environment (`AZURE_*`)."""

    model_config = _SECTION

    account: str | None = Field(
        default=None,
        description="Name of the storage account; abfss://CONTAINER@ACCOUNT... names its own.",
        examples=["mylake"],
    )
    endpoint: HttpUrl | None = Field(
        default=None,
        description="URL of another server, such as an emulator.",
        examples=["http://127.0.0.1:10000/devstoreaccount1"],
    )
    account_key: SecretStr | None = Field(
        default=None,
        description="Key of the account; better given as TAILERD__STORAGE__AZURE__ACCOUNT_KEY."
        " Without any credentials the workload identity or managed identity is used.",
        examples=["a-secret"],
    )
    sas_token: SecretStr | None = Field(
        default=None, description="Shared access signature.", examples=["a-token"]
    )
    tenant_id: str | None = Field(
        default=None, description="Tenant of a service principal.", examples=["a-tenant"]
    )
    client_id: str | None = Field(
        default=None,
        description="Service principal, or the managed identity to use.",
        examples=["a-client"],
    )
    client_secret: SecretStr | None = Field(
        default=None, description="Secret of the service principal.", examples=["a-secret"]
    )
    use_cli: bool = Field(
        default=False, description="Use the login of the Azure CLI.", examples=[False]
    )
    anonymous: bool = Field(
        default=False, description="Send requests without credentials.", examples=[False]
    )


class GoogleConfig(BaseModel):
    """Credentials of Google. By default, the application default credentials."""

    model_config = _SECTION

    service_account_file: str | None = Field(
        default=None,
        description="JSON file of a service account's key.",
        examples=["/run/secrets/gcs.json"],
    )
    endpoint: HttpUrl | None = Field(
        default=None, description="URL of another server.", examples=["http://127.0.0.1:4443"]
    )
    anonymous: bool = Field(
        default=False, description="Send requests without credentials.", examples=[False]
    )


class StorageConfig(BucketConfig):
    """Buckets of S3 and of servers that speak its protocol, of Azure and of Google."""

    connect_timeout: Seconds = Field(
        default=5.0, ge=0.1, le=300, description="Longest wait for a connection.", examples=["5s"]
    )
    read_timeout: Seconds = Field(
        default=20.0,
        ge=0.1,
        le=3600,
        description="Longest wait for data in the middle of a response.",
        examples=["20s"],
    )
    attempts: int = Field(
        default=6,
        ge=1,
        le=20,
        description="Attempts per request before it fails, with growing pauses.",
        examples=[6],
    )
    max_connections: int = Field(
        default=64, ge=1, le=4096, description="Maximum concurrent requests.", examples=[64]
    )
    hedge_after: Seconds | None = Field(
        default=None,
        ge=0.001,
        le=300,
        description="A GET without a response byte for this long is sent a second time in parallel,"
        " for one request in twenty at most, and the first response wins; by default none is. The"
        " p99 of your requests is a good value.",
        examples=["300ms"],
    )
    buckets: dict[str, BucketConfig] = Field(
        default_factory=dict,
        description="Buckets in another region or account: each with the fields of this section"
        " that differ.",
        examples=[{"public-data": {"region": "us-east-1", "anonymous": True}}],
    )
    azure: AzureConfig = Field(
        default_factory=AzureConfig, description="Azure Blob Storage (`az://container/path`)."
    )
    google: GoogleConfig = Field(
        default_factory=GoogleConfig, description="Google Cloud Storage (`gs://bucket/path`)."
    )
    stores: dict[str, Secret[dict[str, object]]] | None = Field(
        default=None,
        description="Sections of stores that other distributions provide, by URL scheme; the store"
        " defines the fields.",
        examples=[{"lake": {"token": "a-secret"}}],
    )
