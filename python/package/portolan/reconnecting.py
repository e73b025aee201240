"""The loop that everybody writes around the death of a peer.

A `Sender` looks its port's name up again when the port has died, and says what may be lost; a
`Subscriber` says which publishers have gone, and subscribes again when its topic cannot be read any
more.
"""

import time
from typing import NamedTuple

from ._portolan import Domain
from .errors import Closed, DeadName, NoSuchPort, OtherType, SubscribeError, TopicError, WaitSetError

#: Seconds between two tries, at first and at the most.
PAUSE = (0.01, 1.0)


class Lost(NamedTuple):
    """What may be lost with a receiver that has died, or has closed its port."""

    #: Which receiver: 1 for the first.
    receiver: int
    #: Messages that were sent to it in all.
    sent: int
    #: So many of these, at most, it has not received. Whether the others were worked off, it alone knew.
    at_most: int


class Sent(NamedTuple):
    """A message was sent."""

    #: Which receiver's queue has it: 1 for the first, and one more after each death.
    receiver: int
    #: What may be lost with the receiver before, if this is the first message since its death.
    lost: Lost | None


class Gone(NamedTuple):
    """A publisher left, or died."""

    #: Which one. The next publisher that comes has this number again, if it is free.
    publisher: int
    #: The position at which the samples of this number go on.
    next: int
    #: Its samples that were missed since the last one that was received.
    missed: int


class _Until:
    def __init__(self, timeout):
        self._end = None if timeout is None else time.monotonic() + timeout

    def left(self):
        return None if self._end is None else max(0.0, self._end - time.monotonic())


class Sender:
    """Sends to whatever port has the name, now and after its receiver was started anew.

    >>> import portolan, portolan.reconnecting
    >>> domain = portolan.Domain.private()
    >>> sender = portolan.reconnecting.Sender(domain, "frames")
    >>> for attempt in range(2):
    ...     with domain.bind("frames") as port:      # each time another port
    ...         sender.send(b"hello", timeout=5)
    Sent(receiver=1, lost=None)
    Sent(receiver=2, lost=Lost(receiver=1, sent=1, at_most=1))

    That a message was received does not mean that it was worked off: who must know, uses
    `request_reply`. Arrays that could not be sent stay the caller's.
    """

    def __init__(self, domain: Domain, name: str):
        self._sender = domain._reconnecting_sender(name)
        self._name = name

    def send(self, header=b"", *arrays, rights=None, timeout=None):
        """Sends, waiting at most `timeout` seconds for a port of the name and for room in it.

        `NoSuchPort` or `Full` if there was none.
        """
        receiver, lost = self._sender.send(header, *arrays, rights=rights, timeout=timeout)
        return Sent(receiver, lost and Lost(*lost))

    def request_reply(self, header=b"", *arrays, rights=None, timeout=None):
        """Sends a request and waits for its answer.

        One that was sent to a server which died (`ServerDead`) may have been served, and is not
        sent again.
        """
        until = _Until(timeout)
        while True:
            right = self.right(until.left())
            try:
                return right.request_reply(header, *arrays, rights=rights, timeout=until.left())
            except DeadName:
                if until.left() == 0:
                    raise NoSuchPort(f"the port {self._name!r} died, and no other took its name in time") from None

    def right(self, timeout=None):
        """The right on the port that has the name, waiting for one at most `timeout` seconds.

        What is sent by it is not counted here.
        """
        return self._sender.right(timeout)

    def take_lost(self):
        """What may be lost with the last receiver, if it has died and no call has said so."""
        lost = self._sender.take_lost()
        return lost and Lost(*lost)

    def close(self):
        """Ends it."""
        self._sender.close()

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.close()


class Subscriber:
    """Reads a topic, and goes on after what ends a subscriber.

    It follows new publishers, and says when one has gone. What ends a subscriber are errors, as a
    channel that a dying program has garbled: then this one pauses, subscribes again and goes on.
    Samples of another type than `dtype` are skipped.
    """

    def __init__(self, domain: Domain, topic: str, dtype=None, **options):
        self._subscribe = lambda: domain._reconnecting_subscriber(topic, dtype, **options)
        self._subscriber = self._subscribe()
        #: How often it has subscribed again, and what the last error was.
        self.reconnects = 0
        self.why = None

    def receive(self, timeout=None):
        """The next sample, or `Gone`, waiting at most `timeout` seconds. `TimedOut` if none came."""
        until = _Until(timeout)
        pause = PAUSE[0]
        while True:
            try:
                if self._subscriber is None:
                    self._subscriber = self._subscribe()
                    self.reconnects += 1
                return self._subscriber.receive(until.left())
            except OtherType as error:
                if self._subscriber is None:
                    raise
                self.why = error
            except (SubscribeError, TopicError, WaitSetError, Closed) as error:
                self.why = error
                self.close()
                left = until.left()
                if left == 0:
                    raise
                time.sleep(pause if left is None else min(pause, left))
                pause = min(2 * pause, PAUSE[1])

    def __iter__(self):
        while True:
            yield self.receive()

    def close(self):
        """Ends the subscription; the next call subscribes anew."""
        if self._subscriber is not None:
            self._subscriber.close()
            self._subscriber = None

    def __enter__(self):
        return self

    def __exit__(self, *why):
        self.close()
