"""A file server in a process of its own, and a process between it and its client.

    client -- request --> manager -- request --> file server
           <-- blocks ---         <-- blocks ---

The blocks are read from the file into pages that go all the way to the client: no process copies them,
and the manager, which counts and does not look, leaves them unopened. Give it a file, or none.
"""

import os
import sys
import tempfile

import numpy

import portolan
from portolan.multiprocessing import Process

#: Bytes of a block.
BLOCK = 64 << 10


def join(name):
    """In a guarded domain the MMU sees to it that a page is touched by the process that has it only."""
    return portolan.Domain.join(name, protection="guarded")


def serve(name, path):
    """The file server: a request's header is a block's number; its answer holds the block."""
    with join(name) as domain, open(path, "rb") as file, domain.bind("files", synchronous=True) as port:
        while True:
            with port.get_request() as request:
                number = int.from_bytes(request.header, "little")
                block = domain.array(BLOCK, numpy.uint8)
                length = 0
                with memoryview(block) as room:
                    while length < BLOCK and (read := os.preadv(file.fileno(), [room[length:]], number * BLOCK + length)):
                        length += read
                # The answer's header says how much of the block is the file's.
                request.reply(length.to_bytes(8, "little"), *([block] if length else []))


def manage(name):
    """The one between: it may grant, log, or count, without looking at what it passes on."""
    blocks = 0
    with join(name) as domain, domain.connect("files", timeout=30) as files:
        with domain.bind("manager", synchronous=True) as port:
            while True:
                with port.get_request() as request:
                    answer = files.request_reply(request.header, timeout=30)
                    arrays = answer.arrays
                    request.reply(answer.header, *arrays)
                blocks += len(arrays)
                if not arrays:
                    print(f"manager: passed {blocks} blocks on, unopened")
                    return


def read(path):
    """The client: asks for one block after the other, and looks at them."""
    name = f"file-server-python-{os.getpid()}"
    with join(name) as domain:
        server = Process(target=serve, args=(name, path), daemon=True)
        manager = Process(target=manage, args=(name,))
        server.start()
        manager.start()
        total = length = 0
        with domain.connect("manager", timeout=60) as right:
            for number in range(1 << 63):
                answer = right.request_reply(number.to_bytes(8, "little"), timeout=30)
                if not (read := int.from_bytes(answer.header, "little")):
                    break
                with answer.array.view() as block:
                    total += int(block[:read].sum(dtype=numpy.uint64))
                length += read
        manager.join()
        # It would serve others.
        server.kill()
        server.join()
        print(f"client: {length} bytes, which add up to {total}")


def main():
    if sys.argv[1:]:
        return read(sys.argv[1])
    with tempfile.NamedTemporaryFile() as file:
        # Two blocks and a bit.
        file.write(bytes(n % 256 for n in range(150_000)))
        file.flush()
        read(file.name)


if __name__ == "__main__":
    main()
