"""An epoll loop: ports, each with its descriptor, beside whatever else a program waits for.

Rust and C have any number of ports behind the one descriptor of a wait set. In Python each port has
its own; asyncio uses the same (see `one_wait`).
"""

import os
import select

import portolan
from portolan.multiprocessing import Process

COLOURS = {"red": "an apple", "green": "a leaf", "blue": "the sky"}


def watch():
    name = f"wait-set-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain, select.epoll() as epoll:
        ports = {}
        for colour in COLOURS:
            port = domain.bind(colour)
            ports[port.fileno()] = port
            epoll.register(port.fileno(), select.EPOLLIN)
        painter = Process(target=paint, args=(name,))
        painter.start()
        # What else the loop waits for: here, that the painter ends.
        epoll.register(painter.sentinel, select.EPOLLIN)
        painting = True
        while painting:
            events = [fd for fd, _ in epoll.poll()]
            painting = painter.sentinel not in events
            # Readable: look, without waiting. Also before the end, for what came just now.
            for port in ports.values():
                serve(port)
        painter.join()
        print("the painter has gone")


def serve(port):
    """Receives what there is. After `TimedOut` the descriptor tells of the next message."""
    try:
        while True:
            print(f"{port.name}: {port.receive(timeout=0).header.decode()}")
    except portolan.TimedOut:
        pass


def paint(name):
    with portolan.Domain.join(name) as domain:
        for colour, thing in COLOURS.items():
            domain.connect(colour, timeout=30).send(thing.encode())


if __name__ == "__main__":
    watch()
