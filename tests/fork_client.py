"""Passes one command to `fork_server`; loads next to nothing."""

import json
import socket
import sys

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [json.dumps(sys.argv[2:]).encode()], [1, 2])
        sys.exit(int(server.recv(16) or b"1"))
