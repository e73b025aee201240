"""A service: an object in a process of its own, and what a client sees of it."""

import os

import numpy

import portolan
import portolan.rpc
from portolan.multiprocessing import Process


class Thermometer:
    """What the server has; its public methods are called."""

    def __init__(self):
        self.readings = []

    def add(self, degrees):
        if not -273 <= degrees < 1000:
            raise ValueError(f"it cannot have {degrees} degrees")
        self.readings.append(degrees)
        return len(self.readings)

    def smooth(self, picture):
        """An array of the domain moves here and back; numpy arrays are copied once."""
        with picture.view() as pixels:
            pixels[1:] = (pixels[1:] + pixels[:-1]) / 2
        return picture


def serve(name):
    with portolan.Domain.join(name) as domain, domain.bind("thermometer", synchronous=True) as port:
        portolan.rpc.serve(domain, port, Thermometer())


def main():
    name = f"rpc-service-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain:
        server = Process(target=serve, args=(name,), daemon=True)
        server.start()
        with portolan.rpc.Client(domain, "thermometer", timeout=60) as thermometer:
            print("client:", [thermometer.add(degrees) for degrees in (20, 21.5, 19)], "readings")
            try:
                thermometer.add(5000)
            except ValueError as why:
                print(f"client: refused, for {why}")
            picture = thermometer.smooth(domain.copy(numpy.arange(5.0)))
            print("client: smoothed,", picture.numpy().tolist())
            server.kill()
            try:
                # No call runs twice: whether this one ran, only the server knew.
                thermometer.add(22)
            except (portolan.ServerDead, portolan.DeadName) as why:
                print(f"client: not answered, for {why}")
        server.join()


if __name__ == "__main__":
    main()
