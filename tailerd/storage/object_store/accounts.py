"""How containers and buckets of Azure and Google are reached, as values."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client
    from pydantic import SecretStr

    from tailerd.config.storage import AzureConfig, GoogleConfig, StorageConfig

_NO_RETRIES: Any = {"max_retries": 0, "retry_timeout": dt.timedelta(0)}
"""The store repeats requests itself, also those whose bodies broke off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Settings that both clouds have.

    Empty fields are left to obstore, which reads the environment.

    Attributes:
        endpoint: URL of another server than the cloud's own.
        is_anonymous: Requests are not signed.
        attempts: Per request, including the first.
        max_connections: Maximum number of requests in flight.
    """

    cloud: ClassVar[str] = ""
    """Name of its settings."""

    endpoint_variables: ClassVar[tuple[str, ...]] = ()
    """Names of environment variables with the URL of another server."""

    endpoint: str = ""
    is_anonymous: bool = False
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 20.0
    attempts: int = 6
    max_connections: int = 64

    @classmethod
    def from_environment(cls) -> Self:
        """Return the account for commands without a configuration file."""
        named = (os.environ.get(name) for name in cls.endpoint_variables)
        endpoint = next(filter(None, named), "")
        return cls(endpoint=endpoint if "://" in endpoint or not endpoint else f"http://{endpoint}")

    @classmethod
    def from_config(cls, config: StorageConfig) -> Self:
        """Return the account of the cloud's part of the section `storage`."""
        raise NotImplementedError

    @classmethod
    def _shared(cls, config: StorageConfig, section: AzureConfig | GoogleConfig) -> dict[str, Any]:
        """Return the fields that both clouds have."""
        return {
            "endpoint": section.endpoint or cls.from_environment().endpoint,
            "is_anonymous": section.anonymous,
            "connect_timeout_seconds": config.connect_timeout,
            "read_timeout_seconds": config.read_timeout,
            "attempts": config.attempts,
            "max_connections": config.max_connections,
        }

    def client_options(self) -> Any:
        """Return obstore's options of its HTTP client."""
        return {
            "allow_http": self.endpoint.startswith("http://"),
            "connect_timeout": dt.timedelta(seconds=self.connect_timeout_seconds),
            "read_timeout": dt.timedelta(seconds=self.read_timeout_seconds),
            # For the whole body, which may be large.
            "timeout": dt.timedelta(hours=1),
        }

    def options(self) -> dict[str, str]:
        """Return the settings by the names that object_store has for them; contain secrets."""
        raise NotImplementedError

    @staticmethod
    def client_class() -> Any:
        """Load obstore's class of this cloud."""
        raise NotImplementedError

    def connect(self, container: str) -> Client:
        """Return the client of a container; sends no request."""
        client: Client = self.client_class()(
            container,
            config=self.options(),
            client_options=self.client_options(),
            retry_config=_NO_RETRIES,
        )
        return client


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureAccount(Account):
    """A storage account of Azure.

    Without a key, token or client, obstore looks for a workload identity, the Azure CLI if asked
    for, and the machine's managed identity.
    """

    cloud: ClassVar[str] = "azure"
    endpoint_variables: ClassVar[tuple[str, ...]] = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")

    account: str = ""
    account_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    uses_cli: bool = False

    @classmethod
    def from_config(cls, config: StorageConfig) -> Self:
        """Return the account of the section `storage.azure`."""
        section = config.azure
        return cls(
            **cls._shared(config, section),
            account=section.account or "",
            account_key=_plain(section.account_key),
            sas_token=_plain(section.sas_token),
            tenant_id=section.tenant_id or "",
            client_id=section.client_id or "",
            client_secret=_plain(section.client_secret),
            uses_cli=section.use_cli,
        )

    def options(self) -> dict[str, str]:
        """Return the settings by the names that object_store has for them; contain secrets."""
        return _given(
            azure_storage_account_name=self.account,
            azure_storage_account_key=self.account_key,
            azure_storage_sas_key=self.sas_token,
            azure_storage_tenant_id=self.tenant_id,
            azure_storage_client_id=self.client_id,
            azure_storage_client_secret=self.client_secret,
            azure_storage_endpoint=self.endpoint,
            azure_use_azure_cli="true" if self.uses_cli else "",
            azure_skip_signature="true" if self.is_anonymous else "",
        )

    @staticmethod
    def client_class() -> Any:
        """Load obstore's class."""
        from obstore.store import AzureStore

        return AzureStore


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleAccount(Account):
    """Credentials of Google.

    Without a file, obstore uses the application default credentials: those that the variable
    GOOGLE_APPLICATION_CREDENTIALS names, those of gcloud, and the machine's service account.
    """

    cloud: ClassVar[str] = "google"
    endpoint_variables: ClassVar[tuple[str, ...]] = ("GOOGLE_BASE_URL", "STORAGE_EMULATOR_HOST")

    service_account_file: str = ""

    @classmethod
    def from_config(cls, config: StorageConfig) -> Self:
        """Return the credentials of the section `storage.google`."""
        section = config.google
        return cls(
            **cls._shared(config, section),
            service_account_file=section.service_account_file or "",
        )

    def options(self) -> dict[str, str]:
        """Return the settings by the names that object_store has for them."""
        return _given(
            google_service_account=self.service_account_file,
            google_base_url=self.endpoint,
            google_skip_signature="true" if self.is_anonymous else "",
        )

    @staticmethod
    def client_class() -> Any:
        """Load obstore's class."""
        from obstore.store import GCSStore

        return GCSStore


def _given(**values: str) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


def _plain(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
