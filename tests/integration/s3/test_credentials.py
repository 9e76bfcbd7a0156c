"""Credentials that expire while the daemon runs, and whoever renews them beside it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailerd.errors import AccessDeniedError, CredentialsExpiredError, StorageError
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.s3.store import S3Store
from tests.integration.daemon.running import daemon, page, read_log
from tests.integration.s3.configured import delivered, write_tables_config
from tests.integration.s3.living_table import LivingTable
from tests.s3.notified import NotifiedBucket
from tests.s3.proxy import Fault, FaultProxy, Seen
from tests.s3.servers import S3Server
from tests.waiting import eventually

Renew = Callable[[str], None]
_KEY = re.compile(r"Credential=([^/]+)/")


class Turnstile(FaultProxy):
    """Lets nobody in but holders of the keys that are good at the moment.

    Attributes:
        is_good: Tells of an access key.
        used: Keys that were shown, in order of their first use.
    """

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.is_good: Callable[[str], bool] = lambda key: True
        self.used: dict[str, None] = {}
        self.choose = self._look_at_key

    def _look_at_key(self, seen: Seen) -> Fault | None:
        found = _KEY.search(seen.headers.get("authorization", ""))
        key = found[1] if found else ""
        self.used[key] = None
        return None if self.is_good(key) else Fault.EXPIRED


@pytest.fixture
def living(s3_moto: S3Server, tmp_path: Path) -> LivingTable:
    return LivingTable(tmp_path / "table", NotifiedBucket(s3_moto))


@pytest.fixture
def turnstile(s3_moto: S3Server) -> Iterator[Turnstile]:
    with Turnstile(s3_moto.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def shared_file(folder: Path) -> Renew:
    """Somebody writes new keys into the credentials file."""

    def renew(key: str) -> None:
        (folder / "credentials").write_text(
            f"[lake]\naws_access_key_id = {key}\naws_secret_access_key = hush-{key}\n"
            f"aws_session_token = psst-{key}\n"
        )

    return renew


def credential_process(folder: Path, until: str = "2099-01-01T00:00:00Z") -> Renew:
    """A program prints keys and until when they are good."""
    answer = folder / "answer.json"
    program = f"{sys.executable} -c \"print(open('{answer}').read())\""
    (folder / "config").write_text(f"[profile lake]\ncredential_process = {program}\n")

    def renew(key: str) -> None:
        keys = {"AccessKeyId": key, "SecretAccessKey": f"hush-{key}", "SessionToken": f"psst-{key}"}
        answer.write_text(json.dumps({"Version": 1, "Expiration": until, **keys}))

    return renew


@pytest.mark.full
@pytest.mark.parametrize("provider", [shared_file, credential_process])
def test_keys_of_a_profile_are_looked_for_anew_until_somebody_renewed_them(
    living: LivingTable, turnstile: Turnstile, tmp_path: Path, provider: Callable[[Path], Renew]
) -> None:
    renew = provider(tmp_path)
    renew("first")
    config = write_tables_config(
        tmp_path,
        living.notified.server,
        {"orders": living.location},
        endpoint=turnstile.endpoint,
        keys={"profile": "lake"},
    )
    with daemon(config):
        eventually(lambda: ids(tmp_path) == living.ids)
        turnstile.is_good = lambda key: key == "second"
        living.append()
        eventually(lambda: "credentials_expired" in page(config, "/status"))
        [status] = json.loads(page(config, "/status"))["tables"]
        assert status["state"] == "retrying"
        assert ids(tmp_path) == living.ids[:-1]
        renew("second")
        eventually(lambda: ids(tmp_path) == living.ids)
        # Renewed in time, nobody hears of it.
        reported = read_log(config).count("credentials_expired")
        renew("third")
        turnstile.is_good = lambda key: key == "third"
        living.append()
        eventually(lambda: ids(tmp_path) == living.ids)
        assert read_log(config).count("credentials_expired") == reported
    assert not re.search("hush|psst", read_log(config))
    assert [*turnstile.used] == ["first", "second", "third"]


@pytest.mark.full
def test_a_program_that_goes_on_giving_keys_which_have_expired_is_told_of(
    living: LivingTable, turnstile: Turnstile, tmp_path: Path
) -> None:
    credential_process(tmp_path)("first")
    config = write_tables_config(
        tmp_path,
        living.notified.server,
        {"orders": living.location},
        endpoint=turnstile.endpoint,
        keys={"profile": "lake"},
        notifications={
            "queue": living.notified.queue,
            "endpoint": turnstile.endpoint,
            "wait": "1s",
        },
    )
    with daemon(config):
        eventually(lambda: ids(tmp_path) == living.ids)
        turnstile.is_good = lambda key: key == "second"
        credential_process(tmp_path, "2001-01-01T00:00:00Z")("first")
        living.append()
        eventually(lambda: "credentials_expired" in page(config, "/status"))
        eventually(lambda: "The credentials for http" in read_log(config))
        credential_process(tmp_path)("second")
        eventually(lambda: ids(tmp_path) == living.ids)
        eventually(lambda: "Notifications recovered" in read_log(config))
    # Nothing but our own lines: the vendor's client says all of it again, with a traceback.
    assert all(json.loads(line) for line in read_log(config).splitlines())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("/bin/false", "custom-process"),
        ("/bin/echo no", "credential_process is not JSON"),
        ("/not/there", "No such file"),
    ],
)
async def test_a_program_that_gives_no_keys_is_what_the_error_is_about(
    s3_moto: S3Server, tmp_path: Path, program: str, words: str
) -> None:
    (tmp_path / "config").write_text(f"[profile '{words}']\ncredential_process = {program}\n")
    account = S3Account(endpoint=s3_moto.endpoint, profile=words, attempts=1)
    with pytest.raises(StorageError, match=words) as caught:
        await S3Store(S3Settings(default=account)).get("b/a")
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.DENY, AccessDeniedError),
        (Fault.EXPIRED, CredentialsExpiredError),
        (Fault.REFUSE, StorageError),
    ],
    ids=lambda value: getattr(value, "value", ""),
)
async def test_a_role_that_is_refused_is_told_apart_from_a_right_that_is_missing(
    s3_moto: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Fault,
    kind: type[StorageError],
) -> None:
    (tmp_path / "token").write_text("a-token-of-the-cluster")
    with FaultProxy(s3_moto.port) as sts:
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/lake")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.endpoint)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        sts.choose = lambda seen: fault
        account = S3Account(endpoint=s3_moto.endpoint, attempts=1, region=f"x-{sts.port}")
        with pytest.raises(kind) as caught:
            await S3Store(S3Settings(default=account)).get("b/a")
    assert type(caught.value) is kind
    assert "a-token-of-the-cluster" not in str(caught.value)
    if fault is not Fault.REFUSE:
        assert "AssumeRoleWithWebIdentity is refused" in str(caught.value)
        assert "s3:GetObject" not in str(caught.value)


@pytest.mark.full
def test_a_web_identity_gets_other_keys_when_the_first_expire(
    living: LivingTable, turnstile: Turnstile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = living.notified.server
    (tmp_path / "token").write_text("a-token-of-the-cluster")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/lake")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)
    config = write_tables_config(
        tmp_path, server, {"orders": living.location}, endpoint=turnstile.endpoint, keys={}
    )
    with daemon(config):
        for _ in range(3):
            living.append()
            eventually(lambda: ids(tmp_path) == living.ids)
            expired = frozenset(turnstile.used)
            turnstile.is_good = lambda key: key not in expired  # noqa: B023
    assert len(turnstile.used) >= 3
    assert all(key.startswith("ASIA") for key in turnstile.used)
    assert "credentials_expired" not in read_log(config)
    assert "a-token-of-the-cluster" not in read_log(config)


def ids(folder: Path) -> list[int]:
    return [row["id"] for row in delivered(folder, "orders")]
