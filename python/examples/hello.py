"""The smallest program: one process, one port, one array that moves."""

import os

import numpy

import portolan

with portolan.Domain.join(f"hello-{os.getpid()}") as domain, domain.bind("greetings") as port:
    right = domain.connect("greetings")
    array = domain.array((2, 3), numpy.float32)
    with array.view() as v:
        v[:] = numpy.arange(6).reshape(2, 3)
    right.send(b"hello", array)
    print("sent; here it is", array)

    header, array = port.receive(timeout=1)
    print(header.decode(), array.shape, array.numpy().sum())
