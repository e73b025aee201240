"""Calls."""

import os
import signal
import threading

import numpy
import pytest

import portolan
from portolan import rpc


class Bank:
    """What is served."""

    def add(self, a, b=1):
        return a + b

    def scale(self, array, by):
        with array.view() as v:
            v *= by
        return array

    def keep(self, array):
        self.kept = array

    def fails(self):
        raise KeyError("account")

    def unsendable(self):
        return lambda: 0

    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def _private(self):
        return "secret"


@pytest.fixture
def bank(domain):
    port = domain.bind("bank", synchronous=True)
    server = threading.Thread(target=rpc.serve, args=(domain, port, Bank()))
    server.start()
    with rpc.Client(domain, "bank", timeout=60) as client:
        yield client
    port.close()
    server.join(60)
    assert not server.is_alive()


def test_calls(domain, bank):
    assert bank.add(1, b=2) == 3
    assert bank.call("add", "a", "b") == "ab"
    array = domain.copy(numpy.arange(1000.0))
    address = array.address
    scaled = bank.scale(array, 3)
    assert scaled.address == address and scaled.numpy()[10] == 30
    assert bank.add(numpy.ones(5000), 1).sum() == 10_000
    bank.keep(numpy.ones(5000))
    assert bank.add(1) == 2


def test_errors_of_calls(bank):
    with pytest.raises(KeyError, match="account"):
        bank.fails()
    with pytest.raises(TypeError, match="cannot be sent"):
        bank.unsendable()
    with pytest.raises(portolan.errors.CallError, match="no method"):
        bank.missing()
    with pytest.raises(portolan.errors.CallError) as error:
        bank.call("_private")
    assert "_private" in str(error.value)
    with pytest.raises(TypeError):
        bank.add()


def serve(name):
    with portolan.Domain.join(name) as domain, domain.bind("bank", synchronous=True) as port:
        rpc.serve(domain, port, Bank())


def test_a_server_that_is_killed(domain, name, spawn, patience):
    spawn(serve, name)
    with rpc.Client(domain, "bank", timeout=patience) as client:
        assert client.add(1) == 2
        with pytest.raises(portolan.ServerDead):
            client.dies()
