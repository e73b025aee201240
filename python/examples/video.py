"""A picture stream: one camera, two viewers of different speed, none of which holds the others up.

The channel is message-consistent: the camera writes each frame once and waits for nobody. A viewer
that is too slow loses frames, knows which, and never sees half of one.
"""

import os
import time

import numpy

import portolan
from portolan.multiprocessing import Process

FRAMES, FRAME, UNIT = 200, 40_000, 4096
#: A unit has 16 bytes of head.
UNITS = -(-FRAME // (UNIT - 16))


def film():
    name = f"video-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain:
        # Ten units hold a frame, and the ring holds six frames.
        camera = domain.make_channel("camera", unit=UNIT, units=64)
        ready = domain.make_channel("ready", many_writers=True).bind_reader()
        viewers = [Process(target=view, args=(name, who)) for who in ("fast", "slow")]
        for viewer in viewers:
            viewer.start()
        for _ in viewers:
            ready.receive(timeout=60)
        with camera.bind_writer() as writer:
            for number in range(FRAMES):
                writer.write(bytes([number]) * FRAME)
                time.sleep(0.001)
        for viewer in viewers:
            viewer.join()


def view(name, who):
    with portolan.Domain.join(name) as domain:
        reader = domain.find_channel("camera", timeout=30).bind_reader()
        domain.find_channel("ready", timeout=30).bind_writer().write(b"ready", timeout=30)
        seen = missed = 0
        while True:
            try:
                frame = numpy.frombuffer(reader.receive(timeout=30).data, numpy.uint8)
            except portolan.Missed as units:
                missed += units.stop - units.start
                continue
            except portolan.WriterGone:
                break
            assert (frame == frame[0]).all(), "a torn frame"
            seen += 1
            if who == "slow":
                time.sleep(0.02)
        assert missed % UNITS == 0, "frames are missed whole"
        print(f"{who}: of {seen + missed // UNITS} frames each was seen whole, or is known to be missed")
        if who == "slow" and missed:
            print("slow: some were missed")


if __name__ == "__main__":
    film()
