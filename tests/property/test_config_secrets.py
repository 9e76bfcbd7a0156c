"""However a configuration is wrong, nothing that is said about it has a secret in it."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tailerd.config.loading import parse_config
from tailerd.errors import ConfigError
from tailerd.storage.s3.settings import S3Settings

SECRET = "unsayable"
SECRETS = st.from_regex(r"unsayable[a-zA-Z0-9+/=]{0,30}", fullmatch=True)

PATHS: list[tuple[str, ...]] = [
    ("storage", "access_key_id"),
    ("storage", "secret_access_key"),
    ("storage", "session_token"),
    ("storage", "buckets", "lake", "access_key_id"),
    ("storage", "buckets", "lake", "secret_access_key"),
    ("storage", "buckets", "lake", "session_token"),
    ("http", "token"),
    ("tables", "orders", "sink", "producer", "sasl_plain_password"),
    ("spark", "conf", "spark.hadoop.fs.s3a.secret.key"),
]
"""Where secrets belong."""

URLS: list[tuple[str, ...]] = [
    ("storage", "endpoint"),
    ("storage", "buckets", "lake", "endpoint"),
    ("notifications", "queue"),
    ("notifications", "endpoint"),
    ("tables", "orders", "path"),
    ("state",),
    ("discover", "found", "path"),
]
"""Where people put them into a URL, and they are refused."""

WRONG: list[tuple[tuple[str, ...], Any]] = [
    (("storage", "regoin"), "x"),
    (("storage", "attempts"), "many"),
    (("storage", "anonymous"), True),
    (("storage", "buckets", "lake", "anonymous"), True),
    (("storage", "buckets", "lake", "wrong"), 1),
    (("tables", "orders", "sink", "wrong"), 1),
    (("tables", "orders", "sink", "producer", "security_protocol"), "NONE"),
    (("tables", "orders", "sink", "producer", "no_such_option"), "x"),
    (("tables", "orders", "poll_interval"), "often"),
    (("http", "hosts"), ["*"]),
    (("engine",), "steam"),
]
WRAPPED = st.sampled_from(
    [
        lambda secret: secret,
        lambda secret: [secret],
        lambda secret: {"value": secret},
        lambda secret: {secret: 1},
    ]
)


def minimal() -> dict[str, Any]:
    sink = {"kind": "kafka", "topic": "t", "bootstrap_servers": ["b:9092"], "producer": {}}
    return {"engine": "arrow", "tables": {"orders": {"path": "s3://lake/orders", "sink": sink}}}


def put(config: dict[str, Any], path: tuple[str, ...], value: object) -> None:
    *folders, name = path
    for folder in folders:
        config = config.setdefault(folder, {})
    config[name] = value


def all_that_is_said(text: str, environment: dict[str, str]) -> str:
    """Return whatever a command could show of it, `--debug` included."""
    try:
        config = parse_config(text, environment, where="tailerd.yaml")
    except ConfigError as error:
        return "".join([str(error), *traceback.format_exception(error)])
    accounts = S3Settings.from_config(config.storage)
    # What is for Spark's own eyes goes to Spark only.
    parts = [config.storage, config.http, config.tables, config.notifications, accounts]
    return repr(parts) + config.model_dump_json(exclude={"spark"})


@settings(max_examples=50)
@given(
    secret=SECRETS,
    paths=st.lists(st.sampled_from(PATHS), min_size=1, max_size=4, unique=True),
    wrong=st.lists(st.sampled_from(WRONG), max_size=2),
    wrapped=WRAPPED,
    is_in_environment=st.booleans(),
)
def test_a_secret_in_its_field_is_never_shown(
    secret: str, paths: Any, wrong: Any, wrapped: Any, is_in_environment: bool
) -> None:
    config, environment = minimal(), {}
    for path in paths:
        if is_in_environment and "orders" not in path and "conf" not in path:
            environment["TAILERD__" + "__".join(path).upper()] = secret
        else:
            put(config, path, wrapped(secret))
    for path, value in wrong:
        put(config, path, value)
    assert SECRET not in all_that_is_said(yaml.safe_dump(config), environment)


@pytest.mark.parametrize("path", URLS, ids=".".join)
@pytest.mark.parametrize("scheme", ["s3", "s3a", "https"])
def test_a_secret_in_a_url_is_refused_and_not_said(path: tuple[str, ...], scheme: str) -> None:
    config = minimal()
    if path[0] == "discover":
        config["discover"] = {"found": {"template": {"sink": {"kind": "console"}}}}
    slash = "" if scheme == "s3" else "a/b"
    put(config, path, f"{scheme}://me:{slash}{SECRET}@lake/orders")
    reported = all_that_is_said(yaml.safe_dump(config), {})
    assert SECRET not in reported
    assert "ConfigError" in reported


@pytest.mark.parametrize("tail", ["'", "\t: x", ": [", "\n  - : :", "\x00"])
def test_a_file_that_is_no_yaml_is_not_quoted(tail: str) -> None:
    text = f'storage:\n  secret_access_key: "{SECRET}{tail}\ntables: {{'
    reported = all_that_is_said(text, {})
    assert "is not valid YAML" in reported
    assert SECRET not in reported
