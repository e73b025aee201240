"""A view of an array that ends with a `with` block."""

import numpy

from .errors import Closed


class View(numpy.lib.mixins.NDArrayOperatorsMixin):
    """An array's elements for the length of a `with` block.

    It works as a numpy array does: it is indexed, assigned to, computed with, and given to numpy's
    functions. After the block it is over, so that the array can be sent. What was taken out of it
    and is a numpy array (`v[1:]`, `numpy.asarray(v)`) is a view too: one that lives at the end of
    the block is the error `BufferError`.
    """

    def __init__(self, of):
        self._lease = of._lease()

    @property
    def memory(self):
        """The elements as a memoryview, which counts as made from this view."""
        if self._lease is None:
            raise Closed("this view is over: its `with` block has ended")
        return memoryview(self._lease)

    def _array(self):
        return numpy.asarray(self.memory)

    def release(self):
        """Ends the view, as the end of the block does."""
        lease, self._lease = self._lease, None
        made = 0 if lease is None else lease.end()
        if made:
            raise BufferError(
                f"{made} numpy arrays or tensors that were made from this view live: "
                "drop them (`del`), or copy what is to stay"
            )

    def __enter__(self):
        return self

    def __exit__(self, kind, why, where):
        try:
            self.release()
        except BufferError:
            # Of two errors the first one matters. The view ends with what holds it.
            if kind is None:
                raise

    def __getitem__(self, key):
        return self._array()[key]

    def __setitem__(self, key, value):
        self._array()[key] = _plain(value)

    def __len__(self):
        return len(self._array())

    def __iter__(self):
        return iter(self._array())

    def __contains__(self, value):
        return value in self._array()

    def __array__(self, dtype=None, copy=None):
        array = self._array()
        if copy or (dtype is not None and array.dtype != dtype):
            return numpy.array(array, dtype=dtype)
        return array

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if out is not None:
            options["out"] = tuple(_plain(one) for one in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        # What was computed in place is this view, and no new array over its memory.
        return out[0] if out is not None and len(out) == 1 else result

    def __array_function__(self, function, types, arguments, options):
        return function(*_plain_all(arguments), **{name: _plain_all(of) for name, of in options.items()})

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._array(), name)

    def __dlpack__(self, **options):
        return self._array().__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)

    def __repr__(self):
        try:
            return f"View({self._array()!r})"
        except Closed:
            return "<portolan.View: over>"


def array_of(shown, dtype=None, copy=None):
    """A numpy array over what has a buffer; the error says it, if it has none."""
    array = numpy.asarray(memoryview(shown))
    if copy or (dtype is not None and array.dtype != dtype):
        return numpy.array(array, dtype=dtype)
    return array


def _plain(value):
    return value._array() if isinstance(value, View) else value


def _plain_all(value):
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain_all, value))
    return _plain(value)
