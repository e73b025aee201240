"""Hands arrays to another process, by Portolan and by what people use, in one run.

    python -m venv target/python/bench
    target/python/bench/bin/pip install './python[bench]'    # numpy, pyzmq and iceoryx2 too
    target/python/bench/bin/python python/bench/handover.py --json handover.json

`--quick` runs everything once, in seconds, and measures nothing of worth. A row is the time, in
microseconds, from having an array to the small answer that the other process gives once it has looked
at it: in *edges* both sides touch its first and last byte, in *whole* one writes every byte and the
other reads it. Each message takes new memory of the system's own kind, as a camera or a loader would.
Then `Pool.map` over 1,000 arrays, and what one small message of Python takes. Figures are medians, with
the middle half of the measurements. Run it alone on a machine: the load is noted, and whatever else
runs is measured too.
"""

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import signal
import statistics
import sys
import time
from multiprocessing import shared_memory

import numpy

import portolan
import portolan.multiprocessing

try:
    import zmq
except ImportError:
    zmq = None
try:
    import ctypes

    import iceoryx2
except ImportError:
    iceoryx2 = None

SPAWN = multiprocessing.get_context("spawn")
#: Array sizes.
SIZES = [1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20, 1 << 30]
#: Measured rounds of a size, at the least and at the most, and bytes that all of them may write.
ROUNDS, WORK = (5, 200), 1 << 30
#: Arrays of a pool's round, bytes of each, and rounds.
ARRAYS, ARRAY, POOL_ROUNDS = 1000, 256 << 10, 5
#: Messages of a batch, and batches.
BATCH, BATCHES = 2000, 15
#: Seconds after which a system is given up.
PATIENCE = 120
#: Load of the machine above which its figures are doubted.
QUIET = 0.3


def write(array, whole):
    if whole:
        array.fill(7)
    else:
        array[0] = array[-1] = 7


def read(array, whole):
    if whole:
        assert int(array.max()) == 7
    else:
        assert array[0] == array[-1] == 7


class Portolan:
    """An array of a domain, as a request."""

    def __init__(self, key):
        self.domain = portolan.Domain.join(key)
        self.right = self.domain.connect("bench", 60)

    def hand_over(self, size, whole):
        array = self.domain.allocate(size)
        with array.view() as view:
            write(view, whole)
        self.right.request_reply(b"w" if whole else b"e", array)

    @staticmethod
    def serve(key):
        domain = portolan.Domain.join(key)
        with domain.bind("bench", synchronous=True) as port:
            while True:
                with port.get_request() as request:
                    for array in request.arrays:
                        with array.view() as view:
                            read(view, request.header == b"w")
                    request.reply()


class Queue:
    """A numpy array through `multiprocessing.Queue`."""

    def __init__(self, key):
        self.there, self.back = key

    def hand_over(self, size, whole):
        array = numpy.empty(size, numpy.uint8)
        write(array, whole)
        self.there.put((array, whole))
        self.back.get()

    @staticmethod
    def serve(key):
        there, back = key
        while True:
            read(*there.get())
            back.put(None)


class SharedMemory:
    """A block of `multiprocessing.shared_memory` for each array, whose name goes through a pipe."""

    def __init__(self, key):
        self.pipe = key[0]

    def hand_over(self, size, whole):
        block = shared_memory.SharedMemory(create=True, size=size)
        array = numpy.frombuffer(block.buf, numpy.uint8, size)
        write(array, whole)
        self.pipe.send((block.name, size, whole))
        self.pipe.recv()
        del array
        block.close()
        block.unlink()

    @staticmethod
    def serve(key):
        pipe = key[1]
        while True:
            name, size, whole = pipe.recv()
            block = shared_memory.SharedMemory(name)
            array = numpy.frombuffer(block.buf, numpy.uint8, size)
            read(array, whole)
            del array
            block.close()
            pipe.send(None)


class Zmq:
    """A numpy array through a pair of pyzmq sockets (`ipc://`), without copies of zmq's own."""

    def __init__(self, key):
        self.socket = zmq.Context.instance().socket(zmq.PAIR)
        self.socket.bind(key)

    def hand_over(self, size, whole):
        array = numpy.empty(size, numpy.uint8)
        write(array, whole)
        self.socket.send(b"w" if whole else b"e", zmq.SNDMORE)
        self.socket.send(array, copy=False)
        self.socket.recv()

    @staticmethod
    def serve(key):
        socket = zmq.Context.instance().socket(zmq.PAIR)
        socket.connect(key)
        while True:
            mode, frame = socket.recv_multipart(copy=False)
            read(numpy.frombuffer(frame.buffer, numpy.uint8), mode.bytes == b"w")
            socket.send(b"")


class Iceoryx2:
    """A loaned slice of iceoryx2; the other process looks for it again and again, as its API does."""

    def __init__(self, key):
        self.node, self.out = self.service(key + "/there")
        _, back = self.service(key + "/back")
        self.publisher = self.out.publisher_builder().initial_max_slice_len((1 << 30) + 1).create()
        self.subscriber = back.subscriber_builder().create()
        # What is sent before the other process subscribes is lost.
        while self.out.dynamic_config.number_of_subscribers < 1:
            time.sleep(0.01)

    @staticmethod
    def service(name):
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        service = node.service_builder(iceoryx2.ServiceName.new(name))
        return node, service.publish_subscribe(iceoryx2.Slice[ctypes.c_uint8]).open_or_create()

    @staticmethod
    def array(sample):
        payload = sample.payload()
        return numpy.ctypeslib.as_array(ctypes.cast(payload.as_ptr(), ctypes.POINTER(ctypes.c_uint8)), (payload.len(),))

    @staticmethod
    def take(subscriber):
        while (sample := subscriber.receive()) is None:
            os.sched_yield()
        return sample

    def hand_over(self, size, whole):
        sample = self.publisher.loan_slice_uninit(size + 1)
        array = self.array(sample)
        write(array[1:], whole)
        array[0] = whole
        sample.assume_init().send()
        self.take(self.subscriber).delete()

    @staticmethod
    def serve(key):
        _, there = Iceoryx2.service(key + "/there")
        _, back = Iceoryx2.service(key + "/back")
        subscriber = there.subscriber_builder().create()
        publisher = back.publisher_builder().initial_max_slice_len(1).create()
        while True:
            sample = Iceoryx2.take(subscriber)
            array = Iceoryx2.array(sample)
            read(array[1:], bool(array[0]))
            sample.delete()
            publisher.loan_slice_uninit(1).assume_init().send()


def systems():
    """Each system: its name, its class, what both of its processes are given; or why it is not here."""
    unique = f"bench-{os.getpid()}"
    yield "portolan", Portolan, unique
    yield "multiprocessing.Queue", Queue, (SPAWN.Queue(), SPAWN.Queue())
    yield "shared_memory", SharedMemory, SPAWN.Pipe()
    yield "pyzmq", Zmq, f"ipc:///tmp/{unique}" if zmq else None
    yield "iceoryx2", Iceoryx2, unique if iceoryx2 else None


def spread(times, scale=1e6):
    """A median with the middle half, in units of `1 / scale` seconds."""
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"median": scale * middle, "low": scale * low, "high": scale * high, "rounds": len(times)}


def lacks_memory(size):
    """Whether an array may not find the memory that its copies take."""
    room = os.statvfs("/dev/shm")
    free = int(pathlib.Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) << 10
    return 5 * size > free or 2 * size > room.f_bavail * room.f_frsize


def client(kind, key, sizes, rounds, results):
    """Measures one system; in a process of its own, whose death loses its rows alone."""
    system = kind(key)
    for whole in (False, True):
        for size in sizes:
            if lacks_memory(size):
                results.send((whole, size, "no memory"))
                continue
            times = []
            measured = max(rounds[0], min(rounds[1], WORK // size))
            for round in range(measured + 2):
                begin = time.perf_counter()
                system.hand_over(size, whole)
                # The first ones warm up.
                if round >= 2:
                    times.append(time.perf_counter() - begin)
            results.send((whole, size, spread(times)))
    results.send(None)


def measure(kind, key, sizes, rounds):
    """The rows of a system, by mode and size, and why they are not all there."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    server = SPAWN.Process(target=kind.serve, args=(key,), daemon=True)
    measuring = SPAWN.Process(target=client, args=(kind, key, sizes, rounds, theirs), daemon=True)
    server.start()
    measuring.start()
    theirs.close()
    row = {"edges": {}, "whole": {}}
    why = None
    end = time.monotonic() + PATIENCE
    try:
        while why is None:
            if not ours.poll(max(0, end - time.monotonic())):
                why = f"given up after {PATIENCE} s"
            elif (result := ours.recv()) is None:
                break
            else:
                whole, size, times = result
                row["whole" if whole else "edges"][size] = times
    except EOFError:
        measuring.join()
        code = measuring.exitcode
        why = f"died by {signal.Signals(-code).name}" if code < 0 else f"failed with status {code}"
    for process in (measuring, server):
        process.kill()
        process.join()
    return row, why


def total(array):
    """What a worker of a pool does with an array of either kind."""
    if isinstance(array, portolan.Array):
        with array.view() as view:
            return int(view[::4096].sum())
    return int(array[::4096].sum())


def measure_pools(arrays, rounds):
    """Milliseconds of `Pool.map` over so many arrays."""
    pictures = [numpy.full(ARRAY, 7, numpy.uint8) for _ in range(arrays)]

    def timed(pool, make):
        times = []
        for round in range(rounds + 1):
            given = make()
            begin = time.perf_counter()
            results = pool.map(total, given)
            # The first one warms up.
            if round:
                times.append(time.perf_counter() - begin)
            assert results == [7 * (ARRAY // 4096)] * arrays
            del given
        return spread(times, 1e3)

    result = {}
    with portolan.multiprocessing.Pool(2) as pool:
        result["portolan, arrays of the domain"] = timed(pool, lambda: [pool.domain.copy(picture) for picture in pictures])
        result["portolan, numpy arrays"] = timed(pool, lambda: pictures)
    with SPAWN.Pool(2) as pool:
        result["multiprocessing"] = timed(pool, lambda: pictures)
    return result


def echo(name):
    with portolan.Domain.join(name) as domain, domain.bind("echo", synchronous=True) as port:
        while True:
            with port.get_request() as request:
                request.reply(request.header)


def measure_messages(batch, batches):
    """Microseconds of one small message: of this process to itself, and to another one and back."""
    name = f"bench-messages-{os.getpid()}"
    domain = portolan.Domain.join(name)
    port = domain.bind()
    right = port.make_send()
    held = [domain.allocate(4096)]

    def header():
        right.send(b"header")
        port.receive(0)

    def array():
        right.send(b"", held[0])
        held[0] = port.receive(0).array

    def view():
        with held[0].view() as view:
            view[0] = 7

    def each(act):
        times = []
        for _ in range(batches + 1):
            begin = time.perf_counter()
            for _ in range(batch):
                act()
            times.append((time.perf_counter() - begin) / batch)
        return spread(times[1:])

    result = {
        "a call that does nothing": each(lambda: port.closed),
        "send and receive a header": each(header),
        "send and receive an array": each(array),
        "allocate and close 4 KiB": each(lambda: domain.allocate(4096).close()),
        "write an element in a view": each(view),
    }
    server = SPAWN.Process(target=echo, args=(name,), daemon=True)
    server.start()
    there = domain.connect("echo", timeout=60)
    result["a request to another process and its answer"] = each(lambda: there.request_reply(b"header", timeout=60))
    server.kill()
    server.join()
    domain.close()
    return result


def machine():
    """What the figures were measured on."""
    models = [line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = int(pathlib.Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]) << 10
    return {
        "processor": models[0] if models else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory": memory,
        "kernel": platform.release(),
    }


def versions():
    """Of Python and of each package; `None`: not installed."""

    def version(name):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {"python": platform.python_version()} | {name: version(name) for name in ("portolan", "numpy", "pyzmq", "iceoryx2")}


def bytes_of(text):
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    return int(text[:-1]) * scale if scale else int(text)


def name_of(size):
    return next(f"{size // scale} {unit}" for scale, unit in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")] if size >= scale)


def cell(times, width):
    """A median with the middle half behind it."""
    if isinstance(times, str):
        return f"{times:>{width}}"
    figure = lambda value: f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"
    return f"{figure(times['median'])} ({figure(times['low'])}-{figure(times['high'])})".rjust(width)


def show(report):
    """The report as tables."""
    about, load = report["machine"], report["load"]
    print(f"{about['processors']} of {about['processor']}, {about['memory'] >> 30} GiB, Linux {about['kernel']}")
    print(", ".join(f"{name} {version or 'not installed'}" for name, version in report["versions"].items()))
    print(f"load {load['begin']:.2f} before, {load['end']:.2f} after; {report['seconds']:.0f} s")
    if report["quick"]:
        print("a quick run: its figures are of no worth")
    elif load["begin"] > QUIET:
        print(f"the machine was busy: a quiet one has a load below {QUIET}")
    sizes = report["sizes"]
    for mode in ("edges", "whole"):
        print(f"\nan array over, a small answer back; {mode}; µs: median (middle half)")
        print(f"{'':22}" + "".join(f"{name_of(size):>24}" for size in sizes))
        for name, row in report["handover_us"].items():
            cells = row[mode]
            there = "".join(cell(cells[str(size)], 24) for size in sizes if str(size) in cells)
            print(f"{name:22}{there}{'  ' + row['left out'] if row['left out'] else ''}")
    pool = report["pool"]
    print(f"\nPool(2).map over {pool['arrays']} arrays of {name_of(pool['bytes'])}, read at each page; ms")
    for name, times in report["pool_map_ms"].items():
        print(f"{name:44}{cell(times, 24)}")
    print("\none small message; µs")
    for name, times in report["message_us"].items():
        print(f"{name:44}{cell(times, 24)}")


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--most", type=bytes_of, default=1 << 30, help="the largest array (1G)")
    options.add_argument("--json", metavar="FILE", help="write the report there too")
    options.add_argument("--only", metavar="SYSTEM", help="hand arrays over by this system alone")
    options.add_argument("--quick", action="store_true", help="everything once, small: whether it runs")
    options = options.parse_args()
    most = min(options.most, 1 << 20) if options.quick else options.most
    sizes = [size for size in SIZES if size <= most]
    rounds = (2, 3) if options.quick else ROUNDS
    begin, load = time.monotonic(), os.getloadavg()[0]
    rows = {}
    for name, kind, key in systems():
        if options.only not in (None, name):
            continue
        row, why = ({"edges": {}, "whole": {}}, "not installed") if key is None else measure(kind, key, sizes, rounds)
        rows[name] = {mode: {str(size): times for size, times in cells.items()} for mode, cells in row.items()}
        rows[name]["left out"] = why
        print(f"{name}: {why or 'done'}", file=sys.stderr)
    arrays = 20 if options.quick else ARRAYS
    report = {
        "machine": machine(),
        "versions": versions(),
        "quick": options.quick,
        "sizes": sizes,
        "handover_us": rows,
        "pool": {"arrays": arrays, "bytes": ARRAY, "workers": 2},
        "pool_map_ms": measure_pools(arrays, 2 if options.quick else POOL_ROUNDS),
        "message_us": measure_messages(*((50, 3) if options.quick else (BATCH, BATCHES))),
        "load": {"begin": load, "end": os.getloadavg()[0]},
        "seconds": time.monotonic() - begin,
    }
    show(report)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
