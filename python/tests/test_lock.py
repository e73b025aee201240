"""The interpreter's lock is let go of wherever something copies much, or may wait: also in a first attempt."""

import contextlib
import gc
import itertools
import os
import sys
import threading
import time

import numpy
import pytest

import portolan

#: Bytes that take some milliseconds to be copied.
LONG = 64 << 20


@contextlib.contextmanager
def no_switches():
    """No thread takes the lock from another one here: it has to be let go of."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def one_processor(processor):
    """This thread, and those that it starts, run on one processor: who is woken there takes it from who woke it.

    On two, a call of some microseconds has ended before the other processor is awake.
    """
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {processor})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def lets_go(call, attempts=50):
    """Whether another thread, which waits for the lock before, runs before `call` has ended.

    One that does not let go has no chance; one that does may go on before the other thread has looked.
    """
    processors = itertools.cycle(sorted(os.sched_getaffinity(0)))
    return any(ran_in(call, next(processors)) for _ in range(attempts))


def ran_in(call, processor):
    """Whether another thread ran while `call` did, in one attempt."""
    with one_processor(processor):
        ran = []
        gate = threading.Lock()
        gate.acquire()

        def wait():
            with gate:
                ran.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        with no_switches():
            gate.release()
            # It comes to where it waits for the lock.
            until = time.monotonic() + 0.005
            while time.monotonic() < until:
                pass
            assert not ran
            call()
            held = not ran
        thread.join()
        return not held


def test_what_keeps_the_lock_is_told_from_what_does_not():
    assert not lets_go(lambda: sum(range(1000)), attempts=5)
    assert lets_go(lambda: time.sleep(0.001))


def test_a_long_message_of_a_channel(domain):
    channel = domain.make_channel(unit=4096, units=LONG // 1024)
    with channel.bind_writer() as writer:
        long = bytes(LONG)
        assert lets_go(lambda: writer.write(long))
        assert lets_go(lambda: writer.append(long))
        writer.end()
        with channel.bind_reader() as reader:
            for receive in (lambda: reader.receive(0), reader._poll):
                for _ in range(20):
                    writer.write(long)
                    received = []
                    if lets_go(lambda receive=receive, received=received: received.append(receive()), attempts=1):
                        break
                else:
                    pytest.fail("a message that is read keeps the lock")
                assert received[0].data == long


@pytest.mark.parametrize("synchronous", [False, True])
def test_a_message_that_is_copied_as_it_is_sent(domain, synchronous):
    with domain.bind(copied=True, synchronous=synchronous, queue=63) as port:
        right = port.make_send()
        send = right.begin_request if synchronous else right.send
        pending = []
        for _ in range(20):
            array = domain.allocate(LONG)
            if lets_go(lambda array=array: pending.append(send(b"", array)), attempts=1):
                break
            taken = port.get_request(0) if synchronous else port.receive(0)
            (taken.message if synchronous else taken).close()
        else:
            pytest.fail("a send that copies keeps the lock")


def test_a_long_sample_that_is_copied(domain):
    # As long as one may be: a tenth of a millisecond, or so.
    options = {"copied": 1_000_000, "history": 2, "publishers": 1, "subscribers": 1}
    with domain.publisher("long", "u1", **options) as publisher, domain.subscriber("long", **options) as subscriber:
        sample = numpy.zeros(999_000, "u1")
        for receive in (lambda: subscriber.receive(0), subscriber._poll):
            for _ in range(300):
                publisher.publish(sample)
                received = []
                if lets_go(lambda receive=receive, received=received: received.append(receive()), attempts=1):
                    break
            else:
                pytest.fail("a sample that is copied keeps the lock")
            assert (numpy.asarray(received[0]) == sample).all()


def test_a_first_attempt_that_asks_another_process(domain, name):
    with portolan.Domain.join(f"{name}-other", limit=1 << 30) as other:

        def ask(call):
            with pytest.raises(portolan.Error):
                call()

        for call in (
            lambda: other.connect_to(name, "nothing", timeout=0),
            lambda: portolan.Domain.import_from(name, "nothing", timeout=0),
            lambda: other.import_("nothing", timeout=0),
            lambda: other.connect("nothing", timeout=0),
        ):
            assert lets_go(lambda call=call: ask(call), attempts=400)


def test_handles_that_nobody_closed(name):
    gc.collect()
    for attempt in range(200):
        held = [portolan.Domain.join(f"{name}-{attempt}")]
        if lets_go(held.clear, attempts=1):
            return
    pytest.fail("a domain that is let go of keeps the lock while its threads end")
