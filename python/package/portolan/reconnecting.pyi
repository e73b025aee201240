"""The loop that everybody writes around the death of a peer."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from numpy.typing import DTypeLike

from ._portolan import Array, Channel, Domain, Message, OtherRight, ReceiveRight, Sample, Segment, SendOnceRight, SendRight

PAUSE: tuple[float, float]

class Lost(NamedTuple):
    """What may be lost with a receiver that has died, or has closed its port."""

    receiver: int
    sent: int
    at_most: int

class Sent(NamedTuple):
    """A message was sent."""

    receiver: int
    lost: Lost | None

class Gone(NamedTuple):
    """A publisher left, or died."""

    publisher: int
    next: int
    missed: int

class Sender:
    """Sends to whatever port has the name, now and after its receiver was started anew."""

    def __init__(self, domain: Domain, name: str) -> None: ...
    def send(
        self,
        header: bytes = b"",
        *arrays: Array,
        rights: Sequence[SendRight | SendOnceRight | ReceiveRight | Segment | Channel | OtherRight] | None = None,
        timeout: float | None = None,
    ) -> Sent: ...
    def request_reply(
        self,
        header: bytes = b"",
        *arrays: Array,
        rights: Sequence[SendRight | SendOnceRight | ReceiveRight | Segment | Channel | OtherRight] | None = None,
        timeout: float | None = None,
    ) -> Message: ...
    def right(self, timeout: float | None = None) -> SendRight: ...
    def take_lost(self) -> Lost | None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: type[BaseException] | BaseException | TracebackType | None) -> None: ...

class Subscriber:
    """Reads a topic, and goes on after what ends a subscriber."""

    reconnects: int
    why: Exception | None
    def __init__(self, domain: Domain, topic: str, dtype: DTypeLike | None = None, **options: Any) -> None: ...
    def receive(self, timeout: float | None = None) -> Sample | Gone: ...
    def __iter__(self) -> Iterator[Sample | Gone]: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: type[BaseException] | BaseException | TracebackType | None) -> None: ...
