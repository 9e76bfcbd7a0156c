"""Our signature is the vendor's."""

from __future__ import annotations

import calendar
import time

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tailerd.storage.s3.signing import Keys, Signer, parse_scope, quote_key

KEYS = ["a", "t/_delta_log/00000000000000000001.json", "ä ö/50%/a+b=c&d~.parquet", "x//y/ z'()*"]


@pytest.mark.parametrize("token", ["", "FQoGZXIvYXdzE/+=="])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(
    "extra", [{}, {"range": "bytes=5-9"}, {"range": "bytes=-7", "if-match": '"abc-2"'}]
)
def test_a_get_is_signed_as_the_vendors_signer_does(
    key: str, token: str, extra: dict[str, str]
) -> None:
    path = "/bucket/" + quote_key(key)
    theirs = AWSRequest("GET", f"https://s3.example:8443{path}", headers=dict(extra))
    S3SigV4Auth(Credentials("AKID", "secret", token or None), "s3", "eu-central-1").add_auth(theirs)
    at = calendar.timegm(time.strptime(theirs.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ"))
    keys = Keys(access="AKID", secret="secret", token=token)
    signer = Signer("eu-central-1")
    for _ in range(2):
        ours = signer.sign(path, {"host": "s3.example:8443", **extra}, keys, at)
        assert ours["authorization"] == theirs.headers["Authorization"]
        assert ours.get("x-amz-security-token", "") == token


def test_the_days_key_changes_with_the_day_and_with_the_secret() -> None:
    signer = Signer("r")
    first, other = (Keys(access="A", secret=secret) for secret in ("one", "two"))
    requested = ("/b/k", {"host": "h"})
    day = 86_400
    found = {
        signer.sign(*requested, keys, at)["authorization"]
        for keys, at in [(first, day), (first, 2 * day), (other, 2 * day), (first, day)]
    }
    assert len(found) == 3


def test_a_signatures_scope_is_read_back_and_other_kinds_are_not() -> None:
    sign = Signer("r-1").sign("/b/k", {"host": "h"}, Keys(access="A/B", secret="s"))
    assert parse_scope(sign["authorization"]) == ("A/B", "r-1", "s3")
    assert parse_scope("AWS4-ECDSA-P256-SHA256 Credential=A/20260101/s3/aws4_request, x=y") is None
    assert parse_scope("AWS A:signature") is None
    assert parse_scope("") is None
