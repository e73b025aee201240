"""Ports that are offered to other domains: who may connect, what comes, and what an end of either does."""

import os

import numpy
import pytest

import portolan

TOKEN = bytes(range(16))


@pytest.fixture
def other(name):
    """A domain beside the test's."""
    with portolan.Domain.join(f"{name}-other", limit=1 << 30) as joined:
        yield joined


def test_messages_and_requests_go_over_as_copies(domain, other, name, patience):
    with domain.bind() as port, port.offer("mail") as offered, other.connect_to(name, "mail", timeout=patience) as right:
        assert offered.clients == 1
        array = other.copy(numpy.arange(100_000, dtype="i4").reshape(100, 1000))
        right.send(b"numbers", array, timeout=patience)
        assert array.closed
        header, came = port.receive(timeout=patience)
        assert header == b"numbers"
        assert (numpy.asarray(came) == numpy.arange(100_000).reshape(100, 1000)).all()
        assert offered.take_violations() == []
    with domain.bind(synchronous=True) as port, port.offer("questions"):
        right = other.connect_to(name, "questions", timeout=patience)
        pending = right.begin_request(b"who?", timeout=patience)
        with port.get_request(timeout=patience) as request:
            assert request.header == b"who?"
            request.reply(b"we")
        assert pending.wait(timeout=patience).header == b"we"


def test_an_offer_is_for_those_that_it_names(domain, other, name, patience):
    with domain.bind() as port:
        with port.offer("others", users=[os.getuid() + 1]), pytest.raises(portolan.ConnectError):
            other.connect_to(name, "others", timeout=patience)
        with port.offer("secret", token=TOKEN):
            for wrong in (None, bytes(16)):
                with pytest.raises(portolan.ConnectError):
                    other.connect_to(name, "secret", token=wrong, timeout=patience)
            other.connect_to(name, "secret", token=TOKEN, of_user=os.getuid(), timeout=patience).close()
        with port.offer("open", anyone=True):
            other.connect_to(name, "open", timeout=patience).close()
        for short in (b"", bytes(15), bytes(17)):
            with pytest.raises(ValueError, match="16 bytes"):
                port.offer("short", token=short)
        with port.offer("twice"), pytest.raises(portolan.OfferError):
            port.offer("twice")
    with pytest.raises(portolan.ConnectError):
        other.connect_to(name, "never", timeout=0.05)


def test_what_an_offer_does_not_take_stays_the_senders(domain, other, name, patience):
    with domain.bind() as port, port.offer("short", most_bytes=1 << 20):
        right = other.connect_to(name, "short", timeout=patience)
        much = other.array(2 << 20, "u1")
        with pytest.raises(portolan.SendError, match="bytes"):
            right.send(b"", much, timeout=patience)
        assert not much.closed
        with pytest.raises(portolan.SendError):
            right.send(rights=[port.make_send()], timeout=patience)


def test_a_withdrawn_offer_leaves_dead_names(domain, other, name, patience):
    with domain.bind() as port, other.bind() as watcher:
        offered = port.offer("mail")
        right = other.connect_to(name, "mail", timeout=patience)
        right.watch(watcher, 7)
        offered.close()
        told = watcher.receive(timeout=patience)
        assert (told.notice, told.token) == ("DeadName", 7)
        assert not right.is_live()
        with pytest.raises(portolan.Closed):
            offered.clients
