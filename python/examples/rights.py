"""Rights: they travel in messages, and a port knows when no sender is left.

A guest hands the keeper the right to send to a port that has no name, so that no one else can.
"""

import os

import portolan
from portolan.multiprocessing import Process


def keep():
    name = f"rights-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain, domain.bind("lobby") as lobby:
        guest = Process(target=stay, args=(name,))
        guest.start()
        message = lobby.receive(timeout=30)
        print(f"keeper: a guest says {message.header.decode()!r}")
        for room in message.rights:
            # The holder of a right may use it; this one came with the message.
            room.send(b"breakfast is at eight", timeout=30)
            room.send(b"the key is yours", timeout=30)
            room.close()  # It was the only one.
        guest.join()


def stay(name):
    with portolan.Domain.join(name) as domain:
        lobby = domain.connect("lobby", timeout=30)
        # A port without a name is reached by those only who are given a right on it.
        room = domain.bind()
        with room.make_send() as right:
            lobby.send(b"write to my room", rights=[right], timeout=30)
        # Rights are counted, also while they travel and when their holder is killed.
        room.request_no_more_senders()
        while (letter := room.receive(timeout=30)).notice != "NoMoreSenders":
            print(f"guest: got {letter.header.decode()!r}")
        print("guest: nobody can write to me any more")

        # The other way round: a right on a port that is gone is a dead name, and no crash.
        right = room.make_send()
        room.close()
        try:
            right.send(b"anybody there?", timeout=30)
        except portolan.DeadName as why:
            print(f"guest: not sent, for {why}")


if __name__ == "__main__":
    keep()
