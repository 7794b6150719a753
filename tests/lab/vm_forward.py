# SPDX-License-Identifier: GPL-3.0-or-later
"""Join standard input and output with a port of this machine: qemu runs it for each connection.

usage: vm_forward.py PORT
"""

from __future__ import annotations

import os
import select
import socket
import sys


def main(port: int) -> int:
    try:
        link = socket.create_connection(("127.0.0.1", port), timeout=5)
    except OSError:
        # Nobody serves: the connection ends, as it does when a real server went away.
        return 1
    link.settimeout(None)
    while True:
        ready, _, _ = select.select([0, link.fileno()], [], [])
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return 0
            link.sendall(data)
        if link.fileno() in ready:
            data = link.recv(65536)
            if not data:
                return 0
            while data:
                data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
