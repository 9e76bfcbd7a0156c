"""`tailerd` for programs that name local tables: the same tables are in a bucket.

python -m tests.s3.in_bucket LOCAL-FOLDER s3://BUCKET/PREFIX COMMAND [ARGUMENTS]
"""

from __future__ import annotations

import sys

from tailerd.cli import main

if __name__ == "__main__":
    local, remote = sys.argv[1:3]
    sys.argv = ["tailerd", *(word.replace(local, remote) for word in sys.argv[3:])]
    main()
