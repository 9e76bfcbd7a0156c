"""Checks of the locations in a configuration."""

from __future__ import annotations

from tailerd.registry import is_remote


def parse_bucket(path: str, expected: str) -> str:
    """Return the bucket of a location; empty for a folder.

    Args:
        expected: What must follow the bucket, for the error; `{}` stands for the scheme.

    Raises:
        ValueError: Nothing follows, or the location is not supported.
    """
    refuse_credentials(path)
    if not is_remote(path):
        refuse_other_stores(path)
        return ""
    bucket, _, prefix = path.partition("://")[2].partition("/")
    if not bucket or not prefix.strip("/"):
        raise ValueError(f"it needs a bucket and {expected.format(path.partition(':')[0])}")
    return bucket


def refuse_other_stores(path: str) -> str:
    """Return `path` if it is a local one.

    Raises:
        ValueError: It is a URL of another store.
    """
    scheme, separator, _ = path.partition("://")
    if separator and scheme != "file":
        raise ValueError(f"{scheme}:// is not in this release; give a folder or a file:// URL")
    return path


def refuse_credentials(path: str) -> None:
    """Refuse a URL that contains credentials: locations are shown, logged and stored.

    Raises:
        ValueError: It contains credentials.
    """
    host, _, rest = path.partition("://")[2].partition("/")
    # Half of Amazon's secrets contain a slash, so the `@` may come after one.
    if path.lower().startswith(("abfs://", "abfss://")):
        # A container comes before the account.
        host = host.partition("@")[0]
    if "@" in host or (":" in host and "@" in rest):
        raise ValueError("credentials do not belong in a path; use access_key_id of `storage`")
