"""The domains of this process, by name: a queue that comes from another process needs its domain."""

import os
import secrets
import threading

from .._portolan import Domain

_lock = threading.Lock()
_joined = {}
_own = None


def domain():
    """The domain of this program's queues and pools, and of the processes that it starts."""
    global _own
    with _lock:
        if _own is None or _own[0] != os.getpid():
            joined = Domain.join(f"python-{os.getpid()}-{secrets.token_hex(4)}")
            _own = (os.getpid(), joined.name)
            _joined[(os.getpid(), joined.name)] = joined
        return _joined[_own]


def join(name, own=False):
    """The domain of this name. Of a process that another one started, it is its own as well."""
    global _own
    with _lock:
        key = (os.getpid(), name)
        if key not in _joined:
            _joined[key] = Domain.join(name, create=False)
        if own and (_own is None or _own[0] != os.getpid()):
            _own = key
        return _joined[key]


def keep(given):
    """Notes a domain that the program has joined, and gives its name."""
    with _lock:
        _joined.setdefault((os.getpid(), given.name), given)
    return given.name
