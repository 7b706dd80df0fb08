"""Stores in asyncio: the operations of ``Store``, awaited."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, List, Optional, Sequence, TypeVar, Union

from . import _aio, _lib, _verbs
from ._lease import Granting
from ._watch import AsyncWatch

if TYPE_CHECKING:
    from ._verbs import CompareSet, Data
    from .store import Store

    _R = TypeVar("_R")

_free = _lib.fast.muster_op_free
_status = _lib.fast.muster_op_status


class AsyncStore:
    """A store for asyncio: ``store.aio``, or what ``await Store.open_async(url)`` returns. Each
    operation is awaited, any number at the same time. Canceling a task cancels its operation.

    It may be used in several event loops, also at the same time.
    """

    __slots__ = ("sync",)

    def __init__(self, store: Store) -> None:
        #: The store itself, whose operations block.
        self.sync = store

    def __repr__(self) -> str:
        return f"<muster.AsyncStore {self.sync.url}{' closed' if self.sync.closed else ''}>"

    async def close(self) -> None:
        """Closes the store. Operations under way end with ``Closed``."""
        await _aio.in_thread(self.sync.close)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, plan: _verbs.Plan[_R]) -> _R:
        """Runs an operation to its end, which the queue of the event loop tells."""
        store = self.sync
        assert store._runtime is not None
        loop_queue = _aio.loop_queue(store._runtime)
        queue = loop_queue.queue
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = loop_queue.expect_end(ended)
        call = _verbs.take_call(plan)
        request, op = call.request, call.op
        try:
            request.context = number
            with queue._lock:  # it is not freed before the operation has it
                request.queue = pointer = queue._pointer
                code = 1 if pointer is None else store._submit(call)
            if code != 0:
                store._started(code)
            await ended
            status = _status(op)
            if status != 0:
                raise _verbs.error_of(op, status)
            result = plan[0](op)
        finally:
            loop_queue.forget(number)
            if op:
                _free(op)
        request.queue = request.context = None
        _verbs.give_call(call, plan)
        return result

    async def set(
        self,
        key: Data,
        value: Data,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Writes the value over what the key holds, and wakes the callers that wait for the key.
        With a lease, the key is deleted when the lease ends."""
        await self._run(_verbs.set_(key, value, lease, timeout))

    async def get(self, key: Data, *, wait: bool = True, timeout: Optional[float] = None) -> bytes:
        """Waits until the key exists, and reads it. Without ``wait``, ``NotFound`` is raised if the
        key does not exist."""
        return await self._run(_verbs.get(key, wait, timeout))

    async def add(
        self,
        key: Data,
        delta: int = 1,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> int:
        """Adds to a decimal number and returns the sum; an absent key counts as 0."""
        return await self._run(_verbs.add(key, delta, lease, timeout))

    async def compare_set(
        self,
        key: Data,
        expected: Data,
        desired: Data,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> CompareSet:
        """Writes ``desired`` if the key holds ``expected``, or is absent and ``expected`` is empty.
        Returns what the key holds now, and whether it was written."""
        return await self._run(_verbs.compare_set(key, expected, desired, lease, timeout))

    async def check(
        self, keys: Union[Data, Sequence[Data]], *, timeout: Optional[float] = None
    ) -> bool:
        """Whether all of the keys exist."""
        return await self._run(_verbs.check(keys, timeout))

    async def wait(
        self, keys: Union[Data, Sequence[Data]], *, timeout: Optional[float] = None
    ) -> None:
        """Waits until each of the keys has existed."""
        await self._run(_verbs.wait(keys, timeout))

    async def delete(self, key: Data, *, timeout: Optional[float] = None) -> bool:
        """Deletes the key; returns whether it existed."""
        return await self._run(_verbs.delete(key, timeout))

    async def num_keys(self, *, timeout: Optional[float] = None) -> int:
        """How many keys there are."""
        return await self._run(_verbs.num_keys(timeout))

    async def keys(self, prefix: Data = b"", *, timeout: Optional[float] = None) -> List[bytes]:
        """The keys that begin with ``prefix``, in no order."""
        return await self._run(_verbs.keys(prefix, timeout))

    async def append(
        self,
        key: Data,
        value: Data,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Appends the value to what the key holds."""
        await self._run(_verbs.append(key, value, lease, timeout))

    async def multi_get(
        self, keys: Sequence[Data], *, wait: bool = True, timeout: Optional[float] = None
    ) -> List[bytes]:
        """Waits until all keys exist, and reads them in order."""
        return await self._run(_verbs.multi_get(keys, wait, timeout))

    async def multi_set(
        self,
        items: _verbs.Items,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Writes several keys; a muster server writes all of them or none of them."""
        await self._run(_verbs.multi_set(items, lease, timeout))

    async def push(self, key: Data, value: Data, *, timeout: Optional[float] = None) -> None:
        """Puts an element at the end of a queue."""
        await self._run(_verbs.push(key, value, timeout))

    async def pop(self, key: Data, *, wait: bool = True, timeout: Optional[float] = None) -> bytes:
        """Takes the oldest element of a queue, and waits for one. Without ``wait``, ``NotFound`` is
        raised if there is none."""
        return await self._run(_verbs.pop(key, wait, timeout))

    async def queue_len(self, key: Data, *, timeout: Optional[float] = None) -> int:
        """How many elements the queue has; 0 if it does not exist."""
        return await self._run(_verbs.queue_len(key, timeout))

    async def barrier(self, key: Data, world_size: int, *, timeout: Optional[float] = None) -> None:
        """Waits for ``world_size`` callers. A key works once."""
        await self._run(_verbs.barrier(key, world_size, timeout))

    def watch(self, key: Data, *, prefix: bool = False, current: bool = False) -> AsyncWatch:
        """Follows the changes of a key, or of all keys that begin with it (``prefix``), from now
        on. With ``current``, the values that are there now come first."""
        return AsyncWatch(self.sync, key, prefix, current)

    def lease(self, ttl: float, *, timeout: Optional[float] = None) -> Granting:
        """Grants a lease of ``ttl`` seconds, whose keys are deleted when it ends: ``await`` it, or
        enter it with ``async with``, which revokes it at the end."""
        return Granting(self, ttl, timeout)
