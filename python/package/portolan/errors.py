"""What goes wrong: one hierarchy, whose leaves are the cases that programs tell apart.

```text
Error
├─ TimedOut (TimeoutError)     nothing came, or was answered, in time
├─ Closed (ValueError)         the caller's: the object was sent, closed or used up
├─ Busy                        the caller's: another thread waits at it
├─ Disowned                    this process is no member (any more): it was forked, or cut off
├─ NoDescriptor                the process has too many descriptors open
├─ AllocateError (MemoryError) no memory within the domain's limit
├─ JoinError, LeaveError
├─ BindError ── NameTaken
├─ ConnectError ── NoSuchPort
├─ OfferError                  a port was not offered to other domains
├─ MessageError                more than a message carries
├─ SendError ── Full, DeadName, Unreachable
├─ ReceiveError, WaitSetError
├─ RequestError ── ServerDead, Dropped, NodeLost
├─ TopicError ── OtherType
├─ PublishError, SubscribeError
├─ ChannelError                no channel, or no writer or reader of it
├─ WriteError                  a channel does not take the message (no room in time: Full)
├─ ReadError ── Missed, Lagged, WriterGone
├─ SignalError
├─ ExportError, NotImported, NotificationError
├─ UpdateError ── Revoked, ExporterDied
├─ CallError                   no such method
└─ WorkerDied                  a worker of a pool died
```

Each carries its values as attributes, which its text names too. That an array cannot be sent
because a view of it lives is the built-in `BufferError`, with `views`.
"""


class Error(Exception):
    """Any error of Portolan."""


class TimedOut(Error, TimeoutError):
    """Nothing came before the deadline. Nothing is lost."""


class Closed(Error, ValueError):
    """The object was sent, closed or used up."""


class Busy(Error):
    """Another thread waits at this very object."""


class Disowned(Error):
    """This process is no member: it was forked from one, or closed its descriptors."""


class NoDescriptor(Error):
    """The process has no descriptor left to wait with."""

    errno: int


class AllocateError(Error, MemoryError):
    """No memory of this size can be had within the domain's limit."""

    wanted: int
    free: int
    limit: int


class JoinError(Error):
    """The domain was not joined."""


class LeaveError(Error):
    """Leaving was not all that it could be: the process leaves when what it holds is gone."""

    handles: int


class BindError(Error):
    """No port."""


class NameTaken(BindError):
    """A port of this name is open."""

    name: str
    owner: int


class ConnectError(Error):
    """A name did not lead to a port."""

    name: str


class NoSuchPort(ConnectError):
    """No process has bound a port of this name (yet)."""


class OfferError(Error):
    """A port was not offered to other domains."""


class MessageError(Error):
    """More than a message carries."""

    limit: int


class SendError(Error):
    """A message was not sent. Its arrays are still the caller's."""


class Full(SendError):
    """The port's queue is full, or the ring of a reliable channel."""

    slots: int
    #: Of a channel: units that are free, and those that are wanted.
    room: int
    wanted: int
    #: Of `Writer.append`: bytes that were added before.
    added: int


class DeadName(SendError):
    """The port is gone: its owner closed it, or died."""


class Unreachable(SendError):
    """The port is on another node, which is silent."""

    node: str


class ReceiveError(Error):
    """Nothing was received."""


class WaitSetError(Error):
    """No wait set to be told by."""


class RequestError(Error):
    """A request was not answered."""


class ServerDead(RequestError):
    """The server died, or closed its port, before it answered."""


class Dropped(RequestError):
    """The server dropped the request."""


class NodeLost(RequestError):
    """The server's node was given up."""

    node: str


class TopicError(Error):
    """No publisher, or no subscriber."""


class OtherType(TopicError):
    """The samples of a topic are of another type."""


class PublishError(Error):
    """A sample was not published."""


class SubscribeError(Error):
    """A sample could not be had; the next call goes on behind it."""


class ChannelError(Error):
    """A channel was not made or found, or no writer or reader was bound."""

    #: The space that writes, where that is in the way.
    space: int
    #: How many readers the channel was made for, where that is too few.
    entries: int


class WriteError(Error):
    """A message was not written."""

    len: int
    most: int


class ReadError(Error):
    """No message was read."""


class Missed(ReadError):
    """Units were overwritten before they were read, or never finished. Read on."""

    #: The position of the first one, and that of the first one that was not missed, or not yet.
    start: int
    stop: int


class Lagged(ReadError):
    """The reader lagged, and has chosen to be dropped then. Bind another one."""


class WriterGone(ReadError):
    """The writer left, or died, and all that it wrote was read. Read on to wait for the next one."""


class SignalError(Error):
    """A signal, or a handler, was refused."""

    address: int


class ExportError(Error):
    """Memory was not exported, or an export has not ended."""


class NotImported(Error):
    """There is no import: nothing is exported under the name, or not to this process."""


class NotificationError(Error):
    """No notifications."""


class UpdateError(Error):
    """Memory was not read, or an update has not landed."""


class Revoked(UpdateError):
    """The export has ended. An update may have landed in part."""


class ExporterDied(UpdateError):
    """The exporter is dead. An update may have landed in part."""


class CallError(Error):
    """The server of a call has no such method."""

    method: str


class WorkerDied(Error):
    """A worker of a pool died, with what it was given: that may have run, or not."""

    pid: int
    exitcode: int | None

    def __init__(self, text: str, pid: int = 0, exitcode: int | None = None) -> None:
        super().__init__(text)
        self.pid = pid
        self.exitcode = exitcode
