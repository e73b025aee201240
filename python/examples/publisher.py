"""Publisher: publishes a reading ten times a second, until Ctrl-C, to all subscribers there are.

Run it in one terminal, and `subscriber` in any number of others. An argument names another domain than
`tutorial`.
"""

import itertools
import os
import sys
import time

import numpy

import portolan

#: What is published. A subscriber of another type gets an error.
READING = numpy.dtype([("number", "<u8"), ("degrees", "<f8")])


def main():
    name = (sys.argv[1:] or ["tutorial"])[0]
    with portolan.Domain.join(name) as domain, domain.publisher("python readings", READING) as readings:
        print(f"publisher: process {os.getpid()}", flush=True)
        for number in itertools.count(1):
            degrees = 20 + number % 100 / 10
            # Written once, however many subscribe. A slow, stopped or dead one delays nothing.
            readings.publish((number, degrees))
            if number % 10 == 1:
                print(f"publisher: reading {number} is {degrees:.1f}", flush=True)
            time.sleep(0.1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
