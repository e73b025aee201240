"""Viewer: receives the pictures of `camera`, until Ctrl-C.

See `camera`.
"""

import os
import sys

import portolan


def main():
    name = (sys.argv[1:] or ["tutorial"])[0]
    with portolan.Domain.join(name) as domain:
        print(f"viewer: process {os.getpid()}", flush=True)
        # A viewer that was killed just now has the name for another moment.
        with domain.bind("pictures", queue=8, timeout=5) as port:
            while True:
                with port.receive() as message:
                    number = int.from_bytes(message.header, "little")
                    # The pages that the camera filled, at the same address. They are ours.
                    with message.array.view() as picture:
                        before = int(picture[0])
                        picture[0] = 255 - before
                    if number % 10 == 1:
                        size, address = message.array.nbytes, message.array.address
                        print(f"viewer: picture {number}, {size} bytes of {before} at {address:#x}", flush=True)
                # Here the message is closed: its memory goes back to the camera.


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
