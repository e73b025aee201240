"""Segments, and signals of their addresses."""

import asyncio
import gc
import select
import threading
import weakref

import numpy
import pytest

import portolan


def test_a_segment_is_the_same_memory_everywhere(domain):
    made = domain.make_segment("counters", 100)
    found = domain.find_segment("counters")
    assert (found.address, len(found), found.nbytes, found.shape) == (made.address, 4096, 4096, (4096,))
    assert made.addresses == range(made.address, made.address + 4096)
    counters = numpy.asarray(made).view("u8")
    assert not counters.any()
    counters[3] = 7
    assert found.numpy().view("u8")[3] == 7
    assert memoryview(found)[24] == 7
    with pytest.raises(BufferError):
        made.close()
    del counters
    made.close()
    with pytest.raises(portolan.Closed):
        made.address
    assert found.numpy().view("u8")[3] == 7
    with pytest.raises(portolan.NoSuchPort):
        domain.find_segment("others", timeout=0.05)


def test_a_segment_is_sent_as_a_right(domain):
    port, segment = domain.bind(), domain.make_segment(None, 4096)
    segment.numpy()[0] = 9
    port.make_send().send(b"", rights=[segment])
    (received,) = port.receive(1).rights
    assert received.numpy()[0] == 9 and not segment.closed
    assert received.address == segment.address


def test_handlers_are_given_the_addresses_of_their_range(domain):
    segment = domain.make_segment(None, 4096)
    at = segment.address
    low, high = [], []
    with domain.listen(depth=4) as listener:
        first = listener.on(range(at, at + 64), low.append)
        second = listener.on(range(at + 32, at + 128), high.append, "doorbell")
        assert first != second and len({first, second}) == 2
        assert domain.signal(at + 5) == 1
        listener.wait(5)
        assert (low, high) == ([at + 5], [])
        assert domain.signal(at + 40) == 1
        assert listener.poll() == 2
        assert (low, high) == ([at + 5, at + 40], [at + 40])
        assert domain.signal(at + 128) == 0
        with pytest.raises(portolan.TimedOut):
            listener.wait(0.05)
        assert [domain.signal(at) for _ in range(6)] == [1, 1, 1, 1, 0, 0]
        assert (listener.depth, listener.dropped) == (4, 2)
        assert listener.poll() == 4
        assert listener.off(first) and not listener.off(first)
        assert domain.signal(at) == 0
        with pytest.raises(portolan.SignalError) as caught:
            domain.signal(64)
        assert caught.value.address == 64
        with pytest.raises(TypeError, match="range"):
            listener.on(at, print)
        with pytest.raises(ValueError, match="shouted"):
            listener.on(segment.addresses, print, "shouted")
        with pytest.raises(portolan.SignalError):
            listener.on(range(at, at), print)
    with pytest.raises(portolan.Closed):
        listener.poll()


def test_what_a_handler_raises_is_the_callers_and_the_next_one_still_runs(domain):
    segment = domain.make_segment(None, 4096)
    at = segment.address
    seen = []

    def strict(address):
        seen.append(address)
        if address == at:
            raise KeyError(address)

    listener = domain.listen()
    listener.on(segment.addresses, strict)
    for address in (at, at + 1, at + 2):
        domain.signal(address)
    with pytest.raises(KeyError):
        listener.poll()
    assert seen == [at]
    assert listener.poll() == 2
    assert seen == [at, at + 1, at + 2]


def test_a_handler_may_use_its_own_listener(domain):
    segment = domain.make_segment(None, 4096)
    at = segment.address
    seen = []
    listener = domain.listen()

    def once(address):
        seen.append(address)
        assert listener.off(handler)
        listener.on(segment.addresses, seen.append)
        domain.signal(at + 1)

    handler = listener.on(segment.addresses, once)
    domain.signal(at)
    listener.wait(5)
    listener.wait(5)
    assert seen == [at, at + 1]


def test_a_listener_is_awaited(domain):
    segment = domain.make_segment(None, 4096)
    seen = []

    async def main():
        listener = domain.listen()
        listener.on(segment.addresses, seen.append)
        for n in range(3):
            task = asyncio.create_task(listener.wait_async())
            await asyncio.sleep(0.02)
            assert not task.done()
            domain.signal(segment.address + n)
            assert await task == 1
        listener.close()

    asyncio.run(asyncio.wait_for(main(), 60))
    assert seen == [segment.address + n for n in range(3)]


def test_the_descriptor_is_readable_while_there_is_a_signal(domain):
    segment = domain.make_segment(None, 4096)
    listener = domain.listen()
    listener.on(segment.addresses, lambda address: None)
    poll = select.poll()
    poll.register(listener.fileno(), select.POLLIN)
    for _ in range(2):
        assert listener.poll() == 0
        assert poll.poll(50) == []
        domain.signal(segment.address)
        domain.signal(segment.address + 1)
        assert poll.poll(30_000)
        assert listener.poll() == 2


def test_another_thread_closes_a_listener_that_waits(domain):
    listener = domain.listen()
    timer = threading.Timer(0.2, listener.close)
    timer.start()
    with pytest.raises(portolan.Closed):
        listener.wait(30)
    timer.join()


def test_a_listener_in_a_cycle_is_collected(domain):
    segment = domain.make_segment(None, 4096)

    class Owner:
        def __init__(self):
            self.listener = domain.listen()
            self.listener.on(segment.addresses, self.look)

        def look(self, address):
            pass

    owner = weakref.ref(Owner())
    gc.collect()
    assert owner() is None
    assert domain.signal(segment.address) == 0


def test_a_write_to_a_channel_signals_the_address_of_its_unit(domain):
    channel = domain.make_channel()
    writer, reader = channel.bind_writer(), channel.bind_reader()
    places = []
    with domain.listen() as listener:
        listener.on(channel.addresses, lambda address: places.append(channel.place_of(address)))
        reader.enable()
        for n in range(3):
            writer.write(b"%d" % n)
            listener.wait(5)
        reader.disable()
        writer.write(b"3")
        assert listener.poll() == 0
    assert places == [0, 1, 2]
    assert channel.place_of(channel.addresses.stop) is None
    with pytest.raises(portolan.ChannelError):
        domain.make_channel(signal="never").bind_reader().enable()
    with pytest.raises(ValueError, match="loudly"):
        domain.make_channel(signal="loudly")
    assert domain.make_channel(signal=128).units == 1024


def write_rows(name, rows):
    with portolan.Domain.join(name) as domain:
        table = domain.find_segment("table", 60)
        for row in range(rows):
            table.numpy()[64 * row] = row + 1
            while domain.signal(table.address + 64 * row) == 0:
                pass


def test_another_process_signals(domain, name, spawn, patience):
    rows = 60
    table = domain.make_segment("table", 64 * rows)
    seen = {}
    listener = domain.listen(waiting="sleep")
    bytes_of = table.numpy()
    listener.on(table.addresses, lambda address: seen.update({address - table.address: bytes_of[address - table.address]}))
    spawn(write_rows, name, rows)
    while len(seen) < rows:
        listener.wait(patience)
    assert seen == {64 * row: row + 1 for row in range(rows)}
