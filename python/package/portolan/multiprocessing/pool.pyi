"""Processes that work for this one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .._portolan import Domain

_S = TypeVar("_S")
_T = TypeVar("_T")

AHEAD: int
LOOK: float

class AsyncResult(Generic[_T]):
    """What `apply_async` and `map_async` give."""

    def ready(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> None: ...
    def successful(self) -> bool: ...
    def get(self, timeout: float | None = None) -> _T: ...

class Pool:
    """Stands in for `multiprocessing.Pool`."""

    domain: Domain
    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        domain: Domain | None = None,
    ) -> None: ...
    def apply(self, func: Callable[..., _T], args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> _T: ...
    def apply_async(
        self,
        func: Callable[..., _T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[_T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[_T]: ...
    def map(self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int | None = None) -> list[_T]: ...
    def map_async(
        self,
        func: Callable[[_S], _T],
        iterable: Iterable[_S],
        chunksize: int | None = None,
        callback: Callable[[list[_T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[_T]]: ...
    def starmap(
        self, func: Callable[..., _T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[_T]: ...
    def starmap_async(
        self,
        func: Callable[..., _T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[_T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[_T]]: ...
    def imap(self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int = 1) -> Iterator[_T]: ...
    def imap_unordered(self, func: Callable[[_S], _T], iterable: Iterable[_S], chunksize: int = 1) -> Iterator[_T]: ...
    def close(self) -> None: ...
    def terminate(self) -> None: ...
    def join(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *why: type[BaseException] | BaseException | TracebackType | None) -> None: ...
    def __del__(self) -> None: ...
