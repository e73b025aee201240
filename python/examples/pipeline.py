"""A camera pipeline in three processes: frames are taken, edges are found, frames are shown.

Each frame is filled once and moves from process to process. The camera sends to whatever process
has the name "edges": kill that one (`--kill` does it) and the pipeline goes on with its successor.

    python pipeline.py            # 60 frames
    python pipeline.py --kill     # and the second process is killed half-way
"""

import os
import signal
import sys
import time

import numpy

import portolan
from portolan.multiprocessing import Process
from portolan.reconnecting import Sender

NAME = f"pipeline-python-{os.getppid() if __name__ == '__mp_main__' else os.getpid()}"
FRAMES = 60
SHAPE = (480, 640)


def take():
    """The camera: a bright square that wanders."""
    with portolan.Domain.join(NAME) as domain, Sender(domain, "edges") as edges:
        for number in range(FRAMES):
            frame = domain.array(SHAPE, numpy.uint8)
            with frame.view() as pixels:
                pixels[:] = 20
                pixels[100:200, 5 * number : 5 * number + 100] = 220
            edges.send(b"%d" % number, frame, timeout=30)
            time.sleep(0.005)
        edges.send(b"end", timeout=30)


def find_edges():
    """The filter: works in place, and passes the frame on."""
    with portolan.Domain.join(NAME) as domain, domain.bind("edges") as port:
        show = domain.connect("show", timeout=30)
        while True:
            message = port.receive()
            if message.header != b"end":
                with message.array.view() as pixels:
                    steps = numpy.abs(numpy.diff(pixels.astype(numpy.int16), axis=1))
                    pixels[:, 1:] = steps
                    pixels[:, 0] = 0
            show.send(message.header, *message.arrays)


def main():
    with portolan.Domain.join(NAME) as domain, domain.bind("show") as port:
        filters = [Process(target=find_edges, daemon=True)]
        filters[0].start()
        camera = Process(target=take, daemon=True)
        camera.start()
        shown = 0
        while (message := port.receive(60)).header != b"end":
            with message:
                shown += 1
                if shown % 20 == 1:
                    with message.array.view() as pixels:
                        print(f"frame {message.header.decode()}: edges at {numpy.flatnonzero(pixels[150]).tolist()}")
            if "--kill" in sys.argv and shown == FRAMES // 2 and len(filters) == 1:
                os.kill(filters[0].pid, signal.SIGKILL)
                print("the second process is dead; another takes its name")
                filters.append(Process(target=find_edges, daemon=True))
                filters[1].start()
        print(f"{shown} of {FRAMES} frames shown")
        camera.join()
        filters[-1].kill()


if __name__ == "__main__":
    main()
