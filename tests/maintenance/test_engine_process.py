"""A program that runs a job on an engine gets the settings of storage; nobody else sees them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tailerd.formats.maintenance import EngineSettings
from tailerd.maintenance.programs import EngineRequest, on_engine
from tailerd.registry import MAINTENANCE_PROGRAMS
from tailerd.storage.s3.settings import S3Account, S3Settings
from tailerd.storage.stores import Stores, StoreSettings

PROGRAM = """
import os, sys
import msgspec
from tailerd.maintenance.programs import EngineRequest, Message
from tailerd.storage.stores import StoreSettings

request = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineRequest)
settings = StoreSettings.from_json(request.storage)
[(name, s3)] = settings.by_name
seen = {
    "location": request.location,
    "key": s3.default.secret_access_key,
    "is_shown": "hush" in repr([sys.argv, dict(os.environ), request, settings]),
}
answer = Message(result=msgspec.json.encode(seen))
sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\\n")
"""


def settings(key: str) -> StoreSettings:
    account = S3Account(access_key_id="me", secret_access_key=key)
    return StoreSettings((("s3", S3Settings(default=account)),))


async def test_a_program_gets_the_settings_of_now_and_shows_them_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine_of_tests.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(MAINTENANCE_PROGRAMS, "tests", "engine_of_tests")
    stores = Stores(settings("before"))
    run = on_engine("s3://lake/orders", "delta", stores)
    stores.reconfigure(settings("hush"))
    seen = json.loads(await run(EngineSettings(kind="tests"), b""))
    assert seen == {"location": "s3://lake/orders", "key": "hush", "is_shown": False}


def test_a_request_shows_no_secret() -> None:
    request = EngineRequest(
        location="x", format="delta", job=b"", storage=settings("hush").to_json()
    )
    assert "hush" in msgspec.json.encode(request).decode()
    assert "hush" not in repr(request)
