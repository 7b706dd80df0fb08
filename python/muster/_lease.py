"""Leases: keys that go away when those who wrote them do."""

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Generator, Optional, Type

from . import _verbs
from ._runtime import Unique
from .errors import Closed, MusterError, NotFound

if TYPE_CHECKING:
    import asyncio

    from ._store_aio import AsyncStore
    from .store import Store


class _Granted(Unique):
    """A lease: its number, and how long it lasts without being renewed."""

    _what = "a lease"

    def __init__(self, number: int, ttl: float) -> None:
        #: The lease's number.
        self.number = number
        #: How many seconds it lasts after it was granted or renewed.
        self.ttl = ttl
        #: Why ``keep_alive()`` has given up; None while all is well.
        self.error: Optional[MusterError] = None
        self._over = False

    def __repr__(self) -> str:
        return f"<muster lease {self.number} of {self.ttl:g} s{' revoked' if self._over else ''}>"

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _failed(self, error: MusterError, kept_at: float) -> bool:
        """What a renewal in the background does about an error: whether it gives up. A connection
        that was lost may come back while the lease lasts."""
        if isinstance(error, (NotFound, Closed)) or time.monotonic() - kept_at > self.ttl:
            self.error = error
            return True
        return False


class Lease(_Granted):
    """A lease, granted by ``Store.lease()``. Keys that are written with it are deleted when it
    ends: when it is revoked, or was not renewed for ``ttl`` seconds.

    As a context it is revoked at the end. As an iterator it is renewed at each step::

        with store.lease(10) as lease:
            store.set("worker/3", "here", lease=lease)
            for _ in lease:
                train_one_step()
    """

    def __init__(self, store: "Store", number: int, ttl: float) -> None:
        super().__init__(number, ttl)
        self._store = store
        self._stop: Optional[threading.Event] = None

    def keep(self, *, timeout: Optional[float] = None) -> None:
        """Renews it: its time starts again. ``NotFound`` is raised if it has ended."""
        self._check()
        self._store._run(_verbs.lease_keep(self.number, timeout))

    def revoke(self, *, timeout: Optional[float] = None) -> None:
        """Ends it, and deletes its keys. A second call does nothing."""
        if self._stop is not None:
            self._stop.set()
        if not self._over:
            self._store._run(_verbs.lease_revoke(self.number, timeout))
            self._over = True

    def keep_alive(self) -> "Lease":
        """Renews it three times in its ``ttl``, on a thread of its own, until it is revoked, the
        store is closed, or nobody has this object any more. If that fails for good, ``error`` says
        why, and ``keep()`` and the next step of an iteration raise it."""
        if self._stop is None:
            self._stop = threading.Event()
            weakref.finalize(self, self._stop.set).atexit = False
            threading.Thread(
                target=_renew, args=(weakref.ref(self), self._stop, self.ttl / 3),
                name="muster-lease", daemon=True,
            ).start()  # fmt: skip
        return self

    def __iter__(self) -> "Lease":
        return self

    def __next__(self) -> int:
        if self._over:
            raise StopIteration
        self.keep()
        return self.number

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        try:
            self.revoke()
        except (NotFound, Closed):
            pass  # it has ended already, or does so by itself
        except MusterError:
            if kind is None:
                raise


def _renew(lease: "weakref.ref[Lease]", stop: threading.Event, every: float) -> None:
    """Renews a lease until it is told to stop."""
    kept_at = time.monotonic()
    while not stop.wait(every):
        it = lease()
        if it is None:
            return
        try:
            it._store._run(_verbs.lease_keep(it.number, it.ttl))
            kept_at = time.monotonic()
        except MusterError as error:
            if stop.is_set() or it._failed(error, kept_at):
                return
        del it  # nothing but the user keeps it alive


class AsyncLease(_Granted):
    """A lease, granted by ``AsyncStore.lease()``: as ``Lease``, with ``async with`` and ``async
    for``."""

    def __init__(self, store: "AsyncStore", number: int, ttl: float) -> None:
        super().__init__(number, ttl)
        self._store = store
        self._task: "Optional[asyncio.Task[None]]" = None

    async def keep(self, *, timeout: Optional[float] = None) -> None:
        """Renews it: its time starts again. ``NotFound`` is raised if it has ended."""
        self._check()
        await self._store._run(_verbs.lease_keep(self.number, timeout))

    async def revoke(self, *, timeout: Optional[float] = None) -> None:
        """Ends it, and deletes its keys. A second call does nothing."""
        if self._task is not None:
            self._task.cancel()
        if not self._over:
            await self._store._run(_verbs.lease_revoke(self.number, timeout))
            self._over = True

    def keep_alive(self) -> "AsyncLease":
        """Renews it three times in its ``ttl``, in a task of its own, until it is revoked, the
        store is closed, or nobody has this object any more. If that fails for good, ``error`` says
        why, and ``keep()`` and the next step of an iteration raise it."""
        import asyncio

        if self._task is None:
            work = _renew_async(weakref.ref(self), self.ttl / 3)
            self._task = asyncio.get_running_loop().create_task(work)
        return self

    def __aiter__(self) -> "AsyncLease":
        return self

    async def __anext__(self) -> int:
        if self._over:
            raise StopAsyncIteration
        await self.keep()
        return self.number

    async def __aenter__(self) -> "AsyncLease":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], *_: object) -> None:
        try:
            await self.revoke()
        except (NotFound, Closed):
            pass  # it has ended already, or does so by itself
        except MusterError:
            if kind is None:
                raise


async def _renew_async(lease: "weakref.ref[AsyncLease]", every: float) -> None:
    """Renews a lease until it is revoked or forgotten."""
    import asyncio

    kept_at = time.monotonic()
    while True:
        await asyncio.sleep(every)
        it = lease()
        if it is None:
            return
        try:
            await it._store._run(_verbs.lease_keep(it.number, it.ttl))
            kept_at = time.monotonic()
        except MusterError as error:
            if it._failed(error, kept_at):
                return
        del it  # nothing but the user keeps it alive


class Granting:
    """A lease that is being asked for: awaited, or entered as a context."""

    def __init__(self, store: "AsyncStore", ttl: float, timeout: Optional[float]) -> None:
        self._store = store
        self._ttl = ttl
        self._plan = _verbs.lease_grant(ttl, timeout)
        self._lease: Optional[AsyncLease] = None

    async def _grant(self) -> AsyncLease:
        return AsyncLease(self._store, await self._store._run(self._plan), self._ttl)

    def __await__(self) -> Generator[Any, None, AsyncLease]:
        return self._grant().__await__()

    async def __aenter__(self) -> AsyncLease:
        self._lease = await self._grant()
        return self._lease

    async def __aexit__(self, *error: Any) -> None:
        assert self._lease is not None
        await self._lease.__aexit__(*error)
