"""Stand-ins for `multiprocessing.Queue` and `multiprocessing.Pool` that move arrays.

An array of a domain (`portolan.Array`) that is put into a queue, given to a pool or returned by its
worker changes owner and is not copied; a numpy array is copied once, into memory of the domain, and
read where it lies. Everything else is pickled.

A process that was forked from a member of a domain is none, and cannot become one. So processes
are *spawned* here: use this module's `Process` (or a context of `multiprocessing` that is not
"fork"), and keep the start of the program under `if __name__ == "__main__":`.
"""

import multiprocessing as _multiprocessing

from ._domains import domain
from .pool import AsyncResult, Pool
from .queues import Queue

#: How processes are started.
context = _multiprocessing.get_context("spawn")
Process = context.Process

__all__ = ["AsyncResult", "Pool", "Process", "Queue", "context", "domain"]
