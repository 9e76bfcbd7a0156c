"""Settings with which Azure and Google cannot be reached: errors without secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tailerd.errors import AccessDeniedError
from tailerd.storage.object_store.accounts import Account, AzureAccount, GoogleAccount
from tailerd.storage.object_store.store import CloudStore

SECRET = "not base64, and secret"
KEY_FILE = "key.json"
CASES: dict[str, tuple[Account, str]] = {
    "no account": (AzureAccount(), "no storage account is named"),
    "account key": (AzureAccount(account="lake", account_key=SECRET), "is not base64"),
    "signature": (AzureAccount(account="lake", sas_token=SECRET), "a list of name=value"),
    "account": (AzureAccount(account="my lake/", account_key="aGk="), "not part of a URL"),
    "no file": (GoogleAccount(service_account_file="/nowhere/key.json"), "cannot be opened"),
    "file": (GoogleAccount(service_account_file=KEY_FILE), "is not its JSON key"),
}


async def _list(store: CloudStore) -> None:
    async for _ in store.list_from("lake/t"):
        pass


OPERATIONS: dict[str, Callable[[CloudStore], Awaitable[object]]] = {
    "get": lambda store: store.get("lake/t/a"),
    "put": lambda store: store.put("lake/t/a", b""),
    "list": _list,
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / KEY_FILE).write_text('{"private_key": "' + SECRET)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("case", CASES)
async def test_settings_that_cannot_be_used_are_an_error_with_a_remedy(
    case: str, operation: str
) -> None:
    account, about = CASES[case]
    store = CloudStore("az" if account.cloud == "azure" else "gs", account)
    with pytest.raises(AccessDeniedError) as caught:
        await OPERATIONS[operation](store)
    text = str(caught.value)
    assert "://lake cannot be accessed with these settings: " in text
    assert about in text
    assert f"storage.{account.cloud}" in caught.value.remedy
    assert SECRET not in text
    assert "\n" not in text
