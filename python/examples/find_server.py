"""Finds a server by calling on a well-known channel, as on citizens' band radio: many write, many listen,
and the server that is called answers.
"""

import os

import portolan
from portolan.multiprocessing import Process

#: The one well-known name.
CALLS = "calls"
SERVICES = {"adder": lambda number: number + 1, "doubler": lambda number: number * 2}


def clients():
    name = f"find-server-python-{os.getpid()}"
    with portolan.Domain.join(name) as domain, domain.make_channel(CALLS, many_writers=True) as calls:
        servers = [Process(target=serve, args=(name, service)) for service in SERVICES]
        for server in servers:
            server.start()
        for service, number in [("doubler", 21), ("adder", 41)]:
            with find(domain, calls, service) as right:
                # From here on the two talk in private.
                answer = right.request_reply(bytes([number]), timeout=30)
                print(f"the {service} says {answer.header[0]}")
                # An empty question sends it home.
                right.request_reply(timeout=30)
        for server in servers:
            server.join()


def find(domain, calls, service):
    """A right on a port of the server's. The call says who is wanted, the port's name where the answer goes."""
    with domain.bind(f"wants a {service}") as inbox, calls.bind_writer() as writer:
        while True:
            # No server may have listened yet, so the client calls again.
            writer.write(service.encode(), timeout=30)
            try:
                (right,) = inbox.receive(timeout=0.05).rights
                return right
            except portolan.TimedOut:
                pass


def serve(name, service):
    with portolan.Domain.join(name) as domain, domain.bind(synchronous=True) as requests:
        with domain.find_channel(CALLS, timeout=30) as channel, channel.bind_reader() as calls:
            wait_for_call(calls, service)
        with domain.connect(f"wants a {service}", timeout=30) as client:
            client.send(rights=[requests.make_send()], timeout=30)
        while True:
            with requests.get_request(timeout=30) as request:
                if not request.header:
                    request.reply()
                    return
                request.reply(bytes([SERVICES[service](request.header[0])]))


def wait_for_call(calls, service):
    """Others are called here too, and a call that was missed comes again."""
    while True:
        try:
            if calls.receive(timeout=30).data == service.encode():
                return
        except portolan.Missed:
            pass


if __name__ == "__main__":
    clients()
