"""Echo server: answers each request with its own text in capitals, until Ctrl-C.

Run it in one terminal, and `echo_client` in another. An argument names another domain than `tutorial`.
The programs of these names in Rust and C do the same, in the same domain.
"""

import os
import sys

import portolan


def main():
    name = (sys.argv[1:] or ["tutorial"])[0]
    with portolan.Domain.join(name) as domain:
        print(f"server: process {os.getpid()}", flush=True)
        # A server that was killed just now has the name for another moment.
        with domain.bind("echo", synchronous=True, timeout=5) as port:
            while True:
                with port.get_request() as request:
                    for array in request.arrays:
                        with array.view() as text:
                            text[(text >= ord("a")) & (text <= ord("z"))] -= 32
                    try:
                        # The answer is the request's own memory.
                        request.reply(request.header, *request.arrays)
                    except portolan.DeadName:
                        pass  # The client has died meanwhile.


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
