"""Element types, as numpy, the buffer protocol and the description of a message have them."""

import ast
from functools import lru_cache

import numpy
from numpy.lib import format as npy


def describe(dtype):
    """What an element type is called in a description, in a buffer, and its size."""
    return _describe(numpy.dtype(dtype))


@lru_cache(maxsize=256)
def _describe(dtype):
    if dtype.hasobject:
        raise TypeError(f"{dtype} holds references to objects of this process, which mean nothing in another")
    if dtype.subdtype is not None:
        raise TypeError(f"{dtype} is an array type: say its dimensions in the shape")
    if dtype.itemsize == 0:
        raise TypeError(f"elements of {dtype} have no bytes")
    try:
        # Of two: numpy shows one alone as if it were aligned, and then finds it too short for that.
        form = memoryview(numpy.empty(2, dtype)).format
    except ValueError as error:
        raise TypeError(
            f"{dtype} cannot be shown as a buffer ({error}): send its bytes, say as int64, and view them as {dtype}"
        ) from None
    descr = npy.dtype_to_descr(dtype)
    return (descr if isinstance(descr, str) else repr(descr)), form, dtype.itemsize


@lru_cache(maxsize=256)
def dtype_of(descr):
    """The element type that a description names."""
    return npy.descr_to_dtype(ast.literal_eval(descr) if descr.startswith(("[", "(")) else descr)


def of_descr(descr):
    """The same as `describe`, of what a description says. It comes from another process."""
    return describe(dtype_of(descr))


def sample(value, descr):
    """A value as bytes to be published, its shape, and the last bytes, which may look like a description."""
    dtype = dtype_of(descr)
    if hasattr(value, "dtype"):
        # Never what would lose something.
        array = numpy.asarray(value).astype(dtype, order="C", casting="safe", copy=False)
    else:
        array = numpy.asarray(value, dtype=dtype, order="C")
    data = array.reshape(-1).view(numpy.uint8)
    return data, array.shape, data[-4:].tobytes()


def copy_into(domain, value):
    """An array of the domain that holds a copy."""
    source = numpy.asarray(value)
    array = domain.array(source.shape, source.dtype)
    # numpy releases the interpreter's lock while it copies.
    numpy.copyto(numpy.asarray(array), source)
    return array
