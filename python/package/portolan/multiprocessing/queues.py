"""A queue between processes."""

import os
import queue
import secrets
import struct
import weakref
from multiprocessing.context import assert_spawning

from .._codec import pack, unpack
from ..errors import Error, Full
from . import _domains

#: Messages that are on their way into a queue without a limit.
IN_PORT = 1024


class Queue:
    """Stands in for `multiprocessing.Queue`: any number of processes put and get.

    It lives as long as the object in the process that made it: when that is gone, or its process dead,
    `put` raises `DeadName` and `get` raises `ServerDead` or `Dropped` in the others, at once. A process that dies while it waits stops
    nobody. It takes what it got with it; that may be one object that was put in the instant
    before the domain's host saw its death.

    Pass it to a `Process` as an argument, as one of `multiprocessing`. With `maxsize` the queue
    holds at least so many objects before `put` waits (a power of two, less one).
    """

    def __init__(self, maxsize=0, *, domain=None):
        made_in = _domains.domain() if domain is None else domain
        self._domain_name = _domains.keep(made_in)
        self._name = f"queue-{os.getpid()}-{secrets.token_hex(4)}"
        self._maxsize = maxsize
        puts = made_in.bind(f"{self._name}-puts", queue=maxsize if maxsize > 0 else IN_PORT)
        gets = made_in.bind(f"{self._name}-gets", synchronous=True, queue=IN_PORT)
        broker = made_in._broker(puts, gets, maxsize <= 0)
        self._connect(made_in)
        # The thread hands out until this object is gone here, whatever other processes hold.
        weakref.finalize(self, _stop, made_in.connect(f"{self._name}-gets"), broker)

    def _connect(self, domain):
        self._domain = domain
        self._puts = domain.connect(f"{self._name}-puts", 0)
        self._gets = domain.connect(f"{self._name}-gets", 0)
        self._closed = False

    def __getstate__(self):
        assert_spawning(self)
        return self._domain_name, self._name, self._maxsize

    def __setstate__(self, state):
        self._domain_name, self._name, self._maxsize = state
        self._connect(_domains.join(self._domain_name, own=True))

    @property
    def domain(self):
        """The domain in which arrays lie that move through it."""
        return self._domain

    def put(self, obj, block=True, timeout=None):
        """Puts an object in, waiting for room; `queue.Full` if there was none in time.

        Arrays of the domain in it move: they are closed here.
        """
        if self._closed:
            raise ValueError(f"Queue {self!r} is closed")
        header, arrays = pack(self._domain, obj)
        try:
            self._puts.send(header, *arrays, timeout=timeout if block else 0)
        except Full:
            raise queue.Full from None

    def put_nowait(self, obj):
        """`put(obj, block=False)`."""
        self.put(obj, False)

    def get(self, block=True, timeout=None):
        """The next object, waiting for one; `queue.Empty` if none came in time."""
        answer = self._gets.request_reply(_ask(block, timeout))
        if not answer.header:
            raise queue.Empty
        return unpack(answer)

    def get_nowait(self):
        """`get(block=False)`."""
        return self.get(False)

    async def get_async(self):
        """`get`, to be awaited."""
        return unpack(await self._gets.request_reply_async(b"g"))

    def qsize(self):
        """How many objects wait."""
        return int.from_bytes(self._gets.request_reply(b"s").header, "little")

    def empty(self):
        """Whether none waits."""
        return self.qsize() == 0

    def full(self):
        """Whether at least `maxsize` wait."""
        return 0 < self._maxsize <= self.qsize()

    def close(self):
        """No more is put here."""
        self._closed = True

    def join_thread(self):
        """Nothing is on its way once `put` has returned: there is nothing to wait for."""

    def cancel_join_thread(self):
        """The same."""

    def __repr__(self):
        return f"<portolan.multiprocessing.Queue {self._name!r}>"


def _ask(block, timeout):
    if not block:
        return b"g" + struct.pack("<Q", 0)
    if timeout is None:
        return b"g"
    return b"g" + struct.pack("<Q", int(max(0.0, timeout) * 1e6))


def _stop(gets, broker):
    try:
        gets.begin_request(b"x", timeout=1).close()
    except Error:
        return
    broker.join()
