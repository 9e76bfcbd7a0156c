"""Maps failures of S3 and its client to tailerd's errors; no vendor error passes this module."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)
from botocore.parsers import ResponseParserError

from tailerd.errors import (
    AccessDeniedError,
    BucketMissingError,
    ClockSkewError,
    ConditionalPutUnsupportedError,
    CredentialsExpiredError,
    FileExistsAlreadyError,
    FileMissingError,
    StorageError,
)

VENDOR_ERRORS = (
    ClientError,
    BotoCoreError,
    ResponseParserError,
    aiohttp.ClientError,
    OSError,
    TimeoutError,
)

MISSING_CODES = frozenset({"NoSuchKey", "404", "NotFound", "NoSuchVersion", "NoSuchUpload"})
_EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
)
_WRONG_KEYS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId"}
) | {"XAdminUserNotFound"}
_GIVE_CREDENTIALS = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials"})
"""Operations of other services that the client calls to get credentials."""
_SKEWED = frozenset({"RequestTimeTooSkewed"})
BUSY_CODES = frozenset(
    {
        *("SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"),
        *("TooManyRequests", "RequestThrottled", "BandwidthLimitExceeded"),
        *("InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"),
        *("ConditionalRequestConflict", "IncompleteBody", "XMinioServerNotInitialized"),
    }
)
_RIGHTS = {
    "list": "s3:ListBucket",
    "get": "s3:GetObject",
    "put": "s3:PutObject",
    "delete": "s3:DeleteObject",
    "list uploads": "s3:ListBucketMultipartUploads",
    "abort an upload": "s3:AbortMultipartUpload",
}
"""IAM actions by operation."""
_LASTING = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
    ProfileNotFound,
    ParamValidationError,
    SSLError,
)


def read_error_code(error: Exception) -> str:
    """Return S3's error code; empty where the server did not send one."""
    return str(_answer(error).get("Code", ""))


def read_status(error: Exception) -> int:
    """Return the HTTP status of an error's response; 0 without a response."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _answer(error: Exception) -> Mapping[str, object]:
    return error.response.get("Error", {}) if isinstance(error, ClientError) else {}


def may_pass(error: Exception) -> bool:
    """Return whether the error is transient: the same request may succeed if repeated."""
    if isinstance(error, ClientError):
        status = read_status(error)
        return (
            read_error_code(error) in BUSY_CODES
            or status == 429
            or (status >= 500 and status != 501)
        )
    return not isinstance(error, _LASTING)


def has_expired(error: Exception) -> bool:
    """Return whether new credentials would help."""
    return read_error_code(error) in _EXPIRED or are_stale(error)


def are_stale(error: Exception) -> bool:
    """Return whether the credential provider returned expired credentials."""
    return isinstance(error, RuntimeError) and "credentials are still expired" in str(error)


def is_beyond_the_end(error: Exception) -> bool:
    """Return whether the requested range starts after the end of an existing file."""
    return read_error_code(error) == "InvalidRange" or read_status(error) == 416


def is_unknown_operation(error: Exception) -> bool:
    """Return whether the server does not implement such a request."""
    return (
        read_error_code(error) in ("NotImplemented", "MethodNotAllowed")
        or read_status(error) == 501
    )


def is_refused_condition(error: Exception) -> bool:
    """Return whether the request's condition failed."""
    return read_status(error) == 412 or read_error_code(error) == "PreconditionFailed"


def map_failure(error: Exception, doing: str, path: str, *, attempts: int = 1) -> StorageError:
    """Return the storage error for a failed request.

    Args:
        doing: The operation, as in `Request`.
        path: `bucket/key`.
    """
    location = f"s3://{path}"
    code, status = read_error_code(error), read_status(error)
    if is_about_credentials(error):
        return _not_given(location, error)
    if code == "NoSuchBucket":
        bucket = path.partition("/")[0]
        return BucketMissingError(
            f"The bucket {bucket} does not exist, so {location} cannot be read or written.",
            remedy="Check its name, endpoint and region.",
        )
    if code in MISSING_CODES:
        return FileMissingError(f"{location} does not exist.")
    if is_refused_condition(error):
        return FileExistsAlreadyError(f"{location} exists already.")
    if code in _EXPIRED:
        return CredentialsExpiredError(
            f"{doing} of {location} is refused: the credentials have expired ({code}).",
            remedy="Renew them at their source; they are read again at every attempt.",
        )
    if code in _SKEWED:
        return ClockSkewError(
            f"{doing} of {location} is refused: this machine's clock and the server's differ.",
            remedy="Set this machine's clock, for instance with NTP.",
        )
    if code == "NotImplemented" or status == 501:
        return ConditionalPutUnsupportedError(
            f"The server of {location} does not support this request: {_clean_text(error)}.",
            remedy="Use a server with conditional writes; tables can be read without them.",
        )
    if code in _WRONG_KEYS or status in (401, 403):
        return _denial_error(doing, location, code, error)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | ProfileNotFound):
        return _without_credentials(location, error)
    return _failure_error(doing, location, error, attempts)


def _failure_error(doing: str, location: str, error: Exception, attempts: int) -> StorageError:
    if isinstance(error, SSLError | ssl.SSLError):
        return StorageError(
            f"{doing} of {location} failed, because no TLS connection could be established:"
            f" {_clean_text(error)}.",
            remedy="Set AWS_CA_BUNDLE, or ca_bundle in the profile, to the file with the server's"
            " CA certificate, and check the endpoint's name and port.",
        )
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    return StorageError(f"{doing} of {location} failed{tried}: {_clean_text(error)}.")


def is_about_credentials(error: Exception) -> bool:
    """Return whether the request was not sent because there were no credentials."""
    if isinstance(error, ClientError):
        return error.operation_name in _GIVE_CREDENTIALS
    return are_stale(error) or isinstance(
        error, CredentialRetrievalError | TokenRetrievalError | UnauthorizedSSOTokenError
    )


def _not_given(location: str, error: Exception) -> StorageError:
    remedy = "Renew them at their source; they are read again at every attempt."
    if isinstance(error, ClientError):
        reported = f"{error.operation_name} is refused: {_clean_text(error) or read_status(error)}"
        is_denial = read_status(error) in (401, 403) and read_error_code(error) not in _EXPIRED
    else:
        reported, is_denial = str(error).rstrip(".: "), False
    about = f"There are no credentials for {location}: {reported}."
    if is_denial:
        return AccessDeniedError(about, remedy="Check the role, its trust policy and the token.")
    if are_stale(error) or read_error_code(error) in _EXPIRED:
        return CredentialsExpiredError(about, remedy=remedy)
    return StorageError(about, remedy=remedy)


def _denial_error(doing: str, location: str, code: str, error: Exception) -> AccessDeniedError:
    if code in _WRONG_KEYS:
        return AccessDeniedError(
            f"{doing} of {location} is refused: the server does not accept the credentials"
            f" ({code}).",
            remedy="Check access key, secret and session token, and that they belong to this"
            " endpoint.",
        )
    also = (
        " Without s3:ListBucket, S3 returns the same error for missing files."
        if doing == "get"
        else ""
    )
    return AccessDeniedError(
        f"{doing} of {location} is refused ({code or read_status(error)}).",
        remedy=f"Give the user or role the right {_RIGHTS[doing]} for it.{also}",
    )


def _without_credentials(location: str, error: Exception) -> AccessDeniedError:
    return AccessDeniedError(
        f"There are no credentials for {location}: {_clean_text(error)}.",
        remedy="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or `storage` in the"
        " configuration; AWS_SKIP_SIGNATURE=true reads public buckets.",
    )


def _clean_text(error: Exception) -> str:
    """Return the error on one line, without parts of a signed request that a server may quote."""
    if isinstance(error, ClientError):
        code, message = read_error_code(error), str(_answer(error).get("Message", ""))
        return f"{code} ({message.strip().rstrip('.')[:300]})" if message else code
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return text[:300]
