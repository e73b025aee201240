"""Processes that work for this one.

Each worker serves a port, and each has a thread here, which keeps `AHEAD` requests under way: so a
worker finds its next task as it answers the last. What happens to a worker is the answer of its
requests, and another takes its place.
"""

import collections
import itertools
import multiprocessing
import os
import queue
import secrets
import threading
from concurrent.futures import Future

from .. import rpc
from .._codec import pack, unpack
from ..errors import DeadName, Error, MessageError, ServerDead, TimedOut, WorkerDied
from . import _domains

#: Tasks that a worker has at a time: one that runs, and one that waits.
AHEAD = 2
#: Seconds between two looks whether a process that starts lives.
LOOK = 0.1


class AsyncResult:
    """What `apply_async` and `map_async` give: the result, when it is there."""

    def __init__(self, futures, join, callback=None, error_callback=None):
        self._futures = futures
        self._join = join
        self._left = len(futures)
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._callbacks = callback, error_callback
        if not futures:
            self._finish()
        for future in futures:
            future.add_done_callback(self._one_done)

    def _one_done(self, _future):
        with self._lock:
            self._left -= 1
            left = self._left
        if left == 0:
            self._finish()

    def _finish(self):
        self._done.set()
        callback, error_callback = self._callbacks
        error = self._error()
        if error is None and callback is not None:
            callback(self._join(self._futures))
        if error is not None and error_callback is not None:
            error_callback(error)

    def _error(self):
        return next((error for future in self._futures if (error := future.exception()) is not None), None)

    def ready(self):
        """Whether the result, or an error, is there."""
        return self._done.is_set()

    def wait(self, timeout=None):
        """Waits until it is."""
        self._done.wait(timeout)

    def successful(self):
        """Whether it is the result."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error() is None

    def get(self, timeout=None):
        """The result, or what the function raised; `multiprocessing.TimeoutError` if none came."""
        if not self._done.wait(timeout):
            raise multiprocessing.TimeoutError
        error = self._error()
        if error is not None:
            raise error
        return self._join(self._futures)


class Pool:
    """Stands in for `multiprocessing.Pool`.

    Arrays of the domain (`pool.domain.array`, `pool.domain.copy`) that are arguments or results
    move. If a worker dies, what it was given fails with `WorkerDied`, and another takes its place.
    """

    def __init__(self, processes=None, initializer=None, initargs=(), *, domain=None):
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        count = os.cpu_count() or 1 if processes is None else processes
        if count < 1:
            raise ValueError("Number of processes must be at least 1")
        #: The domain of the pool and its workers.
        self.domain = _domains.domain() if domain is None else domain
        _domains.keep(self.domain)
        self._tasks = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._terminated = threading.Event()
        self._workers = [
            _Worker(self.domain, self._tasks, self._terminated, initializer, initargs) for _ in range(count)
        ]

    def apply(self, func, args=(), kwds=None):
        """The result of `func(*args, **kwds)`, in a worker."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(self, func, args=(), kwds=None, callback=None, error_callback=None):
        """The same, later."""
        future = self._submit(_apply, (func, args, kwds or {}))
        return AsyncResult([future], lambda futures: futures[0].result(), callback, error_callback)

    def map(self, func, iterable, chunksize=None):
        """`[func(x) for x in iterable]`, in the workers."""
        return self.map_async(func, iterable, chunksize).get()

    def map_async(self, func, iterable, chunksize=None, callback=None, error_callback=None):
        """The same, later."""
        return self._map(_map, func, iterable, chunksize, callback, error_callback)

    def starmap(self, func, iterable, chunksize=None):
        """`[func(*x) for x in iterable]`, in the workers."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(self, func, iterable, chunksize=None, callback=None, error_callback=None):
        """The same, later."""
        return self._map(_starmap, func, iterable, chunksize, callback, error_callback)

    def imap(self, func, iterable, chunksize=1):
        """The results one by one, in order."""
        futures = [self._submit(_map, (func, chunk)) for chunk in _chunks(iterable, chunksize)]
        return itertools.chain.from_iterable(map(Future.result, futures))

    def imap_unordered(self, func, iterable, chunksize=1):
        """The results one by one, as they come."""
        done = queue.SimpleQueue()
        count = 0
        for chunk in _chunks(iterable, chunksize):
            self._submit(_map, (func, chunk)).add_done_callback(done.put)
            count += 1
        return itertools.chain.from_iterable(done.get().result() for _ in range(count))

    def _map(self, task, func, iterable, chunksize, callback, error_callback):
        items = list(iterable)
        if chunksize is None:
            # As many chunks as `multiprocessing` makes.
            chunksize = max(1, -(-len(items) // (4 * len(self._workers))))
        futures = [self._submit(task, (func, chunk)) for chunk in _chunks(items, chunksize)]

        def join(done):
            return list(itertools.chain.from_iterable(map(Future.result, done)))

        return AsyncResult(futures, join, callback, error_callback)

    def _submit(self, task, arguments):
        future = Future()
        with self._lock:
            if self._closed:
                raise ValueError("Pool not running")
            self._tasks.put((future, task, arguments))
        return future

    def close(self):
        """No more work is given; what was given is done."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._workers:
                    self._tasks.put(None)

    def terminate(self):
        """Ends the workers at once; what is under way fails with `WorkerDied`."""
        self._terminated.set()
        self.close()
        for worker in self._workers:
            worker.kill()
        self.join()

    def join(self):
        """Waits until the workers of a closed pool have ended."""
        if not self._closed:
            raise ValueError("Pool is still running")
        for worker in self._workers:
            worker.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.terminate()

    def __del__(self):
        if not getattr(self, "_closed", True):
            self._terminated.set()
            self.close()


def _chunks(iterable, size):
    items = iter(iterable)
    while chunk := list(itertools.islice(items, size)):
        yield chunk


def _apply(func, args, kwds):
    return func(*args, **kwds)


def _map(func, chunk):
    return [func(item) for item in chunk]


def _starmap(func, chunk):
    return [func(*item) for item in chunk]


class _Worker:
    """One worker after another, and the thread that gives them work."""

    def __init__(self, domain, tasks, terminated, initializer, initargs):
        # Not the pool, which ends when its last reference is gone.
        self._domain = domain
        self._tasks = tasks
        self._terminated = terminated
        self._start = initializer, initargs
        self._process = None
        self._right = None
        self.thread = threading.Thread(target=self._run, name="portolan-pool", daemon=True)
        self.thread.start()

    def kill(self):
        process = self._process
        if process is not None:
            process.kill()

    def _run(self):
        under_way = collections.deque()
        over = False
        while not over or under_way:
            try:
                if not over and len(under_way) < AHEAD:
                    over = not self._give(under_way)
                else:
                    self._take(under_way)
            except (ServerDead, DeadName):
                self._replace(under_way)
        self._stop()

    def _give(self, under_way):
        """Gives the worker a task, if there is one; `False`: there will be none."""
        try:
            # With a task under way its result comes first, if there is no other yet.
            task = self._tasks.get(block=not under_way)
        except queue.Empty:
            self._take(under_way)
            return True
        if task is None:
            return False
        future, function, arguments = task
        if self._terminated.is_set():
            future.set_exception(WorkerDied("the pool was terminated"))
            return True
        self._send(future, function, arguments, under_way)
        return True

    def _send(self, future, function, arguments, under_way):
        try:
            header, arrays = pack(self._domain, (function, arguments))
            while True:
                right = self._right or self._begin()
                try:
                    pending = right.begin_request(header, *arrays)
                    break
                except DeadName:
                    # It died between two tasks; this one is not lost with it.
                    self._replace(under_way)
        except MessageError as error:
            self._halve(future, function, arguments, under_way, error)
        except Exception as error:
            future.set_exception(error)
        else:
            under_way.append((future, pending))

    def _halve(self, future, function, arguments, under_way, error):
        """More arrays than a message carries are two messages."""
        if function not in (_map, _starmap) or len(arguments[1]) < 2:
            future.set_exception(error)
            return
        func, chunk = arguments
        halves = [Future(), Future()]
        middle = len(chunk) // 2

        def join(_done):
            if all(half.done() for half in halves) and not future.done():
                failed = next((half.exception() for half in halves if half.exception()), None)
                if failed is not None:
                    future.set_exception(failed)
                else:
                    future.set_result([*halves[0].result(), *halves[1].result()])

        for half, part in zip(halves, (chunk[:middle], chunk[middle:])):
            half.add_done_callback(join)
            self._send(half, function, (func, part), under_way)

    def _take(self, under_way):
        """Waits for the answer of the task that runs."""
        future, pending = under_way[0]
        answer = pending.wait()
        under_way.popleft()
        try:
            is_good, value = unpack(answer)
        except Exception as error:
            is_good, value = False, error
        if is_good:
            future.set_result(value)
        else:
            future.set_exception(value)

    def _begin(self):
        """Starts a process and hears from it."""
        name = f"worker-{os.getpid()}-{secrets.token_hex(4)}"
        with self._domain.bind(name) as port:
            initializer, initargs = self._start
            process = multiprocessing.get_context("spawn").Process(
                target=_work, args=(self._domain.name, name, initializer, initargs), daemon=True
            )
            process.start()
            self._process = process
            while True:
                try:
                    hello = port.receive(LOOK)
                    break
                except TimedOut:
                    if not process.is_alive():
                        raise self._died() from None
        self._right = hello.rights[0]
        return self._right

    def _died(self):
        process = self._process
        process.join()
        text = f"worker {process.pid} of the pool died ({_how(process.exitcode)})"
        return WorkerDied(text, process.pid, process.exitcode)

    def _replace(self, under_way):
        """The worker is dead: what it was given fails."""
        error = self._died()
        while under_way:
            under_way.popleft()[0].set_exception(error)
        self._right.close()
        self._right = None

    def _stop(self):
        """The worker ends when nobody holds a right to ask it any more."""
        if self._right is not None:
            self._right.close()
        if self._process is not None:
            self._process.join()


def _how(exitcode):
    return f"signal {-exitcode}" if exitcode is not None and exitcode < 0 else f"exit code {exitcode}"


def _work(domain_name, name, initializer, initargs):
    """A worker's life: it ends when its pool has, or has died."""
    domain = _domains.join(domain_name, own=True)
    if initializer is not None:
        initializer(*initargs)
    with domain.bind(synchronous=True) as port:
        with domain.connect(name, 10) as right:
            right.send(b"hello", rights=[port.make_send()])
        port.request_no_more_senders()
        while True:
            request = port.get_request()
            if not request.wants_reply():
                return
            try:
                rpc.answer(domain, request, lambda task: task[0](*task[1]))
            except Error:
                # The pool is gone.
                return
