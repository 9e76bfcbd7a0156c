"""moto's server, with writes in sequence: it looks whether a key exists, and creates it later.

S3 decides both at once, and racing writers depend on that.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_LOCK = threading.Lock()


def _in_sequence(handle: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(handle)
    def locked(*given: Any, **named: Any) -> Any:
        with _LOCK:
            return handle(*given, **named)

    return locked


for name in ("put_object", "_key_response_post"):
    setattr(S3Response, name, _in_sequence(getattr(S3Response, name)))

if __name__ == "__main__":
    main()
