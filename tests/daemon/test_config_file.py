"""A file that changes is read again; what does not fit what runs is refused, and nothing taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tailerd.config import Config
from tailerd.daemon.config_file import ConfigFile
from tailerd.errors import ConfigError, TailerdError
from tailerd.storage.stores import StoreSettings
from tailerd.telemetry import Telemetry, events


def configured(**fields: object) -> Config:
    tables = {"orders": {"path": "/lake/orders", "sink": {"kind": "console"}}}
    return Config.model_validate({"engine": "arrow", "tables": tables, **fields})


def make_file(
    reported: list[events.Event],
    reload: Callable[[], Config] | None = None,
    *,
    path: Path | None = None,
) -> ConfigFile:
    telemetry = Telemetry([reported.append])
    return ConfigFile(
        configured(), telemetry, path=path, reload=reload, is_watched=path is not None
    )


def passes(config: Config) -> None:
    """Find nothing wrong."""


async def test_what_was_read_again_is_taken_and_told() -> None:
    reported: list[events.Event] = []
    taken: list[float] = []
    file = make_file(reported, lambda: configured(shutdown_timeout="7s"))

    def take(config: Config, storage: StoreSettings) -> None:
        taken.append(config.shutdown_timeout)

    await file.read_again(passes, take)
    assert (taken, file.config.shutdown_timeout) == ([7], 7)
    assert [type(each) for each in reported] == [events.ConfigReloaded]


def unreadable() -> Config:
    raise ConfigError("Line 1 is no YAML.")


@pytest.mark.parametrize(
    ("reload", "fault"),
    [
        (unreadable, None),
        (lambda: configured(state="/elsewhere"), None),
        (lambda: configured(shutdown_timeout="7s"), ConfigError("Spark runs.")),
    ],
    ids=["unreadable", "what is fixed", "what runs"],
)
async def test_a_file_that_does_not_fit_is_refused_with_the_reason(
    reload: Callable[[], Config], fault: TailerdError | None
) -> None:
    reported: list[events.Event] = []
    file = make_file(reported, reload)
    before = file.config

    def check(config: Config) -> None:
        if fault is not None:
            raise fault

    def take(config: Config, storage: StoreSettings) -> None:
        raise AssertionError("nothing may be taken")

    await file.read_again(check, take)
    assert file.config is before
    [refused] = reported
    assert isinstance(refused, events.ConfigRejected)
    assert refused.error


async def test_without_a_way_to_read_it_nothing_happens() -> None:
    reported: list[events.Event] = []
    file = make_file(reported)
    assert not file.can_reload
    await file.read_again(passes, lambda *_: None)
    assert reported == []


async def test_a_question_is_answered_once() -> None:
    file = make_file([])
    assert not await file.wait(0)
    file.ask()
    assert await file.wait(None)
    assert not await file.wait(0)


async def test_only_another_content_counts_as_a_change(tmp_path: Path) -> None:
    path = tmp_path / "tailerd.yaml"
    path.write_text("engine: arrow\n")
    file = make_file([], configured, path=path)
    watching = asyncio.create_task(file.watch())
    # What a write tells of comes only once the watch has begun.
    requested = False
    for number in range(50):
        path.write_text(f"engine: arrow\n# {number}\n")
        if requested := await file.wait(0.2):
            break
    assert requested
    while await file.wait(1):
        pass
    path.write_bytes(path.read_bytes())
    assert not await file.wait(1)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
