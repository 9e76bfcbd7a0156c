"""How buckets are reached: what wins, what is inherited, what is never shown."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tailerd.config.storage import StorageConfig
from tailerd.storage.s3.settings import (
    SETTINGS_VARIABLE,
    S3Account,
    S3Settings,
    hand_down_settings,
    settings_in_use,
    use_settings,
)


@pytest.fixture(autouse=True)
def settings_of_others() -> Iterator[None]:
    yield
    use_settings(None)
    os.environ.pop(SETTINGS_VARIABLE, None)


def settings(**section: object) -> S3Settings:
    return S3Settings.of_config(StorageConfig.model_validate(section))


KEYS = {"access_key_id": "me", "secret_access_key": "hush", "session_token": "psst"}


def test_a_bucket_has_what_the_section_says_unless_it_says_otherwise() -> None:
    given = settings(endpoint="http://here:1", region="r", **KEYS, buckets={"b": {"region": "s"}})
    assert given.account_of("a").region == "r"
    own = given.account_of("b")
    assert (own.endpoint, own.region, own.access_key_id) == ("http://here:1", "s", "me")


@pytest.mark.parametrize("way", [{"anonymous": True}, {"profile": "p"}])
def test_a_bucket_with_credentials_of_its_own_has_none_of_the_others(
    way: dict[str, object],
) -> None:
    own = settings(**KEYS, buckets={"b": way}).account_of("b")
    assert (own.access_key_id, own.secret_access_key, own.session_token) == ("", "", "")
    assert own.is_anonymous is ("anonymous" in way)


def test_without_a_configuration_the_environment_may_ask_for_no_signature() -> None:
    assert S3Account.of_environment({"AWS_SKIP_SIGNATURE": "true"}).is_anonymous
    assert not S3Account.of_environment({}).is_anonymous


def test_secrets_are_not_shown() -> None:
    given = settings(**KEYS)
    hidden = ("hush", "psst")
    assert not any(secret in repr(given) for secret in hidden)
    section = StorageConfig.model_validate(KEYS)
    assert not any(secret in repr(section) + section.model_dump_json() for secret in hidden)


def test_settings_reach_other_processes_pickled_or_by_the_environment() -> None:
    given = settings(**KEYS, buckets={"b": {"anonymous": True}})
    assert pickle.loads(pickle.dumps(given)) == given
    use_settings(given)
    hand_down_settings()
    program = (
        "from tailerd.storage.s3.settings import settings_in_use as s;"
        "print(s().account_of('b').is_anonymous, s().account_of('a').secret_access_key)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["True", "hush"]


def test_settings_that_are_used_win_over_those_handed_down() -> None:
    use_settings(settings(region="first"))
    hand_down_settings()
    use_settings(settings(region="second"))
    assert settings_in_use().account_of("b").region == "second"
    use_settings(None)
    assert settings_in_use().account_of("b").region == "first"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"endpoint": "here:9000"}, "http:// or https://"),
        ({"endpoint": "http://me:hush@here"}, "do not belong into the URL"),
        ({"access_key_id": "a"}, "belong together"),
        ({"session_token": "a"}, "belongs to access_key_id"),
        ({**KEYS, "anonymous": True}, "exclude each other"),
        ({"buckets": {"b": {"profile": "p", "anonymous": True}}}, "exclude each other"),
        ({"attempts": 0}, "greater than or equal to 1"),
        ({"regoin": "x"}, "Extra inputs"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(section: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        StorageConfig.model_validate(section)
    assert "hush" not in str(caught.value).replace("me:hush@here", "")
