"""Topics of numpy types."""

import numpy
import pytest

import portolan

POSE = numpy.dtype([("id", "<u4"), ("at", "<f8", (3,)), ("seen", "?")])


def test_structured_samples(domain):
    publisher = domain.publisher("poses", POSE, history=4)
    subscriber = domain.subscriber("poses", POSE, history=4)
    sample = numpy.zeros((), POSE)
    sample["id"], sample["at"] = 7, [1, 2, 3]
    publisher.publish(sample)
    publisher.publish([(8, (0, 0, 1), True), (9, (0, 0, 2), False)])
    first = subscriber.receive(10)
    assert (first.shape, first.dtype, first.publisher, first.position, first.missed) == ((), POSE, 0, 0, 0)
    assert (first.numpy()["id"], first.numpy()["at"].tolist()) == (7, [1, 2, 3])
    assert subscriber.receive(10).numpy()["id"].tolist() == [8, 9]
    with pytest.raises(portolan.TimedOut):
        subscriber.receive(0.05)


def test_long_samples_are_read_where_they_lie(domain):
    publisher = domain.publisher("pictures", "u1")
    subscribers = [domain.subscriber("pictures") for _ in range(2)]
    picture = numpy.random.default_rng(1).integers(0, 255, (1000, 2000, 3), "u1")
    publisher.publish(picture)
    samples = [subscriber.receive(10) for subscriber in subscribers]
    arrays = [numpy.asarray(sample) for sample in samples]
    assert (arrays[0] == picture).all()
    assert arrays[0].ctypes.data == arrays[1].ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][0] = 1
    with pytest.raises(BufferError):
        samples[0].close()
    del arrays
    samples[0].close()
    with pytest.raises((portolan.Closed, BufferError, ValueError)):
        memoryview(samples[0])


def test_another_type_is_an_error_and_the_next_sample_is_read(domain):
    floats = domain.publisher("mixed", "f8")
    ints = domain.publisher("mixed", "i4")
    subscriber = domain.subscriber("mixed", "f8")
    any_type = domain.subscriber("mixed")
    ints.publish([1, 2])
    floats.publish([1.5])
    seen, errors = [], 0
    for _ in range(2):
        try:
            seen.append(float(subscriber.receive(10).numpy()[0]))
        except portolan.OtherType:
            errors += 1
    assert (seen, errors) == ([1.5], 1)
    assert {any_type.receive(10).dtype.str for _ in range(2)} == {"<i4", "<f8"}
    with pytest.raises(TypeError):
        ints.publish(numpy.array([1.5]))
    assert floats.publish(numpy.array([2], "i4")) == 1


def test_bytes_have_no_description(domain):
    publisher = domain.publisher("raw", "u1")
    subscriber = domain.subscriber("raw")
    publisher.publish(numpy.arange(5, dtype="u1"))
    sample = subscriber.receive(10)
    assert bytes(sample) == bytes(range(5))
    for like in [b"<f4:2\x05\x00PtA1", b"12345678<f4:2\x05\x00PtA1", b"PtA1"]:
        publisher.publish(numpy.frombuffer(like, "u1"))
        sample = subscriber.receive(10)
        assert (bytes(sample), sample.dtype) == (like, numpy.uint8)


def publish(name):
    with portolan.Domain.join(name) as domain, domain.publisher("ticks", "i8", history=100) as publisher:
        for n in range(50):
            publisher.publish(n)
        # Its samples end with it, for a subscriber that has not looked yet.
        domain.connect("done", 60).request_reply(timeout=60)


def test_a_publisher_in_another_process(domain, name, spawn, patience):
    port = domain.bind("done", synchronous=True)
    subscriber = domain.subscriber("ticks", "i8", history=100)
    spawn(publish, name)
    assert [int(subscriber.receive(patience).numpy()) for _ in range(50)] == list(range(50))
    port.get_request(patience).reply()
