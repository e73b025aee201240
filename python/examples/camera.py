"""Camera: sends a picture ten times a second, until Ctrl-C, to the viewer that there is.

Run it in one terminal, and `viewer` in another, in any order. Kill the viewer, and start it again. An
argument names another domain than `tutorial`. The programs of these names in Rust do the same, in the
same domain.
"""

import itertools
import os
import sys
import time

import numpy

import portolan
from portolan.reconnecting import Sender

#: Bytes of a picture.
PICTURE = 1920 * 1080 * 3


def main():
    name = (sys.argv[1:] or ["tutorial"])[0]
    with portolan.Domain.join(name) as domain, Sender(domain, "pictures") as viewer:
        print(f"camera: process {os.getpid()}", flush=True)
        for number in itertools.count(1):
            # Memory that every process of the domain has at this address.
            picture = domain.array(PICTURE, numpy.uint8)
            with picture.view() as pixels:
                pixels[:] = number % 256
            try:
                # It waits for a viewer, and for room in that one's queue.
                sent = viewer.send(number.to_bytes(8, "little"), picture, timeout=1)
                if sent.lost:
                    print(
                        f"camera: a viewer has gone; it had not received {sent.lost.at_most}"
                        f" of {sent.lost.sent} pictures at most",
                        flush=True,
                    )
                if number % 10 == 1:
                    print(f"camera: viewer {sent.receiver} has picture {number}", flush=True)
            except portolan.NoSuchPort:
                # The picture is still ours.
                picture.close()
                print(f"camera: no viewer for picture {number}", flush=True)
            except portolan.Full as why:
                picture.close()
                print(f"camera: the viewer has {why.slots} pictures, and takes none", flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
