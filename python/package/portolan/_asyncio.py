"""Awaiting, by the descriptor of what is awaited.

A `source` is anything of Portolan with `fileno()` and a `_poll`, which gives what is there, or
`None`: then the descriptor is not readable until something comes. So a task that is cancelled has
taken nothing.
"""

import asyncio
import errno
import os

from .errors import Full, NoDescriptor

#: Seconds after which a task looks whether another one has closed what it waits for.
LOOK = 1.0


async def until(source, poll):
    """What `poll` gives, once it gives something."""
    fd = source.fileno()
    while (found := poll()) is None:
        await _readable(fd)
    return found


async def _readable(fd):
    loop = asyncio.get_running_loop()
    try:
        # Of its own: two tasks may wait for one source, and the source may be closed meanwhile.
        fd = os.dup(fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            # Closed by another thread, which the next look says.
            return
        raise NoDescriptor(f"no descriptor to wait with ({error}): close some, or raise the process's limit") from error
    try:
        woken = loop.create_future()

        def wake():
            if not woken.done():
                woken.set_result(None)

        loop.add_reader(fd, wake)
        timer = loop.call_later(LOOK, wake)
        try:
            await woken
        finally:
            timer.cancel()
            loop.remove_reader(fd)
    finally:
        os.close(fd)


async def send(right, header, arrays, rights):
    """`SendRight.send_async`."""
    await _with_room(right, lambda: right.send(header, *arrays, rights=rights, timeout=0))


async def request_reply(right, header, arrays, rights):
    """`SendRight.request_reply_async`."""
    pending = await _with_room(right, lambda: right.begin_request(header, *arrays, rights=rights, timeout=0))
    with pending:
        return await until(pending, pending._poll)


async def _with_room(right, attempt):
    room = None
    try:
        while True:
            try:
                return attempt()
            except Full:
                room = room or right.room()
            await until(room, room._poll)
    finally:
        if room is not None:
            room.close()
