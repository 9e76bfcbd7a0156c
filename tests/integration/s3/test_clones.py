"""Tables whose log is in one bucket and whose data is in another one, of somebody else."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailerd.errors import PathOutsideTableError
from tests.integration.buckets.test_table_faults import changes
from tests.integration.daemon.running import run_to_end
from tests.integration.s3.configured import delivered, write_tables_config
from tests.s3.servers import ACCESS_KEY, SECRET_KEY, S3Server
from tests.s3.upload import upload
from tests.tables.builder import TableBuilder

WAYS_OUT = [
    "../../{origin}/lake/orders/",
    "s3://{bucket}/lake/clone/../../../{origin}/lake/orders/",
    "s3://{bucket}/lake/clone/%2e%2e/%2E%2E/../{origin}/lake/orders/",
    "S3://{origin}/lake/orders/",
    "https://s3.amazonaws.com/{origin}/lake/orders/",
    "file:///etc/",
    "/{origin}/lake/orders/",
]


class Clone:
    """A shallow clone: a log on moto, its data where the origin is, on versitygw.

    The servers know different buckets and, as far as they look, different keys.
    """

    def __init__(self, here: S3Server, there: S3Server, folder: Path) -> None:
        self.here, self.there = here, there
        self.bucket, self.origin = here.new_bucket(), there.new_bucket()
        self.location = f"s3://{self.bucket}/lake/clone"
        self._folder = folder
        table = TableBuilder(folder / "origin")
        [self._add] = table.append([{"id": n, "name": f"n{n}"} for n in range(5)]).adds
        upload(there, table.folder, self.origin, "lake/orders")

    def write(self, before: str) -> None:
        """Make the clone; it names the origin's file with `before` in front."""
        before = before.format(bucket=self.bucket, origin=self.origin)
        clone = TableBuilder(self._folder / "clone")
        add = {**self._add["add"], "path": before + self._add["add"]["path"]}
        clone.create({"add": add}, *clone.data_files([{"id": 100, "name": "own"}]))
        upload(self.here, clone.folder, self.bucket, "lake/clone")

    @property
    def account_there(self) -> dict[str, Any]:
        return {
            "endpoint": self.there.endpoint,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }


@pytest.fixture
def clone(s3_moto: S3Server, s3_versitygw: S3Server, tmp_path: Path) -> Clone:
    return Clone(s3_moto, s3_versitygw, tmp_path)


@pytest.fixture
def deliver(clone: Clone, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(**options: Any) -> subprocess.CompletedProcess[str]:
        keys = {"access_key_id": "of-this-account", "secret_access_key": "another-secret"}
        buckets = options.pop("buckets", {clone.origin: clone.account_there})
        config = write_tables_config(
            tmp_path,
            clone.here,
            {"orders": clone.location},
            keys={**keys, "attempts": 2, "buckets": buckets},
            options=options,
        )
        return run_to_end("run", "--config", config, "--once")

    return run


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_data_in_another_account_is_read_where_it_is_allowed(
    clone: Clone,
    deliver: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    scheme: str,
) -> None:
    clone.write(f"{scheme}://{{origin}}/lake/orders/")
    ran = deliver(allowed_paths=[f"s3://{clone.origin}/lake/orders"])
    assert ran.returncode == 0, ran.stderr
    assert sorted(row["id"] for row in delivered(tmp_path, "orders")) == [0, 1, 2, 3, 4, 100]


@pytest.mark.full
@pytest.mark.parametrize("allowed", [[], ["lake/ord"], ["elsewhere"]])
def test_data_in_another_bucket_is_refused_unless_it_is_allowed(
    clone: Clone,
    deliver: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    allowed: list[str],
) -> None:
    clone.write("s3://{origin}/lake/orders/")
    ran = deliver(allowed_paths=[f"s3://{clone.origin}/{location}" for location in allowed])
    assert ran.returncode != 0
    assert "path_outside_table" in ran.stderr
    assert f"s3://{clone.origin}/lake/orders" in ran.stderr
    assert delivered(tmp_path, "orders") == []


@pytest.mark.parametrize("way", WAYS_OUT)
async def test_no_spelling_leads_out_of_the_bucket(
    clone: Clone, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.write(way)
    for name, value in clone.here.environment().items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PathOutsideTableError):
        await changes(clone.location, "0")


@pytest.mark.full
def test_without_the_other_account_the_error_names_the_file_that_is_not_to_be_had(
    clone: Clone, deliver: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    clone.write("s3://{origin}/lake/orders/")
    allowed = [f"s3://{clone.origin}/lake/orders"]
    ran = deliver(allowed_paths=allowed, buckets={})
    assert (ran.returncode, f"The bucket {clone.origin} does not exist" in ran.stderr) == (1, True)
    wrong = {**clone.account_there, "secret_access_key": "of-somebody-else"}
    ran = deliver(allowed_paths=allowed, buckets={clone.origin: wrong})
    assert ran.returncode == 1
    assert f"s3://{clone.origin}/lake/orders" in ran.stderr
    assert "does not accept the credentials" in ran.stderr
    assert "of-somebody-else" not in ran.stderr
    assert delivered(tmp_path, "orders") == []
