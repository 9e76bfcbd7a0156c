"""How buckets are reached: what wins, what is inherited, what is never shown."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from tailerd.config.storage import StorageConfig
from tailerd.errors import BugError
from tailerd.storage.s3.settings import (
    S3Account,
    S3Settings,
)
from tailerd.storage.s3.store import S3Store
from tailerd.storage.stores import Stores, StoreSettings


def settings(**section: object) -> S3Settings:
    return S3Settings.from_config(StorageConfig.model_validate(section))


KEYS = {"access_key_id": "me", "secret_access_key": "hush", "session_token": "psst"}


def test_a_bucket_has_what_the_section_says_unless_it_says_otherwise() -> None:
    given = settings(endpoint="http://here:1", region="r", **KEYS, buckets={"b": {"region": "s"}})
    assert given.select_account("a").region == "r"
    own = given.select_account("b")
    assert (own.endpoint, own.region, own.access_key_id) == ("http://here:1", "s", "me")


@pytest.mark.parametrize("way", [{"anonymous": True}, {"profile": "p"}])
def test_a_bucket_with_credentials_of_its_own_has_none_of_the_others(
    way: dict[str, object],
) -> None:
    own = settings(**KEYS, buckets={"b": way}).select_account("b")
    assert (own.access_key_id, own.secret_access_key, own.session_token) == ("", "", "")
    assert own.is_anonymous is ("anonymous" in way)


def test_without_a_configuration_the_environment_may_ask_for_no_signature() -> None:
    assert S3Account.from_environment({"AWS_SKIP_SIGNATURE": "true"}).is_anonymous
    assert not S3Account.from_environment({}).is_anonymous


def test_secrets_are_not_shown() -> None:
    given = settings(**KEYS)
    hidden = ("hush", "psst")
    assert not any(secret in repr(given) for secret in hidden)
    section = StorageConfig.model_validate(KEYS)
    assert not any(secret in repr(section) + section.model_dump_json() for secret in hidden)


def test_settings_reach_other_processes_pickled_or_as_json() -> None:
    given = settings(**KEYS, buckets={"b": {"anonymous": True}})
    assert pickle.loads(pickle.dumps(given)) == given
    of_stores = StoreSettings((("s3", given),))
    assert pickle.loads(pickle.dumps(of_stores)) == of_stores
    line = msgspec.json.encode(of_stores.to_json())
    message = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    assert StoreSettings.from_json(message) == of_stores


def test_settings_of_another_process_that_are_malformed_are_not_repeated() -> None:
    with pytest.raises(BugError) as caught:
        StoreSettings.from_json({"s3": msgspec.Raw(b'{"default": "hush"}')})
    assert "hush" not in str(caught.value)
    # What decoding raised may repeat them.
    assert caught.value.__suppress_context__


def test_stores_are_pickled_with_their_settings_and_show_no_secret() -> None:
    stores = Stores.from_config(StorageConfig.model_validate(KEYS))
    again = pickle.loads(pickle.dumps(stores))
    assert again.settings == stores.settings
    assert not any(secret in repr(again.settings) for secret in ("hush", "psst"))


def test_other_settings_are_used_by_stores_that_are_open() -> None:
    stores = Stores(StoreSettings((("s3", settings(region="first")),)))
    store, _ = stores.locate("s3://b/t")
    assert isinstance(store, S3Store)
    stores.reconfigure(StoreSettings((("s3", settings(region="second")),)))
    assert store.settings.select_account("b").region == "second"
    assert stores.locate("s3a://b/t")[0] is store


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"endpoint": "here:9000"}, "http:// or https://"),
        ({"endpoint": "http://me:hush@here"}, "do not belong in the URL"),
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
