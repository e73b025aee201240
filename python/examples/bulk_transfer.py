"""A bulk transfer: a process writes blocks straight into the memory of another one, which sleeps until
it is notified of each.

Nothing is sent or received: a block is written to where it is wanted, and what goes behind it is a note
of where it lies. The writer is no member of the domain, and could be another user's process.
"""

import os
import time

import numpy

import portolan
from portolan.multiprocessing import Process

#: Where the receiver counts the blocks that it is done with.
DONE = 0
#: Where the blocks lie: two of them, so that one is written while the other one is read.
BLOCKS, BLOCK, COUNT = 4096, 1 << 20, 16


def receive():
    name = f"bulk-transfer-python-{os.getpid()}"
    memory = portolan.ExportMemory(BLOCKS + 2 * BLOCK)
    with portolan.Domain.join(name) as domain, domain.export(memory, "blocks", "read_write") as export:
        notifications = export.notifications()
        sender = Process(target=send, args=(name,))
        sender.start()
        total = transferred = 0
        for number in range(1, COUNT + 1):
            # What was written is there when its note is.
            note = notifications.wait(timeout=60)
            assert not note.several, "a sender that waits for us never has more than two notes"
            # The note is the sender's word: what does not lie within the memory is an error.
            block = numpy.frombuffer(memory.read(note.offset, note.len), numpy.uint8)
            total += int(block.sum(dtype=numpy.uint64))
            transferred += note.len
            memory.store_release(DONE, number)
        sender.join()
        print(f"receiver: {transferred} bytes, which add up to {total}")


def send(name):
    with portolan.Domain.import_from(name, "blocks", timeout=60) as blocks:
        total = 0
        for number in range(COUNT):
            block = ((numpy.arange(BLOCK) * 7 + number) % 256).astype(numpy.uint8)
            total += int(block.sum(dtype=numpy.uint64))
            # Not before the block that was there has been read.
            while blocks.load_acquire(DONE) + 2 <= number:
                time.sleep(0)
            blocks.write_notifying(BLOCKS + number % 2 * BLOCK, block)
        print(f"sender: {COUNT} blocks, which add up to {total}")


if __name__ == "__main__":
    receive()
