"""Passes one command to `fork_server`; loads next to nothing."""

import json
import os
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        request = {
            "arguments": sys.argv[2:],
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "session": False,
            "umask": os.umask(0),
        }
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        server.recv(4, socket.MSG_WAITALL)
        status = int.from_bytes(server.recv(4, socket.MSG_WAITALL) or b"\1", sys.byteorder)
        sys.exit(os.waitstatus_to_exitcode(status))
