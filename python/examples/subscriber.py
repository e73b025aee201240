"""Subscriber: prints what `publisher` publishes, until Ctrl-C, and when a publisher goes.

See `publisher`.
"""

import os
import sys

import numpy

import portolan
from portolan.reconnecting import Gone, Subscriber

#: As in `publisher`.
READING = numpy.dtype([("number", "<u8"), ("degrees", "<f8")])


def main():
    name = (sys.argv[1:] or ["tutorial"])[0]
    with portolan.Domain.join(name) as domain, Subscriber(domain, "python readings", READING) as readings:
        print(f"subscriber: process {os.getpid()}", flush=True)
        for update in readings:
            if isinstance(update, Gone):
                print(f"subscriber: publisher {update.publisher} has gone; {update.missed} of its readings were missed", flush=True)
                continue
            if update.missed:
                print(f"subscriber: missed {update.missed}", flush=True)
            reading = update.numpy()
            if reading["number"] % 10 == 1:
                print(f"subscriber: reading {reading['number']} is {reading['degrees']:.1f}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
