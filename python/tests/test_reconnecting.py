"""Senders and subscribers that outlive their peers."""

import threading
import time

import numpy
import pytest

import portolan
from portolan import reconnecting


def receive(name, _round):
    with portolan.Domain.join(name) as domain, domain.bind("frames") as port:
        report = domain.connect("report", 60)
        while True:
            header, array = port.receive()
            report.send(header, array)


def is_bound(domain, name):
    try:
        domain.connect(name).close()
        return True
    except portolan.NoSuchPort:
        return False


def test_a_sender_goes_on_when_its_receiver_is_killed_and_started_anew(domain, name, spawn, patience):
    report = domain.bind("report")
    with reconnecting.Sender(domain, "frames") as sender:
        with pytest.raises(portolan.NoSuchPort):
            sender.send(b"nobody yet", timeout=0.05)
        for round in range(3):
            process = spawn(receive, name, round)
            sent = sender.send(b"%d" % round, domain.copy(numpy.full(10, round)), timeout=patience)
            assert sent.receiver == round + 1
            # The receiver before had got its one message, but a sender knows only what a queue holds.
            assert sent.lost == (None if round == 0 else (round, 1, 1))
            header, array = report.receive(patience)
            assert (header, array.numpy()[0]) == (b"%d" % round, round)
            process.kill()
            process.join()
            # Until the host has closed the dead process's port, messages go into its queue.
            end = time.monotonic() + patience
            while is_bound(domain, "frames"):
                assert time.monotonic() < end
        assert sender.take_lost() == (3, 1, 1) and sender.take_lost() is None
        last = domain.allocate(5)
        with pytest.raises(portolan.NoSuchPort):
            sender.send(b"nobody any more", last, timeout=0.2)
        assert not last.closed


def test_a_subscriber_goes_on_after_a_sample_of_another_type(domain):
    right, wrong = domain.publisher("poses", "f8"), domain.publisher("poses", "i4")
    with reconnecting.Subscriber(domain, "poses", "f8") as subscriber:
        with pytest.raises(portolan.TimedOut):
            subscriber.receive(0.05)
        right.publish(1.0)
        assert subscriber.receive(10).numpy() == 1.0
        wrong.publish(1)
        right.publish(2.0)
        assert subscriber.receive(10).numpy() == 2.0


def publish(name, value):
    with portolan.Domain.join(name) as domain, domain.publisher("poses", "f8") as publisher:
        while True:
            publisher.publish(value)
            time.sleep(0.01)


def test_a_subscriber_follows_the_next_publisher(domain, name, spawn, patience):
    with reconnecting.Subscriber(domain, "poses", "f8") as subscriber:
        for value in [1.0, 2.0]:
            process = spawn(publish, name, value)
            while (sample := subscriber.receive(patience)).numpy() != value:
                pass
            process.kill()
            process.join()
            while not isinstance(gone := subscriber.receive(patience), reconnecting.Gone):
                sample = gone
            assert (gone.publisher, gone.next) == (sample.publisher, sample.position + 1 + gone.missed)


def test_what_was_lost_is_told_at_most(domain):
    with reconnecting.Sender(domain, "jobs") as sender:
        with domain.bind("jobs", queue=7) as port:
            for n in range(40):
                assert sender.send(b"%d" % n, timeout=1) == (1, None)
                assert port.receive(1).header == b"%d" % n
        with domain.bind("jobs") as port:
            lost = sender.send(b"40", timeout=1).lost
            # Its queue held no more.
            assert (lost.receiver, lost.sent) == (1, 40) and 0 < lost.at_most <= 8
            assert port.receive(1).header == b"40"


def test_a_request_goes_to_the_next_server(domain):
    def serve():
        for round in range(2):
            with domain.bind("upper", synchronous=True, timeout=30) as port, port.get_request(30) as request:
                request.reply(request.header.upper() + b"%d" % round)

    server = threading.Thread(target=serve)
    server.start()
    with reconnecting.Sender(domain, "upper") as sender:
        assert sender.request_reply(b"a", timeout=30).header == b"A0"
        try:
            answer = sender.request_reply(b"b", timeout=30)
        except portolan.ServerDead:
            # It went to the first one, which closed its port: it is not asked again by itself.
            answer = sender.request_reply(b"b", timeout=30)
        assert answer.header == b"B1"
        server.join()
        with pytest.raises(portolan.NoSuchPort):
            sender.request_reply(b"c", timeout=0.05)


def test_a_name_is_bound_when_it_is_free(domain):
    first = domain.bind("jobs")
    with pytest.raises(portolan.NameTaken):
        domain.bind("jobs")
    with pytest.raises(portolan.NameTaken):
        domain.bind("jobs", timeout=0.05)
    timer = threading.Timer(0.1, first.close)
    timer.start()
    with domain.bind("jobs", timeout=30) as port:
        assert port.name == "jobs"
    timer.join()
