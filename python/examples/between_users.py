"""Joins two programs that do not share a domain: a camera offers a port to processes that know a token, and
a guest, which could be another user's program, sends to it and asks it things.
"""

import os
import secrets
import time

import numpy

import portolan
from portolan.multiprocessing import Process


def film():
    name = f"camera-python-{os.getpid()}"
    token = secrets.token_bytes(16)
    with portolan.Domain.join(name) as domain, domain.bind() as masks, domain.bind(synchronous=True) as settings:
        # A client does not join our domain: it sees none of our memory, and its messages are copied.
        masks_offered = masks.offer("masks", token=token, most_bytes=8 << 20)
        settings_offered = settings.offer("settings", token=token, most_bytes=8 << 20)
        guest = Process(target=ask, args=(name, token))
        guest.start()

        with settings.get_request(timeout=60) as request:
            print(f'camera: asked for "{request.header.decode()}"')
            request.reply(b"1920 x 1080")
        _, mask = masks.receive(timeout=60)
        with mask.view() as v:
            print(f"camera: a mask of {v.size} bytes covers {numpy.count_nonzero(v)}")
        # Withdrawn, its right is a dead name: the guest may go.
        settings_offered.close()
        guest.join()
        print(f"camera: {len(masks_offered.take_violations())} clients broke the rules")
        masks_offered.close()


def ask(camera, token):
    with portolan.Domain.join(f"guest-of-{camera}") as domain:
        # Of another user's camera: `of_user=UID`.
        settings = domain.connect_to(camera, "settings", token=token, timeout=60)
        answer = settings.request_reply(b"the resolution", timeout=60)
        print(f"guest: {answer.header.decode()}")

        masks = domain.connect_to(camera, "masks", token=token, timeout=60)
        mask = domain.copy(numpy.zeros(1920 * 1080, numpy.uint8))
        with mask.view() as v:
            v[: 1920 * 100] = 1
        masks.send(b"above the horizon", mask, timeout=60)

        # More than the camera takes is refused here, and stays ours.
        much = domain.array(9 << 20, numpy.uint8)
        try:
            masks.send(b"too much", much, timeout=60)
        except portolan.SendError:
            print(f"guest: {much.nbytes} bytes came back")
        # What was sent goes over while this process lives; the camera says when it may end.
        while settings.is_live():
            time.sleep(0.005)


if __name__ == "__main__":
    film()
