"""Address-valued signals: a shared table says which of its rows has changed.

No message is sent. The other process changes a row and signals its address; the handler is given the
same address here, and looks.
"""

import os

import numpy

import portolan
from portolan.multiprocessing import Process

ROW, ROWS = 64, 64


def words(table):
    """A row a line, its first word in column 0."""
    return numpy.asarray(table).view(numpy.uint64).reshape(ROWS, -1)


def write(name):
    with portolan.Domain.join(name) as domain:
        table = domain.find_segment("table", timeout=60)
        for row, value in [(3, 30), (41, 410), (7, 70)]:
            # What is written before the signal is there when the handler looks.
            words(table)[row, 0] = value
            reached = domain.signal(table.address + row * ROW)
            assert reached == 1


def watch():
    name = f"address-signal-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain, domain.listen() as listener:
        table = domain.make_segment("table", ROW * ROWS)

        def changed(address):
            row = (address - table.address) // ROW
            print(f"watcher: row {row} is {words(table)[row, 0]} now")

        listener.on(table.addresses, changed)
        writer = Process(target=write, args=(name,))
        writer.start()
        for _ in range(3):
            listener.wait(timeout=60)
        writer.join()
        print(f"watcher: {listener.dropped} signals were dropped")


if __name__ == "__main__":
    watch()
