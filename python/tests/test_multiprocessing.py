"""Queue and Pool, as stand-ins for the standard library's."""

import gc
import multiprocessing
import os
import queue
import signal
import threading
import time

import numpy
import pytest

import portolan
from portolan._codec import pack, unpack
from portolan.multiprocessing import Pool, Process, Queue


class Thing:
    """Something to pickle."""

    def __init__(self, *parts):
        self.parts = parts

    def __eq__(self, other):
        return self.parts == other.parts


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, "two", {3: 4.0}],
        Thing(b"x" * 10, "y" * 5000),
        b"z" * 2_000_000,
        [f"{n}" * 20 for n in range(500)],
    ],
    ids=["none", "small", "thing", "long bytes", "many"],
)
def test_objects_travel(domain, value):
    port = domain.bind()
    header, arrays = pack(domain, value)
    port.make_send().send(header, *arrays)
    assert unpack(port.receive(0)) == value


def test_arrays_move_and_numpy_arrays_are_copied_once(domain):
    port = domain.bind()
    mine = domain.copy(numpy.arange(10))
    address = mine.address
    big, small, fortran = numpy.arange(1000.0), numpy.arange(3), numpy.ones((50, 60), order="F")
    fixed = numpy.arange(2000)
    fixed.flags.writeable = False
    header, arrays = pack(domain, {"mine": mine, "again": mine, "list": [big, small, fortran, fixed]})
    assert len(arrays) == 2 and mine.views == 0
    port.make_send().send(header, *arrays)
    assert mine.closed
    got = unpack(port.receive(0))
    assert got["mine"] is got["again"] and got["mine"].address == address
    for sent, received in zip([big, small, fortran, fixed], got["list"]):
        assert (sent == received).all() and sent.dtype == received.dtype
    got["list"][0][:] = 1
    assert not got["list"][3].flags.writeable


def test_what_cannot_be_pickled_leaves_arrays_as_they_were(domain):
    mine = domain.allocate(100)
    with pytest.raises(Exception, match="pickle"):
        pack(domain, [mine, lambda: 0])
    assert mine.views == 0 and not mine.closed


def test_a_queue_in_one_process():
    q = Queue()
    assert q.empty() and q.qsize() == 0 and not q.full()
    for n in range(5000):
        q.put(n)
    assert q.qsize() == 5000
    assert [q.get() for _ in range(5000)] == list(range(5000))
    with pytest.raises(queue.Empty):
        q.get(timeout=0.05)
    with pytest.raises(queue.Empty):
        q.get_nowait()
    array = q.domain.copy(numpy.arange(100))
    q.put((array, "with it"))
    assert array.closed
    moved, text = q.get(timeout=10)
    assert moved.numpy().sum() == 4950 and text == "with it"
    q.close()
    with pytest.raises(ValueError):
        q.put(1)


def test_a_queue_whose_maker_dropped_it_says_so():
    q = Queue()
    other = Queue.__new__(Queue)
    other.__setstate__((q.domain.name, q._name, 0))
    caught = []

    def wait():
        try:
            other.get()
        except portolan.RequestError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    del q
    gc.collect()
    thread.join(30)
    assert caught
    with pytest.raises(portolan.DeadName):
        other.put(1)


def test_a_bounded_queue_is_full():
    q = Queue(maxsize=3)
    count = 0
    with pytest.raises(queue.Full):
        while True:
            q.put(count, timeout=0.05)
            count += 1
    assert 3 <= count <= 8 and q.full()
    with pytest.raises(queue.Full):
        q.put_nowait("no room")
    thread = threading.Thread(target=q.put, args=("waits",))
    thread.start()
    assert [q.get() for _ in range(count)] == list(range(count))
    assert q.get(timeout=30) == "waits"
    thread.join()


def work(tasks, results):
    while True:
        task = tasks.get()
        if task is None:
            return
        with task.view() as v:
            v *= 2
        results.put((os.getpid(), task))


def test_several_processes_get_from_one_queue(patience):
    tasks, results = Queue(), Queue()
    workers = [Process(target=work, args=(tasks, results), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for n in range(100):
        tasks.put(tasks.domain.copy(numpy.full(1000, n)))
    seen = [results.get(timeout=patience) for _ in range(100)]
    assert sorted(array.numpy()[0] for _, array in seen) == [2 * n for n in range(100)]
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join(patience)
        assert worker.exitcode == 0


def wait_with_port(tasks, alive):
    tasks.get()
    with tasks.domain.bind(alive):
        tasks.get()
        time.sleep(600)


def test_a_process_that_is_killed_while_it_waits_takes_nothing(patience):
    tasks = Queue()
    worker = Process(target=wait_with_port, args=(tasks, "alive"), daemon=True)
    worker.start()
    tasks.put("for the worker")
    tasks.domain.connect("alive", patience).close()
    time.sleep(0.2)
    worker.kill()
    worker.join()
    # Until the host has closed its ports, an answer goes to the dead.
    end = time.monotonic() + patience
    while is_bound(tasks.domain, "alive"):
        assert time.monotonic() < end
    tasks.put("for the living")
    assert tasks.get(timeout=patience) == "for the living"


def is_bound(domain, name):
    try:
        domain.connect(name).close()
        return True
    except portolan.NoSuchPort:
        return False


def make_and_die(found):
    q = Queue()
    found.put(q.domain.name)
    with q.domain.bind("name of the queue", synchronous=True) as port:
        with port.get_request(60) as request:
            request.reply(q._name.encode())
    time.sleep(600)


def test_a_queue_whose_maker_died_says_so_at_once(spawn, patience):
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = spawn(make_and_die, found)
    name = found.get(timeout=patience)
    domain = portolan.Domain.join(name)
    queue_name = domain.connect("name of the queue", patience).request_reply(b"").header.decode()
    q = Queue.__new__(Queue)
    q.__setstate__((name, queue_name, 0))
    q.put("one")
    caught = []

    def wait():
        assert q.get() == "one"
        try:
            q.get()
        except portolan.ServerDead as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    process.kill()
    thread.join(patience)
    assert caught
    with pytest.raises(portolan.DeadName):
        q.put("two")


def square(x):
    return x * x


def add(a, b):
    return a + b


def double(array):
    with array.view() as v:
        v *= 2
    return array


def total(array):
    return float(array.sum())


def fail(x):
    raise KeyError(f"no {x}")


def die(x):
    if x == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def started(value):
    global given
    given = value


def what_was_given(_):
    return given


def echo(value):
    return value


@pytest.fixture(scope="module")
def pool():
    with Pool(2) as made:
        yield made


def test_map_and_its_relatives(pool):
    assert pool.map(square, range(100)) == [n * n for n in range(100)]
    assert pool.map(square, []) == []
    assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
    assert list(pool.imap(square, range(10), chunksize=3)) == [n * n for n in range(10)]
    assert sorted(pool.imap_unordered(square, range(10))) == [n * n for n in range(10)]
    assert pool.apply(add, (1,), {"b": 5}) == 6
    done = []
    result = pool.map_async(square, [1, 2], callback=done.append)
    assert result.get(60) == [1, 4]
    result.wait(60)
    assert result.successful() and done == [[1, 4]]


def test_arrays_move_there_and_back(pool):
    arrays = [pool.domain.copy(numpy.full(1000, n)) for n in range(300)]
    addresses = {array.address for array in arrays}
    results = pool.map(double, arrays)
    assert all(array.closed for array in arrays)
    assert [int(result.numpy()[0]) for result in results] == [2 * n for n in range(300)]
    assert {result.address for result in results} == addresses
    assert pool.map(total, [numpy.ones(n) for n in (10, 100_000)]) == [10, 100_000]
    back = pool.apply(echo, (numpy.arange(50_000),))
    assert back.sum() == numpy.arange(50_000).sum()


def test_more_arrays_than_a_message_carries(pool):
    arrays = [pool.domain.copy(numpy.full(10, n)) for n in range(1500)]
    results = pool.map(double, arrays, chunksize=1500)
    assert [int(result.numpy()[0]) for result in results] == [2 * n for n in range(1500)]


def test_what_a_function_raises_is_raised_here(pool):
    with pytest.raises(KeyError, match="no 1") as error:
        pool.map(fail, [1])
    assert "in fail" in str(error.value.__cause__)
    with pytest.raises(Exception, match="pickle"):
        pool.apply(echo, (lambda: 0,))
    with pytest.raises(multiprocessing.TimeoutError):
        pool.apply_async(time.sleep, (1,)).get(0.01)


def test_a_workers_death_is_reported_and_another_takes_its_place(patience):
    with Pool(2) as pool:
        results = [pool.apply_async(die, (n,)) for n in range(8)]
        failed = 0
        for n, result in enumerate(results):
            try:
                assert result.get(patience) == n
            except portolan.errors.WorkerDied as error:
                failed += 1
                assert (error.exitcode, error.pid > 0) == (-signal.SIGKILL, True)
        assert 1 <= failed <= 2
        assert pool.map(square, range(20)) == [n * n for n in range(20)]


def test_an_initializer_runs_and_one_that_fails_is_reported(patience):
    with Pool(1, started, ("this",)) as pool:
        assert pool.apply(what_was_given, (0,)) == "this"
    with Pool(1, fail, ("start",)) as pool:
        with pytest.raises(portolan.errors.WorkerDied):
            pool.apply_async(square, (2,)).get(patience)


def test_a_closed_pool_does_its_work(patience):
    pool = Pool(1)
    results = [pool.apply_async(square, (n,)) for n in range(10)]
    pool.close()
    with pytest.raises(ValueError):
        pool.apply(square, (1,))
    pool.join()
    assert [result.get(patience) for result in results] == [n * n for n in range(10)]


def test_a_pool_that_is_dropped_ends_its_workers(patience):
    pool = Pool(1)
    worker = pool.apply(os.getpid)
    del pool
    gc.collect()
    end = time.monotonic() + patience
    while is_alive(worker):
        assert time.monotonic() < end, "the worker goes on"
        time.sleep(0.05)


def make_a_pool(found):
    pool = Pool(1)
    found.put(pool.apply(os.getpid))
    time.sleep(600)


def test_workers_end_when_their_pool_is_killed(patience):
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    # Not a daemon: those may start no processes.
    process = context.Process(target=make_a_pool, args=(found,))
    process.start()
    worker = found.get(timeout=patience)
    process.kill()
    process.join()
    end = time.monotonic() + patience
    while is_alive(worker):
        assert time.monotonic() < end, "the worker goes on"
        time.sleep(0.05)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
