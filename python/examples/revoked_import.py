"""A revoked import: a process lends its memory to another one, and takes it back.

The importer is no member of the domain, and could be another user's process, had the exporter named that
user.
"""

import itertools
import os
import time

import portolan
from portolan.multiprocessing import Process

#: Where the importer counts what it has written, and where it writes.
COUNT, DATA = 0, 4096


def lend():
    name = f"revoked-import-python-{os.getpid()}"
    memory = portolan.ExportMemory(1 << 20)
    with portolan.Domain.join(name) as domain:
        # Processes of this user may read and write it, whether they are in the domain or not.
        export = domain.export(memory, "workspace", "read_write")
        importer = Process(target=use, args=(name,))
        importer.start()
        # The importer writes when it likes; nothing wakes us, so we look.
        while memory.load_acquire(COUNT) < 1000:
            time.sleep(0)

        # It goes on writing all the time, and is not waited for. From here on it cannot.
        export.unexport()
        count = memory.load_acquire(COUNT)
        importer.join()
        # The same memory, with what was there.
        assert memory.load_acquire(COUNT) == count
        last = int.from_bytes(memory.read(DATA, 8), "little")
        print("exporter: has its memory back, with what was written last in it")
        # What was said to have landed has; the data of the next one may be there already.
        assert last in (count, count + 1)


def use(name):
    with portolan.Domain.import_from(name, "workspace", timeout=60) as workspace:
        try:
            for number in itertools.count(1):
                # First the data, then the count that announces them.
                workspace.write(DATA, number.to_bytes(8, "little"))
                workspace.store_release(COUNT, number)
        except portolan.Revoked:
            print("importer: was told that the export has ended")


if __name__ == "__main__":
    lend()
