"""Channels: each reader at its own pace, what it missed, and deaths of writers."""

import asyncio
import select

import numpy
import pytest

import portolan


def test_a_message_is_written_once_for_all_readers(domain):
    channel = domain.make_channel("temperature", content=7)
    assert (channel.unit, channel.units, channel.content, channel.writer) == (64, 1024, 7, None)
    found = domain.find_channel("temperature")
    readers = [found.bind_reader() for _ in range(3)]
    with channel.bind_writer() as writer:
        assert channel.writer == domain.space
        position = writer.write(b"21.5")
        writer.write(numpy.arange(100.0))
        for reader in readers:
            received = reader.receive(1)
            assert (received.data, received.position, received.is_complete()) == (b"21.5", position, True)
            assert (numpy.frombuffer(reader.receive(1).data) == numpy.arange(100.0)).all()
            assert reader.position == writer.position
            with pytest.raises(portolan.TimedOut):
                reader.receive(0.01)
        with pytest.raises(portolan.WriteError) as caught:
            writer.write(bytes(channel.longest + 1))
        assert (caught.value.len, caught.value.most) == (channel.longest + 1, channel.longest)
    with pytest.raises(portolan.WriterGone):
        readers[0].receive(1)
    assert not readers[0].has_writer()
    with pytest.raises(portolan.NoSuchPort):
        domain.find_channel("humidity", timeout=0.05)
    with domain.make_segment("plain", 4096), pytest.raises(portolan.ChannelError, match="plain"):
        domain.find_channel("plain")


def test_a_slow_reader_is_told_what_it_missed(domain):
    channel = domain.make_channel(units=8)
    reader, writer = channel.bind_reader(), channel.bind_writer()
    for n in range(20):
        writer.write(b"%d" % n)
    with pytest.raises(portolan.Missed) as caught:
        reader.receive(1)
    assert caught.value.start == 0
    assert reader.receive(1).data == b"%d" % caught.value.stop
    late = channel.bind_reader(since=2)
    assert [late.receive(1).data for _ in range(2)] == [b"18", b"19"]


def test_the_writer_of_a_reliable_channel_waits_as_each_reader_chose(domain):
    channel = domain.make_channel(units=4, readers=2, reliable=True)
    assert channel.is_reliable() and not channel.has_many_writers()
    writer, reader = channel.bind_writer(), channel.bind_reader()
    for n in range(4):
        writer.write(b"%d" % n)
    with pytest.raises(portolan.Full) as caught:
        writer.write(b"4", timeout=0.05)
    assert (caught.value.room, caught.value.wanted) == (0, 1)
    with pytest.raises(portolan.Full) as caught:
        writer.append(b"x" * 48 * 3, timeout=0)
    assert caught.value.added == 0
    assert [reader.receive(1).data for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    reader.close()
    lagging = channel.bind_reader(lagging="drop")
    skipping = channel.bind_reader(lagging="skip")
    with pytest.raises(portolan.ChannelError) as error:
        channel.bind_reader()
    assert error.value.entries == 2
    for n in range(9):
        writer.write(b"%d" % n, timeout=5)
    with pytest.raises(portolan.Lagged):
        while True:
            lagging.receive(1)
    with pytest.raises(portolan.Missed):
        skipping.receive(1)
    with pytest.raises(ValueError, match="polite"):
        channel.bind_reader(lagging="polite")


def test_a_message_is_read_while_it_is_written(domain):
    channel = domain.make_channel(reliable=True)
    writer, reader = channel.bind_writer(), channel.bind_reader()
    writer.append(b"to be ")
    writer.show()
    piece = reader.receive_some(1)
    assert (piece.data, piece.is_complete()) == (b"to be ", False)
    writer.append(bytearray(b"continued"))
    writer.end()
    assert reader.receive(1).data == b"to be continued"
    with pytest.raises(portolan.ChannelError):
        domain.make_channel(many_writers=True, reliable=True)
    many = domain.make_channel(many_writers=True)
    first, second, heard = many.bind_writer(), many.bind_writer(), many.bind_reader()
    first.write(b"1")
    second.write(b"2")
    assert [heard.receive(1).data for _ in range(2)] == [b"1", b"2"]
    with pytest.raises(portolan.WriteError):
        first.append(b"3")


def test_a_channel_travels_as_a_segment(domain):
    port = domain.bind()
    channel = domain.make_channel()
    port.make_send().send(b"", rights=[channel])
    (segment,) = port.receive(1).rights
    assert isinstance(segment, portolan.Segment)
    same = portolan.Channel.of_segment(domain, segment)
    writer, reader = channel.bind_writer(), same.bind_reader()
    writer.write(b"hello")
    assert reader.receive(1).data == b"hello"
    with pytest.raises(portolan.ChannelError):
        portolan.Channel.of_segment(domain, domain.make_segment(None, 4096))


def test_a_reader_is_awaited_and_has_a_descriptor(domain):
    channel = domain.make_channel()
    writer, reader = channel.bind_writer(), channel.bind_reader()

    async def main():
        task = asyncio.create_task(reader.receive_async())
        await asyncio.sleep(0.05)
        assert not task.done()
        writer.write(b"awaited")
        assert (await task).data == b"awaited"

    asyncio.run(asyncio.wait_for(main(), 60))
    poll = select.poll()
    poll.register(reader.fileno(), select.POLLIN)
    with pytest.raises(portolan.TimedOut):
        reader.receive(0)
    assert poll.poll(50) == []
    writer.write(b"more")
    assert poll.poll(30_000)
    assert reader.receive(0).data == b"more"


def write(name, first):
    with portolan.Domain.join(name) as domain:
        writer = domain.find_channel("numbers", 60).bind_writer()
        for n in range(first, first + 100):
            writer.write(b"%d" % n, timeout=60)
        domain.connect("written").request_reply(timeout=60)


def test_the_next_writer_goes_on_after_a_death(domain, name, spawn, patience):
    port = domain.bind("written", synchronous=True)
    channel = domain.make_channel("numbers", reliable=True, units=64)
    reader = channel.bind_reader()
    for first in (0, 100):
        process = spawn(write, name, first)
        for n in range(first, first + 100):
            assert reader.receive(patience).data == b"%d" % n
        # It is alive, and has written all.
        port.get_request(patience)
        process.kill()
        with pytest.raises(portolan.WriterGone):
            reader.receive(patience)
