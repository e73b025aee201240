"""The examples, and those in the documentation, run."""

import doctest
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest

import portolan
import portolan.reconnecting
import portolan.rpc

HERE = pathlib.Path(__file__).parent.parent
#: Pairs that run until they are ended, and share a domain.
PAIRS = [("echo_server", "echo_client"), ("publisher", "subscriber"), ("camera", "viewer")]
LASTING = {name for pair in PAIRS for name in pair}
EXAMPLES = sorted(path for path in (HERE / "examples").glob("*.py") if path.stem not in LASTING)
#: What those print that have the names of the Rust ones, in any order.
PRINTED = {
    "find_server": ["the doubler says 42", "the adder says 42"],
    "file_server": [
        "manager: passed 3 blocks on, unopened",
        f"client: 150000 bytes, which add up to {sum(n % 256 for n in range(150_000))}",
    ],
    "handoff": ["giver: gave its right away", "receiver: the counter says 42"],
    "prices": [
        "day 1: 1003 things, saffron for 901, the cheapest is salt",
        "day 2: 2003 things, saffron for 902, the cheapest is salt",
        "of day 1: kept",
    ],
    "pictures": [
        "4 x 4: the three look at it in 3 places",
        "64 x 64: the three look at it in 1 place",
        "1024 x 1024: the three look at it in 1 place",
        "a viewer died with pictures in its hands, and 1000 more were published",
        "viewer 1: no more pictures",
        "viewer 2: no more pictures",
    ],
    "sensor": [
        "reader: saw 1000 samples, each before it was counted",
        "sensor: the last of 1000 samples was 0.905",
    ],
    "revoked_import": [
        "importer: was told that the export has ended",
        "exporter: has its memory back, with what was written last in it",
    ],
    "between_users": [
        'camera: asked for "the resolution"',
        "guest: 1920 x 1080",
        "camera: a mask of 2073600 bytes covers 192000",
        "guest: 9437184 bytes came back",
        "camera: 0 clients broke the rules",
    ],
}


#: Unbuffered, a line and its end are written apart, and those of other processes come between.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    command = [sys.executable, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=110, env=ENVIRONMENT)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout
    if path.stem in PRINTED:
        assert sorted(ran.stdout.splitlines()) == sorted(PRINTED[path.stem])


def test_every_example_of_rust_is_here_or_has_a_reason():
    _, missing = (HERE / "README.md").read_text().split("These of Rust's are not in Python")
    # The first column.
    missing = [line.split(" | ")[0] for line in missing.split("`cargo xtask python`")[0].splitlines() if line.startswith("| ")]
    names = [path.stem for path in (HERE.parent / "examples").glob("*.rs")]
    assert len(names) > 20
    for name in names:
        assert (HERE / "examples" / f"{name}.py").exists() != any(f"`{name}`" in named for named in missing), name


class Running:
    """An example in a domain of the test's, and what it prints."""

    def __init__(self, example, domain):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "examples" / f"{example}.py"), domain],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # What runs in the background of a shell ignores it, and so would this.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.seen = []
        # A reader of its own: the example is never blocked by a full pipe.
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def sees(self, text):
        """Waits until it has printed a line with this text."""
        end = time.monotonic() + 60
        while (left := end - time.monotonic()) > 0 and (line := self.lines.get(timeout=left)) is not None:
            self.seen.append(line)
            if text in line:
                return
        raise AssertionError(f"it did not print {text!r}: {self.seen}")

    def end(self, how):
        self.process.send_signal(how)
        return self.process.wait(60)


@pytest.fixture
def run(name):
    """Starts an example; it is dead after the test."""
    started = []

    def start(example):
        started.append(Running(example, name))
        return started[-1]

    yield start
    for running in started:
        running.process.kill()
        running.process.wait()


def test_the_echo_client_goes_on_with_the_next_server(run):
    server, client = run("echo_server"), run("echo_client")
    server.sees("server: process")
    client.sees("client: REQUEST")
    server.end(signal.SIGKILL)
    client.sees("was not ")
    again = run("echo_server")
    client.sees("client: REQUEST")
    assert again.end(signal.SIGINT) == 0
    assert client.end(signal.SIGINT) == 0


def test_the_subscriber_is_told_of_a_publisher_that_is_killed(run):
    publisher, subscriber = run("publisher"), run("subscriber")
    subscriber.sees("subscriber: reading 11 ")
    publisher.end(signal.SIGKILL)
    subscriber.sees("subscriber: publisher 0 has gone")
    again = run("publisher")
    subscriber.sees("subscriber: reading ")
    assert again.end(signal.SIGINT) == 0
    assert subscriber.end(signal.SIGINT) == 0


def test_the_camera_sends_to_the_next_viewer(run):
    camera = run("camera")
    camera.sees("camera: no viewer")
    viewer = run("viewer")
    viewer.sees("viewer: picture ")
    camera.sees("camera: viewer 1 has picture")
    viewer.end(signal.SIGKILL)
    camera.sees("camera: no viewer")
    again = run("viewer")
    again.sees("viewer: picture ")
    # What may be lost with the first one is said with the first picture that the next one has.
    camera.sees("camera: a viewer has gone")
    camera.sees("camera: viewer 2 has picture")
    assert camera.end(signal.SIGINT) == 0
    assert again.end(signal.SIGINT) == 0


@pytest.mark.parametrize("module", [portolan, portolan.rpc, portolan.reconnecting], ids=lambda m: m.__name__)
def test_docstrings(module):
    failed, tried = doctest.testmod(module)
    assert tried > 0 and failed == 0


def test_the_readme_runs():
    failed, tried = doctest.testfile(str(HERE / "README.md"), module_relative=False)
    assert tried > 0 and failed == 0


def test_the_readmes_pool_runs(tmp_path):
    text = (HERE / "README.md").read_text().split("## Queue and Pool")[1]
    program = tmp_path / "program.py"
    program.write_text(text.split("```python\n")[1].split("```")[0])
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=110)
    assert (ran.returncode, ran.stdout) == (0, "100 pictures of 10\n"), ran.stdout + ran.stderr


def test_the_stubs_name_what_there_is():
    import ast

    stubs = ast.parse((pathlib.Path(portolan.__file__).parent / "_portolan.pyi").read_text())
    named = {}
    for node in stubs.body:
        if isinstance(node, ast.ClassDef):
            named[node.name] = {part.name for part in node.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))} | {
                part.target.id for part in node.body if isinstance(part, ast.AnnAssign)
            }
    from portolan import _portolan

    classes = {name: value for name, value in vars(_portolan).items() if isinstance(value, type)}
    assert set(named) == set(classes)
    for name, value in classes.items():
        public = {part for part in vars(value) if not part.startswith("_")}
        assert public == {part for part in named[name] if not part.startswith("_")}, name
        for part in public:
            assert getattr(value, part).__doc__, f"{name}.{part} has no documentation"
