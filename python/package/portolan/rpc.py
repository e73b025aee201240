"""Calls: methods of an object in one process are called from others.

Arguments and results are anything that pickles; arrays of the domain (`portolan.Array`) move, and
numpy arrays are copied once. Pickled data runs code when it is read, so calls are for the members
of one domain, who trust one another. (Services of the Rust library have a format of their own; a
Rust program is reached by `SendRight.request_reply`.)

>>> import portolan, portolan.rpc, threading
>>> domain = portolan.Domain.private()
>>> class Clock:
...     def now(self, zone):
...         return f"noon in {zone}"
>>> port = domain.bind("clock", synchronous=True)
>>> server = threading.Thread(target=portolan.rpc.serve, args=(domain, port, Clock()), daemon=True)
>>> server.start()
>>> with portolan.rpc.Client(domain, "clock", timeout=5) as clock:
...     clock.now("Oslo")
'noon in Oslo'
>>> port.close()
"""

import time
from multiprocessing.pool import ExceptionWithTraceback

from ._codec import pack, unpack
from .errors import CallError, Closed, DeadName, TimedOut


class Client:
    """Calls the methods of an object that another process serves under `name`.

    Each method blocks until its result is there, for at most `timeout` seconds; what it raised
    there is raised here. `ServerDead` at once, if the server dies. `client.call_async("method",
    ...)` is awaited instead.
    """

    def __init__(self, domain, name, *, timeout=None):
        self._domain = domain
        self._timeout = timeout
        self._right = domain.connect(name, timeout)

    def call(self, method, *arguments, **options):
        """Calls a method by its name."""
        header, arrays = pack(self._domain, (method, arguments, options))
        return _result(self._right.request_reply(header, *arrays, timeout=self._timeout))

    async def call_async(self, method, *arguments, **options):
        """The same, to be awaited."""
        header, arrays = pack(self._domain, (method, arguments, options))
        return _result(await self._right.request_reply_async(header, *arrays))

    def __getattr__(self, method):
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*arguments, **options):
            return self.call(method, *arguments, **options)

        call.__name__ = method
        return call

    def close(self):
        """Gives the connection up."""
        self._right.close()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.close()


def _result(message):
    is_good, value = unpack(message)
    if is_good:
        return value
    raise value


def serve(domain, port, target, *, timeout=None):
    """Answers calls of the public methods of `target` at a synchronous port.

    Returns when the port is closed, or after `timeout` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            request = port.get_request(None if end is None else max(0.0, end - time.monotonic()))
        except (Closed, TimedOut):
            return
        if request.wants_reply():
            answer(domain, request, lambda ask: _call(target, *ask))


def _call(target, method, arguments, options):
    function = None if method.startswith("_") else getattr(target, method, None)
    if not callable(function):
        error = CallError(f"{type(target).__name__} has no method {method!r} that may be called")
        error.method = method
        raise error
    return function(*arguments, **options)


def answer(domain, request, run):
    """Answers a request with what `run` makes of the object in it, or raises."""
    try:
        outcome = (True, run(unpack(request.message)))
    except Exception as error:
        outcome = (False, ExceptionWithTraceback(error, error.__traceback__))
        # Its frames hold views of what came with the request.
        error.__traceback__ = None
    try:
        header, arrays = pack(domain, outcome)
    except Exception as error:
        text = f"the answer cannot be sent: {type(error).__name__}: {error}"
        header, arrays = pack(domain, (False, TypeError(text)))
    try:
        request.reply(header, *arrays)
    except DeadName:
        # The client is gone, and needs none.
        for array in arrays:
            array.close()
