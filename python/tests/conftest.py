"""Processes of a test, and names that no other test has."""

import itertools
import multiprocessing
import os

import pytest

import portolan

#: Seconds that a test waits for what is to come.
PATIENCE = 60

_numbers = itertools.count()


@pytest.fixture
def name():
    """A domain's name."""
    return f"pytest-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def domain(name):
    """A domain that this process has joined."""
    joined = portolan.Domain.join(name, limit=1 << 30)
    yield joined
    joined.close()


@pytest.fixture
def spawn():
    """Starts `target(*arguments)` in another process; it is dead after the test."""
    context = multiprocessing.get_context("spawn")
    started = []

    def start(target, *arguments):
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def patience():
    """Seconds that a test waits for what is to come."""
    return PATIENCE
