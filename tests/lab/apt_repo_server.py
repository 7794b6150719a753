# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve a folder over HTTP on the given addresses, until ended; can break transfers on purpose.

usage: apt_repo_server.py FOLDER PORT ADDRESS [ADDRESS …] [--cut PATTERN --cut-after BYTES]
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import http.server
import sys
import threading
from typing import BinaryIO


class Handler(http.server.SimpleHTTPRequestHandler):
    """Plain files; a file that matches `cut` ends with a closed connection."""

    protocol_version = "HTTP/1.1"
    cut = ""
    cut_after = 0

    def copyfile(self, source: BinaryIO, outputfile: BinaryIO) -> None:  # type: ignore[override]
        if self.cut and fnmatch.fnmatchcase(self.path.rpartition("/")[2], self.cut):
            outputfile.write(source.read(self.cut_after))
            self.close_connection = True
            return
        super().copyfile(source, outputfile)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("port", type=int)
    parser.add_argument("addresses", nargs="+")
    parser.add_argument("--cut", default="")
    parser.add_argument("--cut-after", type=int, default=1024)
    options = parser.parse_args()
    Handler.cut, Handler.cut_after = options.cut, options.cut_after
    handler = functools.partial(Handler, directory=options.folder)
    threads = []
    for address in options.addresses:
        server = http.server.ThreadingHTTPServer((address, options.port), handler)
        server.daemon_threads = True
        threads.append(threading.Thread(target=server.serve_forever))
        threads[-1].start()
    print("serving", flush=True)
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
