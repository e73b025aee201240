"""Publishes pictures on a topic: each has its own size, and all viewers read a long one in one place.

Two viewers look at every picture and let go of it. A third one keeps what it gets, and is killed: the
camera does not notice, and the memory comes back.
"""

import os

import numpy

import portolan
from portolan.multiprocessing import Process

#: Who saw how many pixels, and where.
SEEN = numpy.dtype([("who", "<u8"), ("pixels", "<u8"), ("at", "<u8")])
VIEWERS = (1, 2, 3)


def draw():
    name = f"pictures-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain:
        pictures = domain.publisher("pictures", numpy.uint8, history=8)
        seen = domain.subscriber("seen", SEEN, history=8)
        viewers = [Process(target=view, args=(name, who)) for who in VIEWERS]
        for viewer in viewers:
            viewer.start()
            # It has subscribed.
            seen.receive(timeout=60)

        for width in (4, 64, 1024):
            picture = numpy.full((width, width, 4), 7, numpy.uint8)
            pictures.publish(picture)
            views = [seen.receive(timeout=60).numpy().copy() for _ in VIEWERS]
            assert all(view["pixels"] == width * width for view in views)
            # A short one is copied to each.
            places = len({int(view["at"]) for view in views}) if picture.nbytes > 4096 else len(VIEWERS)
            print(f"{width} x {width}: the three look at it in {places} place{'s' * (places > 1)}")

        viewers[2].kill()
        viewers[2].join()
        for _ in range(1000):
            pictures.publish(numpy.zeros((256, 256, 4), numpy.uint8))
        print("a viewer died with pictures in its hands, and 1000 more were published")
        # An empty one says that there will be no more.
        pictures.publish(numpy.zeros((0, 0, 4), numpy.uint8))
        for viewer in viewers[:2]:
            viewer.join()


def view(name, who):
    with portolan.Domain.join(name) as domain:
        pictures = domain.subscriber("pictures", numpy.uint8, history=8)
        seen = domain.publisher("seen", SEEN, history=8)
        seen.publish(numpy.array((who, 0, 0), SEEN))
        kept = []
        while (picture := pictures.receive(timeout=60)).numpy().size:
            pixels = picture.numpy()
            seen.publish(numpy.array((who, pixels.size // 4, pixels.ctypes.data), SEEN))
            if who == 3:
                kept.append(picture)
        print(f"viewer {who}: no more pictures")


if __name__ == "__main__":
    draw()
