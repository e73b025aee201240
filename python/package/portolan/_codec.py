"""Any object as a message: arrays of a domain move, and everything else is pickled.

Numpy arrays and other large buffers are copied once, into memory of the domain, and are read where
they lie by the receiver. Pickled data runs code when it is read: only members of one domain, who
trust one another, exchange it.

```text
header  "i" + pickled                     nothing, or little, beside the arrays
        "i" + meta                        meta: marshalled (pickled, where each buffer is)
        "b" + length                      meta lies at the beginning of the first extent
extents [copied buffers] arrays ...
```
"""

import io
import marshal
import pickle

import numpy

from ._portolan import Array

#: Buffers of fewer bytes are part of what is pickled.
LEAST = 1024
#: Metadata of more bytes does not lie in the header, which has to describe the arrays too.
MOST = 1024
#: Copied buffers begin at multiples of so many bytes.
ALIGN = 64

MOVED = -1


class _Pickler(pickle.Pickler):
    def __init__(self, file):
        self.moved = {}
        self.held = []
        super().__init__(file, protocol=5, buffer_callback=self._hold)

    def reducer_override(self, value):
        if type(value) is Array:
            buffer = pickle.PickleBuffer(value)
            self.moved[id(buffer)] = value
            return _same, (buffer,)
        return NotImplemented

    def _hold(self, buffer):
        if id(buffer) not in self.moved and buffer.raw().nbytes < LEAST:
            return True
        self.held.append(buffer)
        return False


def _same(value):
    return value


def pack(domain, value):
    """A header and the arrays of a message that holds `value`."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except BaseException:
        # The error's traceback holds the pickler, which must not hold the arrays.
        for buffer in pickler.held:
            buffer.release()
        raise
    stream = file.getvalue()
    moved = [pickler.moved.get(id(buffer)) for buffer in pickler.held]
    copied = [buffer.raw() for buffer, array in zip(pickler.held, moved) if array is None]
    # Views of arrays end before these are sent.
    for buffer, array in zip(pickler.held, moved):
        if array is not None:
            buffer.release()
    arrays = [array for array in moved if array is not None]
    places, end = _places(copied)
    meta = _meta(stream, moved, places)
    start = 0
    if len(meta) <= MOST:
        header = b"i" + meta
    else:
        start = _aligned(len(meta))
        header = b"b" + len(meta).to_bytes(8, "little") + start.to_bytes(8, "little")
    if start + end == 0:
        return header, arrays
    bulk = domain.allocate(start + end)
    into = numpy.asarray(bulk)
    if start:
        into[: len(meta)] = numpy.frombuffer(meta, numpy.uint8)
    for (at, size), buffer in zip(places, copied):
        # numpy releases the interpreter's lock while it copies.
        numpy.copyto(into[start + at : start + at + size], numpy.frombuffer(buffer, numpy.uint8))
    del into
    return header, [bulk, *arrays]


def _aligned(offset):
    return -(-offset // ALIGN) * ALIGN


def _places(copied):
    """Where each buffer lies among the copied ones, and where they end."""
    places, end = [], 0
    for buffer in copied:
        places.append((end, buffer.nbytes))
        end = _aligned(end + buffer.nbytes)
    return places, end


def _meta(stream, moved, places):
    places = iter(places)
    return marshal.dumps((stream, [next(places) if array is None else MOVED for array in moved]))


def unpack(message):
    """The object that a message holds."""
    header, arrays = message.header, list(message.arrays)
    start, bulk = 0, None
    if header[:1] == b"i":
        meta = header[1:]
    else:
        length, start = int.from_bytes(header[1:9], "little"), int.from_bytes(header[9:17], "little")
        bulk = memoryview(arrays.pop(0))
        meta = bulk[:length]
    stream, places = marshal.loads(meta)
    if bulk is None and any(place != MOVED for place in places):
        bulk = memoryview(arrays.pop(0))
    arrays = iter(arrays)

    def buffer(place):
        if place == MOVED:
            return next(arrays)
        at, size = place
        return bulk[start + at : start + at + size]

    return pickle.loads(stream, buffers=[buffer(place) for place in places])
