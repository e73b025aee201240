"""Publish and subscribe: samples of a structured type, for all who want them."""

import os

import numpy

import portolan
from portolan.multiprocessing import Process

POSE = numpy.dtype([("id", "<u4"), ("at", "<f8", (3,))])


def publish(name):
    with portolan.Domain.join(name) as domain, domain.publisher("poses", POSE, history=10) as poses:
        done = domain.connect("done", timeout=30)
        for number in range(5):
            poses.publish((number, (number * 0.5, 0, 1)))
        done.request_reply(timeout=30)


if __name__ == "__main__":
    name = f"topic-{os.getpid()}"
    with portolan.Domain.join(name) as domain, domain.bind("done", synchronous=True) as done:
        poses = domain.subscriber("poses", POSE, history=10)
        publisher = Process(target=publish, args=(name,))
        publisher.start()
        for _ in range(5):
            pose = poses.receive(timeout=30).numpy()
            print(f"{pose['id']} is at {pose['at'].tolist()}")
        done.get_request(30).reply()
        publisher.join()
