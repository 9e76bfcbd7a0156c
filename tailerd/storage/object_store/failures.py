"""Maps errors of obstore to tailerd's. Its texts are not shown: they have URLs with signatures."""

from __future__ import annotations

import re

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from tailerd.errors import (
    AccessDeniedError,
    BucketMissingError,
    ClockSkewError,
    CredentialsExpiredError,
    FileExistsAlreadyError,
    FileMissingError,
    StorageError,
)

ERRORS = (BaseError, FileNotFoundError, OSError, ValueError)
"""What obstore raises."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<\n]*)")
_NO_CONTAINER = frozenset({"ContainerNotFound", "ContainerBeingDeleted", "NoSuchBucket"})
_REFRESH_SECONDS = 1.0
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_EXPIRED = frozenset({"ExpiredToken", "AuthenticationFailed", "InvalidAuthenticationInfo"})
_HOW: dict[str, str] = {
    "azure": "Check the account, its key or token, and the role Storage Blob Data Reader (to write:"
    " Contributor).",
    "google": "Check the service account, and its role Storage Object Viewer (to write: Object"
    " Admin).",
}
_SIGN_IN: dict[str, str] = {
    "azure": "Set storage.azure, or AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or"
    " AZURE_STORAGE_SAS_TOKEN; or run where there is a managed or workload identity.",
    "google": "Set storage.google.service_account_file or GOOGLE_APPLICATION_CREDENTIALS, or run"
    " `gcloud auth application-default login`.",
}

_SETTINGS: dict[str, str] = {
    "Account must be specified": "no storage account is named",
    "Invalid Access Key": "the account key is not base64",
    "in SAS query pair": "the shared access signature is not a list of name=value",
    "Unable to open service account file": "the file of the service account cannot be opened",
    "Unable to decode service account file": "the file of the service account is not its JSON key",
    "parse source url": "the account or the endpoint is not part of a URL",
}
"""Part of obstore's text about settings -> their fault."""


def map_settings(error: Exception, location: str, cloud: str) -> StorageError:
    """Return the storage error for settings with which no client can be made."""
    text = str(error)
    about = next((found for part, found in _SETTINGS.items() if part in text), "they are not valid")
    return AccessDeniedError(
        f"{location} cannot be accessed with these settings: {about}.", remedy=_SIGN_IN[cloud]
    )


def read_status(error: Exception) -> int:
    """Return the HTTP status that an error reports; 0 for none."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0


def may_pass(error: Exception) -> bool:
    """Return whether the request may succeed if it is sent again."""
    status = read_status(error)
    # The classes are of answers; without one, the connection or a body broke.
    return status in _PASSING or (status == 0 and type(error) in (GenericError, OSError))


def is_refused_token(error: Exception, age_seconds: float) -> bool:
    """Return whether newer credentials than those of that age may be accepted."""
    status = read_status(error)
    return status == 401 or (status == 403 and age_seconds > _REFRESH_SECONDS)


def is_beyond_the_end(error: Exception) -> bool:
    """Return whether the requested range starts after the end of an existing file."""
    return read_status(error) == 416


def map_failure(
    error: Exception, doing: str, location: str, cloud: str, *, attempts: int = 1
) -> StorageError:
    """Return the storage error for a failed request.

    Args:
        doing: The operation: list, get, put or delete.
        location: URL of the file or folder.
        cloud: `azure` or `google`.
        attempts: Number of times that the request was sent.
    """
    text = str(error)
    code = found[1] if (found := _CODE.search(text)) else ""
    if code in _NO_CONTAINER:
        return BucketMissingError(
            f"The container or bucket of {location} does not exist.",
            remedy="Check its name and the account.",
        )
    if isinstance(error, NotFoundError | FileNotFoundError):
        return FileMissingError(f"{location} does not exist.")
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return FileExistsAlreadyError(f"{location} exists already.")
    status = read_status(error)
    if code == "RequestTimeTooSkewed" or "time" in code.lower():
        return ClockSkewError(
            f"{doing} of {location} is refused: this machine's clock and the server's differ.",
            remedy="Set this machine's clock, for instance with NTP.",
        )
    if code in _EXPIRED and "expired" in text.lower():
        return CredentialsExpiredError(
            f"{doing} of {location} is refused: the credentials have expired.",
            remedy="Renew them at their source; they are read again at every attempt.",
        )
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        return AccessDeniedError(
            f"{doing} of {location} is refused ({code or status or 'no credentials'}).",
            remedy=_HOW[cloud] if status else _SIGN_IN[cloud],
        )
    tried = f" after {attempts} attempts" if attempts > 1 else ""
    about = _describe(text, code, status)
    return StorageError(f"{doing} of {location} failed{tried}: {about}.")


def _describe(text: str, code: str, status: int) -> str:
    message = found[1].strip().rstrip(".") if (found := _MESSAGE.search(text)) else ""
    if status:
        about = f"{code} ({message})" if code and message else code
        return f"the server answered {status} {about}".rstrip()
    # Without an answer, obstore names the request and the cause, in lines of their own.
    causes = ("timed out", "Connection refused", "dns error", "connection closed", "certificate")
    return next((each for each in causes if each.lower() in text.lower()), "there was no answer")
