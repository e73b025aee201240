"""Echo client: asks `echo_server` five times a second, until Ctrl-C, and says how each request ended.

See `echo_server`.
"""

import itertools
import os
import sys
import time

import numpy

import portolan
from portolan.reconnecting import Sender


def main():
    name = (sys.argv[1:] or ["tutorial"])[0]
    with portolan.Domain.join(name) as domain, Sender(domain, "echo") as server:
        print(f"client: process {os.getpid()}", flush=True)
        for number in itertools.count(1):
            text = f"request {number}"
            array = domain.copy(numpy.frombuffer(text.encode(), numpy.uint8))
            try:
                # The right on the port of that name is looked up again if the port has died.
                with server.request_reply(b"", array, timeout=1) as answer:
                    if number % 5 == 1:
                        print(f"client: {bytes(answer.array).decode()}", flush=True)
            except portolan.ConnectError as why:
                print(f"client: {text} was not sent: {why}", flush=True)
            except (portolan.RequestError, portolan.TimedOut) as why:
                # A server's death ends the request at once, in an error that says so.
                print(f"client: {text} was not answered: {why}", flush=True)
            time.sleep(0.2)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
