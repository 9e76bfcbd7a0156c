"""Has `fork_server` run a module as Python would; loads next to nothing.

fork_client.py SOCKET -m MODULE ARGUMENT...
"""

import json
import os
import socket
import sys

if __name__ == "__main__":
    place, _, module, *words = sys.argv[1:]
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        request = {
            "module": module,
            "is_of_spark": True,
            "arguments": words,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "session": False,
            "umask": os.umask(0),
        }
        socket.send_fds(server, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        server.recv(4, socket.MSG_WAITALL)
        status = int.from_bytes(server.recv(4, socket.MSG_WAITALL) or b"\1", sys.byteorder)
        sys.exit(os.waitstatus_to_exitcode(status))
