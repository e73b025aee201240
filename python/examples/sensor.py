"""A sensor's samples, in another user's memory: automatic update.

The reader exports a buffer that one other user may write. The sensor, a process of that user, maps memory
of its own to it; whatever it stores there is in the reader's memory too, in the order of the program, and
the reader's processor does nothing for it. As root the sensor is of another user, else of the same one.
"""

import math
import os
import struct
import time

import portolan
from portolan.multiprocessing import Process

#: Where the sensor counts its samples, and where they begin; eight bytes each.
COUNT, FIRST, SAMPLES = 0, 64, 1000
#: The sensor's user, where the reader may choose it.
SENSOR = 1042


def measured(number):
    """What there is to measure."""
    return math.sin(number / 50)


def read():
    name = f"sensor-python-{os.getpid()}"
    us = os.getuid()
    them = SENSOR if us == 0 else us
    buffer = portolan.ExportMemory(FIRST + 8 * SAMPLES)
    with portolan.Domain.join(name) as domain, domain.export(buffer, "samples", "write", users=[them]):
        sensor = Process(target=sense, args=(name, us, them))
        sensor.start()
        seen = 0
        while seen < SAMPLES:
            # What was stored before the count is there when the count is.
            count = buffer.load_acquire(COUNT)
            for number, (sample,) in enumerate(struct.iter_unpack("=d", buffer.read(FIRST + 8 * seen, 8 * (count - seen))), seen):
                assert sample == measured(number)
            seen = count
            time.sleep(0)
        sensor.join()
        print(f"reader: saw {SAMPLES} samples, each before it was counted")


def sense(name, reader, user):
    if os.getuid() != user:
        os.setgid(user)
        os.setuid(user)
    with portolan.Domain.import_from(name, "samples", of_user=reader, timeout=60) as samples:
        local = portolan.ExportMemory(len(samples))
        with samples.map_log(local) as buffer:
            for number in range(SAMPLES):
                buffer.store(FIRST + 8 * number, struct.pack("=d", measured(number)))
                buffer.store(COUNT, struct.pack("=Q", number + 1))
            buffer.unmap()
        (last,) = struct.unpack("=d", local.read(FIRST + 8 * (SAMPLES - 1), 8))
        print(f"sensor: the last of {SAMPLES} samples was {last:.3f}")


if __name__ == "__main__":
    read()
