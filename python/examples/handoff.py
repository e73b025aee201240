"""A program gives another one a right on a port of a third, and is gone: the right works on.

Without arguments it is three processes in one domain. The three may as well be on three machines, whose
nodes span a domain; nothing changes in the programs:

    python handoff.py home DOMAIN        # on one machine: DOMAIN is that machine's name for the domain
    python handoff.py receiver DOMAIN    # on another
    python handoff.py giver DOMAIN       # on a third
"""

import os
import sys

import portolan
from portolan.multiprocessing import Process


def home(name):
    """Counts for all that have a right, until one says that it was enough."""
    with portolan.Domain.join(name) as domain, domain.bind("counter", synchronous=True, spanned=True) as counter:
        while True:
            with counter.get_request(timeout=60) as request:
                if not request.header:
                    request.reply()
                    return
                request.reply(bytes([request.header[0] + 1]))


def receiver(name):
    """Knows nothing of the counter but the right that it is given."""
    with portolan.Domain.join(name) as domain, domain.bind("receiver", spanned=True) as inbox:
        (counter,) = inbox.receive(timeout=60).rights
        print(f"receiver: the counter says {counter.request_reply(bytes([41]), timeout=60).header[0]}")
        # An empty question ends it.
        counter.request_reply(timeout=60)
        counter.close()


def giver(name):
    """Has a right on the counter, and gives it away."""
    with portolan.Domain.join(name) as domain, domain.connect("receiver", timeout=60) as receiver:
        receiver.send(b"ask this one", rights=[domain.connect("counter", timeout=60)], timeout=60)
        print("giver: gave its right away")


ROLES = {"home": home, "receiver": receiver, "giver": giver}


def everyone():
    """The three on this machine."""
    name = f"handoff-python-{os.getpid()}"
    with portolan.Domain.join(name):
        processes = [Process(target=role, args=(name,)) for role in ROLES.values()]
        for process in processes:
            process.start()
        for process in processes:
            process.join()


if __name__ == "__main__":
    match sys.argv[1:]:
        case [role, domain]:
            ROLES[role](domain)
        case _:
            everyone()
