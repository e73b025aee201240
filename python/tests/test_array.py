"""Arrays: what shows them, and when they can be sent."""

import gc
import pickle

import numpy
import pytest

import portolan


@pytest.mark.parametrize(
    "dtype",
    [
        *("u1", "<i2", ">i4", "<f2", "<f4", "<f8", "?", "<c16", "S5", "<U3"),
        [("x", "<f4"), ("id", "<i8", (2,))],
        # Whose size is no multiple of its largest field's.
        [("name", "S24"), ("cents", "<u8"), ("day", "<u4")],
    ],
)
def test_numpy_sees_the_memory_of_an_array_without_a_copy(domain, dtype):
    array = domain.array((3, 4), dtype)
    seen = numpy.asarray(array)
    assert (seen.shape, seen.dtype, array.dtype) == ((3, 4), numpy.dtype(dtype), numpy.dtype(dtype))
    assert seen.ctypes.data == array.address
    seen[...] = numpy.zeros((3, 4), dtype)
    assert bytes(memoryview(array).cast("B") if numpy.dtype(dtype).fields is None else seen.tobytes()) == bytes(
        array.nbytes
    )


def test_shapes(domain):
    assert domain.array(5, "f8").shape == (5,)
    assert domain.array((), "f8").numpy().shape == ()
    empty = domain.array((0, 3), "f4")
    assert (empty.numpy().size, empty.nbytes, len(empty)) == (0, 0, 0)
    assert domain.allocate(100).dtype == numpy.uint8
    for shape in [(2**62, 2**62), (0, 2**62, 2**62)]:
        with pytest.raises(ValueError, match="too many bytes"):
            domain.array(shape, "f8")
    with pytest.raises(TypeError, match="a shape is"):
        domain.array("x", "f8")
    with pytest.raises((OverflowError, TypeError, ValueError)):
        domain.array(-1, "f8")


@pytest.mark.parametrize("dtype", ["O", "M8[s]", "V0", ("f4", (2,)), [("o", "O")]])
def test_element_types_that_mean_nothing_elsewhere_are_refused(domain, dtype):
    with pytest.raises(TypeError):
        domain.array(1, dtype)


def test_memoryview_writes_into_it(domain):
    array = domain.array((2, 2), "i4")
    with memoryview(array) as view:
        assert (view.format, view.shape, view.strides, view.readonly) == ("i", (2, 2), (8, 4), False)
        view[1, 1] = 7
    assert array.numpy()[1, 1] == 7
    assert array.views == 0


def test_no_array_is_sent_while_a_view_lives(domain):
    port = domain.bind()
    right = port.make_send()
    array = domain.array(1000, "f4")
    seen = numpy.asarray(array)
    part = seen[10:]
    for hold in ["both", "part"]:
        if hold == "part":
            del seen
        with pytest.raises(BufferError, match="1 view of this array lives") as error:
            right.send(b"", array)
        assert error.value.views == 1
        assert not array.closed
        with pytest.raises(BufferError):
            array.close()
    part[:] = 3
    del part
    right.send(b"", array)
    assert array.closed
    _, array = port.receive(0)
    assert (array.numpy()[10:] == 3).all()


def test_a_closed_array_says_so(domain):
    port = domain.bind()
    array = domain.array(3, "u1")
    port.make_send().send(b"", array)
    for use in [memoryview, lambda a: a.numpy(), lambda a: a.address, lambda a: port.make_send().send(b"", a)]:
        with pytest.raises((portolan.Closed, BufferError, TypeError), match="closed"):
            use(array)
    array.close()
    assert "closed" in repr(array)


def test_a_view_ends_with_its_block(domain):
    port = domain.bind()
    array = domain.array((4, 4), "f8")
    with array.view() as v:
        v[:] = 2
        v[0] += 1
        v *= 2
        v[1:3, 0] = numpy.arange(2)
        numpy.copyto(v[3], 9)
        assert v.shape == (4, 4)
        assert v[0, 0] == 6
        assert (v + v)[0, 0] == 12
        assert numpy.sum(v) == v.sum()
        assert numpy.concatenate([v, v]).shape == (8, 4)
        numpy.add(v, 1, out=v)
    assert array.views == 0
    port.make_send().send(b"", array)
    for use in [lambda: v[0], lambda: v.sum(), lambda: numpy.asarray(v), lambda: len(v)]:
        with pytest.raises(portolan.Closed, match="over"):
            use()
    received = port.receive(0).array.numpy()
    assert received[:, 0].tolist() == [7, 1, 2, 10]


def test_a_view_that_leaked_is_told_of_at_the_end_of_its_block(domain):
    array = domain.array(10, "u1")
    with pytest.raises(BufferError, match="made from this view live"):
        with array.view() as v:
            leaked = v[2:]
    with pytest.raises(KeyError):
        with array.view() as v:
            leaked = numpy.asarray(v)
            raise KeyError
    assert array.views > 0
    del leaked, v
    gc.collect()
    assert array.views == 0


def test_views_in_cycles_are_released_by_the_collector(domain):
    array = domain.array(10, "u1")

    class Node:
        pass

    node = Node()
    node.itself, node.view = node, memoryview(array)
    del node
    gc.collect()
    assert array.views == 0


def test_memory_outlives_the_array_object_while_a_view_lives(domain):
    seen = domain.copy(numpy.arange(100_000)).numpy()
    gc.collect()
    others = [domain.copy(numpy.zeros(100_000)) for _ in range(3)]
    assert seen.sum() == numpy.arange(100_000).sum()
    del others


def test_dlpack_counts_as_a_view_until_its_deleter_has_run(domain):
    port = domain.bind()
    array = domain.array((2, 3), "f4")
    assert array.__dlpack_device__() == (1, 0)
    tensor = numpy.from_dlpack(array)
    assert tensor.ctypes.data == array.address
    with pytest.raises(BufferError):
        port.make_send().send(b"", array)
    capsule = array.__dlpack__()
    del tensor
    gc.collect()
    assert array.views == 1
    del capsule
    gc.collect()
    assert array.views == 0
    port.make_send().send(b"", array)


def test_cast_keeps_the_memory(domain):
    array = domain.copy(numpy.arange(6, dtype="<i4"))
    address = array.address
    other = array.cast("<i2", (3, 4))
    assert array.closed and other.address == address
    assert other.numpy()[0].tolist() == [0, 0, 1, 0]
    with pytest.raises(ValueError, match="24 bytes"):
        other.cast("f8", 4)
    assert not other.closed


def test_arrays_are_not_pickled(domain):
    with pytest.raises(TypeError, match="moved"):
        pickle.dumps(domain.allocate(1))


def test_with_frees_an_array(domain):
    with domain.array(5, "u1") as array:
        pass
    assert array.closed
    with pytest.raises(KeyError):
        with domain.array(5, "u1") as array:
            kept = array.numpy()
            raise KeyError
    assert not array.closed
    del kept


def test_the_limit_is_an_error_with_values(name):
    small = portolan.Domain.join(name, limit=32 << 20)
    with pytest.raises(portolan.AllocateError) as error:
        small.allocate(1 << 30)
    assert isinstance(error.value, MemoryError)
    assert (error.value.wanted, error.value.limit) == (1 << 30, 32 << 20)
