"""Messages, requests and rights, between threads and processes."""

import os
import select
import signal
import threading
import time

import numpy
import pytest

import portolan


def test_a_message_is_what_was_sent(domain):
    port = domain.bind("frames")
    right = domain.connect("frames")
    floats = domain.copy(numpy.arange(12, dtype="<f4").reshape(3, 4))
    raw = domain.copy(numpy.arange(5, dtype="u1"))
    address = floats.address
    right.send(b"header", floats, raw)
    header, first, second = message = port.receive(1)
    assert [*message] == [header, first, second]
    assert (header, first.shape, first.dtype, second.dtype) == (b"header", (3, 4), numpy.float32, numpy.uint8)
    assert first.address == address
    assert first.numpy().sum() == 66
    with message:
        pass
    assert first.closed


def test_headers_that_look_like_descriptions_are_what_they_are(domain):
    port = domain.bind()
    right = port.make_send()
    for header in [b"PtA1", b"<f4:2\x05\x00PtA1", b"\x00\x00PtA1", bytes(4000)]:
        right.send(header, domain.allocate(8))
        message = port.receive(0)
        assert message.header == header
        assert message.array.shape == (8,)


def test_what_is_not_sent_stays_the_senders(domain):
    port = domain.bind(queue=1)
    right = port.make_send()
    arrays = [domain.copy(numpy.full(4, n)) for n in range(3)]
    while True:
        try:
            right.send(b"fills", timeout=0)
        except portolan.Full as error:
            assert error.slots >= 1
            break
    begin = time.monotonic()
    with pytest.raises(portolan.Full):
        right.send(b"", *arrays, timeout=0.2)
    assert time.monotonic() - begin > 0.1
    with pytest.raises(portolan.MessageError) as error:
        right.send(bytes(5000), *arrays)
    assert error.value.len >= 5000 and error.value.limit == 4096
    with pytest.raises(portolan.Closed, match="being sent"):
        right.send(b"", arrays[0], arrays[1], arrays[0])
    with pytest.raises(TypeError, match="arrays of the domain"):
        right.send(b"", arrays[0], numpy.zeros(3))
    port.close()
    with pytest.raises(portolan.DeadName):
        right.send(b"", *arrays)
    assert [array.numpy()[0] for array in arrays] == [0, 1, 2]
    assert right.state == "Dead"


def test_descriptions_of_many_arrays(domain):
    port = domain.bind()
    shapes = [(2, 3)] * 300 + [(n,) for n in range(1, 300)] + [()] * 300
    dtypes = ["f4"] * 300 + ["u1"] * 299 + [[("a", "i4"), ("b", "f8", (2,))]] * 300
    arrays = [domain.array(shape, dtype) for shape, dtype in zip(shapes, dtypes)]
    port.make_send().send(b"many", *arrays)
    message = port.receive(0)
    assert message.header == b"many"
    assert [array.shape for array in message.arrays] == shapes
    assert [array.dtype for array in message.arrays] == [numpy.dtype(dtype) for dtype in dtypes]
    arrays = [domain.array(n, "f8") for n in range(1000)]
    with pytest.raises(portolan.MessageError, match="header"):
        port.make_send().send(b"", *arrays)
    assert not any(array.closed for array in arrays)


def test_an_array_of_another_domain_is_refused(domain):
    other = portolan.Domain.private()
    port = domain.bind()
    array = other.allocate(10)
    with pytest.raises(portolan.SendError, match="another domain"):
        port.make_send().send(b"", array)
    assert not array.closed


def test_names(domain):
    with pytest.raises(portolan.NoSuchPort) as error:
        domain.connect("nobody")
    assert error.value.name == "nobody"
    port = domain.bind("taken")
    with pytest.raises(portolan.NameTaken) as error:
        domain.bind("taken")
    assert (error.value.name, error.value.owner) == ("taken", domain.space)
    assert port.name == "taken"
    with pytest.raises(portolan.ConnectError):
        domain.connect("no/name\0", 1)


def test_a_wait_has_a_deadline_and_ends_when_the_port_is_closed(domain):
    port = domain.bind()
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        port.receive(0.15)
    assert time.monotonic() - begin >= 0.15
    caught = []

    def wait():
        try:
            port.receive()
        except portolan.Closed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    port.close()
    thread.join(30)
    assert caught and port.closed


def test_a_thread_that_waits_lets_others_run(domain):
    port = domain.bind()
    thread = threading.Thread(target=lambda: port.receive(30))
    thread.start()
    begin = time.monotonic()
    while time.monotonic() - begin < 0.3:
        pass
    port.make_send().send(b"done")
    thread.join(30)
    assert not thread.is_alive()


def test_threads_take_turns_at_a_port(domain):
    port = domain.bind()
    right = port.make_send()
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(port.receive(30).header)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for n in range(4):
        right.send(b"%d" % n)
    for thread in threads:
        thread.join(30)
    assert sorted(seen) == [b"0", b"1", b"2", b"3"]


def test_a_signal_interrupts_a_wait(domain):
    port = domain.bind()
    # A program that a shell starts in the background ignores the signal otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            port.receive(30)
        assert time.monotonic() - begin < 20
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    port.make_send().send(b"still there")
    assert port.receive(1).header == b"still there"


def test_the_descriptor_is_readable_while_there_is_something(domain):
    port = domain.bind()
    right = port.make_send()
    poll = select.poll()
    poll.register(port.fileno(), select.POLLIN)

    def drain():
        taken = 0
        while port._poll() is not None:
            taken += 1
        return taken

    drain()
    assert poll.poll(50) == []
    right.send(b"one")
    right.send(b"two")
    assert poll.poll(30_000)
    assert drain() == 2
    assert poll.poll(50) == []
    # As a loop around `select` does it.
    with pytest.raises(portolan.TimedOut):
        port.receive(0)
    assert poll.poll(50) == []
    right.send(b"three")
    assert poll.poll(30_000)
    assert port.receive(1).header == b"three"


def test_requests_are_answered(domain):
    port = domain.bind("sums", synchronous=True)

    def serve():
        for _ in range(2):
            with port.get_request(30) as request:
                (array,) = request.arrays
                with array.view() as v:
                    v *= 2
                request.reply(b"doubled", array)
        with port.get_request(30):
            pass

    server = threading.Thread(target=serve)
    server.start()
    right = domain.connect("sums")
    array = domain.copy(numpy.arange(4.0))
    header, array = right.request_reply(b"double", array, timeout=30)
    assert (header, array.numpy().tolist()) == (b"doubled", [0, 2, 4, 6])
    pending = right.begin_request(b"double", array)
    assert pending.wait(30).array.numpy().tolist() == [0, 4, 8, 12]
    with pytest.raises(portolan.Dropped):
        right.request_reply(b"drop this", timeout=30)
    server.join()
    with pytest.raises(portolan.TimedOut):
        right.request_reply(b"nobody serves", timeout=0.1)
    with pytest.raises(portolan.SendError, match="synchronous"):
        right.send(b"")
    port.close()
    mine = domain.allocate(5)
    with pytest.raises(portolan.DeadName):
        right.request_reply(b"", mine)
    assert not mine.closed


def test_an_answer_to_a_client_that_is_gone_stays_the_servers(domain):
    port = domain.bind(synchronous=True)
    port.make_send().begin_request(b"").close()
    request = port.get_request(1)
    array = domain.allocate(5)
    with pytest.raises(portolan.DeadName):
        request.reply(b"", array)
    assert not array.closed
    with pytest.raises(portolan.Closed):
        request.reply(b"")


def test_rights_travel(domain):
    port = domain.bind()
    other = domain.bind()
    other.make_send().send(b"kept in its queue")
    right = port.make_send()
    right.send(b"rights", rights=[right, other])
    assert other.closed
    with pytest.raises(portolan.Closed):
        other.receive(0)
    send, receive = port.receive(1).rights
    assert receive.receive(0).header == b"kept in its queue"
    send.send(b"by the clone")
    assert port.receive(0).header == b"by the clone"
    port.close()
    with pytest.raises(portolan.DeadName):
        right.send(b"", rights=[receive])
    assert not receive.closed
    for wrong in [receive, [3]]:
        with pytest.raises(TypeError):
            right.send(b"", rights=wrong)


def test_notices(domain):
    port = domain.bind()
    watched = domain.bind()
    right = watched.make_send()
    right.watch(port, 7)
    watched.close()
    message = port.receive(10)
    assert (message.notice, message.token) == ("DeadName", 7)
    mine = port.make_send()
    port.request_no_more_senders()
    mine.close()
    assert port.receive(10).notice == "NoMoreSenders"


def echo(name):
    with portolan.Domain.join(name) as domain, domain.bind("echo", synchronous=True) as port:
        while True:
            with port.get_request() as request:
                if request.header == b"die":
                    os.kill(os.getpid(), signal.SIGKILL)
                request.reply(request.header, *request.arrays)


def test_another_process_has_the_same_memory_and_its_death_is_told(domain, name, spawn, patience):
    process = spawn(echo, name)
    right = domain.connect("echo", patience)
    array = domain.copy(numpy.arange(1 << 20))
    address = array.address
    header, array = right.request_reply(b"over and back", array, timeout=patience)
    assert (header, array.address) == (b"over and back", address)
    assert array.numpy()[-1] == (1 << 20) - 1
    notices = domain.bind()
    right.watch(notices, 1)
    begin = time.monotonic()
    with pytest.raises(portolan.ServerDead):
        right.request_reply(b"die", array)
    assert time.monotonic() - begin < patience
    process.join(patience)
    assert process.exitcode == -signal.SIGKILL
    assert notices.receive(patience).notice == "DeadName"
    with pytest.raises(portolan.DeadName):
        right.send(b"")


def hold(name):
    domain = portolan.Domain.join(name)
    arrays = [domain.copy(numpy.zeros(8 << 20, "u1")) for _ in range(4)]
    domain.connect("told", 60).send(b"held")
    time.sleep(600)
    del arrays


def test_memory_of_a_killed_process_comes_back(name, spawn, patience):
    domain = portolan.Domain.join(name, limit=48 << 20)
    port = domain.bind("told")
    process = spawn(hold, name)
    assert port.receive(patience).header == b"held"
    with pytest.raises(portolan.AllocateError):
        domain.allocate(32 << 20)
    process.kill()
    process.join()
    end = time.monotonic() + patience
    while True:
        try:
            domain.allocate(32 << 20).close()
            break
        except portolan.AllocateError:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_a_forked_child_is_told_that_it_is_no_member(domain):
    array = domain.allocate(10)
    port = domain.bind()
    child = os.fork()
    if child == 0:
        told = 0
        for use in [lambda: memoryview(array), lambda: port.receive(0), lambda: domain.allocate(5), domain.bind]:
            try:
                use()
            except portolan.Disowned:
                told += 1
            except BaseException:
                pass
        os._exit(told)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 4
    assert array.numpy().shape == (10,)


def test_leaving(name):
    domain = portolan.Domain.join(name)
    port = domain.bind()
    with pytest.raises(portolan.LeaveError) as error:
        domain.leave()
    assert error.value.handles >= 1
    with pytest.raises(portolan.Closed):
        domain.bind()
    port.close()
    with pytest.raises(portolan.JoinError):
        portolan.Domain.join(name, create=False)
    with portolan.Domain.join(name) as domain:
        assert domain.is_host()
