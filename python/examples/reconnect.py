"""Reconnect: a worker is killed in the middle of its work, and its sender goes on with the next one."""

import os
import time

import portolan
from portolan.multiprocessing import Process
from portolan.reconnecting import Sender

JOBS = 40


def work(name):
    """Does jobs until it is asked which one was the last."""
    with portolan.Domain.join(name) as domain:
        last = 0
        # The worker that was killed has the name for another moment.
        with domain.bind("jobs", queue=7, timeout=30) as jobs:
            while last < JOBS:
                last = int.from_bytes(jobs.receive(timeout=30).header, "little")
                time.sleep(0.002)
        with domain.bind("total", synchronous=True) as total, total.get_request(timeout=30) as asked:
            asked.reply(b"%d" % last)


def main():
    name = f"reconnect-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain, Sender(domain, "jobs") as jobs:
        worker = Process(target=work, args=(name,))
        worker.start()
        lost = 0
        for number in range(1, JOBS + 1):
            if number == 21:
                worker.kill()  # It gets no chance to say anything.
                worker.join()
                worker = Process(target=work, args=(name,))
                worker.start()
            # Waits for a worker. After the death it finds the next one, and says what may be lost.
            told = jobs.send(number.to_bytes(8, "little"), timeout=30)
            if told.lost:
                print(f"sender: worker {told.lost.receiver} has died")
                lost += told.lost.at_most
        # An answer says more than a count: the worker answers with the last job that it has done.
        with Sender(domain, "total") as total:
            done = int(total.request_reply(timeout=30).header)
        print(f"sender: the next worker did the rest, up to job {done} of {JOBS}")
        print(f"sender: of some it is not known whether they were done: {str(lost > 0).lower()}")
        worker.join()


if __name__ == "__main__":
    main()
