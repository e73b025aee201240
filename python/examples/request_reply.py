"""A process that answers requests: the array of a request is changed in place and sent back."""

import os

import numpy

import portolan
from portolan.multiprocessing import Process


def serve(name):
    with portolan.Domain.join(name) as domain, domain.bind("brighten", synchronous=True) as port:
        while True:
            with port.get_request() as request:
                if request.header == b"stop":
                    request.reply()
                    return
                (picture,) = request.arrays
                with picture.view() as v:
                    v += 10
                request.reply(b"brighter", picture)


if __name__ == "__main__":
    name = f"request-reply-{os.getpid()}"
    with portolan.Domain.join(name) as domain:
        server = Process(target=serve, args=(name,))
        server.start()
        right = domain.connect("brighten", timeout=30)
        picture = domain.copy(numpy.zeros((1080, 1920, 3), numpy.uint8))
        for _ in range(5):
            _, picture = right.request_reply(b"", picture, timeout=30)
        print("five times over and back, never copied:", picture.numpy()[0, 0])
        right.request_reply(b"stop", timeout=30)
        server.join()
