"""A store server inside this process: what ``muster serve`` runs.

::

    with muster.Server() as server:
        store = muster.Store(server.url)

It is served by the runtime's thread, so Python code that computes does not slow it down.
"""

from __future__ import annotations

import ctypes

from . import _lib
from ._runtime import Handle, Runtime, call_interruptibly, chosen

TYPE_CHECKING = False  # see muster/__init__.py
if TYPE_CHECKING:
    from typing import Any, Optional

__all__ = ["Server"]

_SYNC = {"always": 1, "interval": 2}


class Server(Handle):
    """A store server, which serves until it is closed.

    :param listen: ``HOST:PORT``, ``[V6]:PORT`` or ``unix:PATH``; port 0 is any free one
    :param data_dir: where the keys are kept; without it they are in memory only
    :param sync: ``always`` (an answered write is on disk) or ``interval``
    :param sync_interval: seconds between two writes to disk with ``interval``; 0.1
    :param backing: ``etcd://HOST[,HOST...]/PREFIX``: the keys are in etcd. ``tcp://HOST:PORT``: the
        server is a gateway to another
    :param http: ``HOST:PORT`` of the status page, /metrics, /healthz and /readyz
    :param http_token: the token that requests to ``http`` must carry
    :param memory_bytes_max: of all keys and values together
    :param value_bytes_max: of one value; 8 MiB
    :param key_bytes_max: of one key; 8 KiB
    :param connections_max: how many connections are accepted; 100,000
    :param session_grace: how many seconds a session outlives its connection; 10
    :param drain_time: how many seconds a drain waits for slow readers; 5
    :param runtime: the runtime it belongs to; by default that of the process
    """

    _close_function = "muster_server_free"
    _close_is_slow = True
    _what = "the server"

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        data_dir: Optional[Any] = None,
        sync: str = "always",
        sync_interval: Optional[float] = None,
        backing: Optional[str] = None,
        http: Optional[str] = None,
        http_token: Optional[str] = None,
        memory_bytes_max: Optional[int] = None,
        value_bytes_max: Optional[int] = None,
        key_bytes_max: Optional[int] = None,
        connections_max: Optional[int] = None,
        session_grace: Optional[float] = None,
        drain_time: Optional[float] = None,
        runtime: Optional[Runtime] = None,
    ) -> None:
        if not isinstance(listen, str):
            raise TypeError(f"listen must be a str, such as '127.0.0.1:29500': not {listen!r}")
        if sync not in _SYNC:
            raise ValueError(f"sync is 'always' or 'interval', not {sync!r}")
        runtime = chosen(runtime)
        super().__init__(runtime)
        config = _lib.defaults(_lib.ServerConfig)
        config.listen = _lib.encoded(listen)
        config.data_dir = _lib.encoded(data_dir)
        config.sync = _SYNC[sync]
        config.backing = _lib.encoded(backing)
        config.http = _lib.encoded(http)
        config.http_token = _lib.encoded(http_token)
        numbers = {
            "memory_bytes_max": memory_bytes_max,
            "value_bytes_max": value_bytes_max,
            "key_bytes_max": key_bytes_max,
            "connections_max": connections_max,
        }
        times = {
            "sync_interval_ms": sync_interval,
            "session_grace_ms": session_grace,
            "drain_ms": drain_time,
        }
        for name, number in numbers.items():
            if number is not None:
                setattr(config, name, _in_range(name, number, 2**63))
        for name, seconds in times.items():
            if seconds is not None:
                setattr(config, name, _in_range(name, _lib.milliseconds(seconds), 2**31))

        def starting(rt: int, at: Any) -> int:
            code: int = _lib.lib.muster_server_start(rt, ctypes.byref(config), at)
            return code

        call_interruptibly(lambda: self._opening(starting), lambda code: self._finish(quietly=True))

    def __repr__(self) -> str:
        return f"<muster.Server{' closed' if self.closed else ' ' + self.address}>"

    @property
    def address(self) -> str:
        """``HOST:PORT`` where it listens, with the port that was found."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_server_address(pointer))

    @property
    def port(self) -> int:
        """The port where it listens."""
        with self._using() as pointer:
            return int(_lib.fast.muster_server_port(pointer))

    @property
    def url(self) -> str:
        """What ``Store`` takes, on this machine: a server that listens on all addresses is met on
        loopback."""
        address = self.address
        for everywhere, loopback in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
            if address.startswith(everywhere):
                address = loopback + address[len(everywhere):]
        return "tcp://" + address

    @property
    def http_address(self) -> str:
        """``HOST:PORT`` of its status page; "" if it has none."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_server_http_address(pointer))

    def drain(self) -> None:
        """Stops reading requests, answers those that were read and closes. Does not wait for that;
        ``close()`` does."""
        with self._using() as pointer:
            _lib.fast.muster_server_drain(pointer)

    def close(self) -> None:
        """Drains the server, and waits until it has stopped."""
        super().close()


def _in_range(name: str, number: int, below: int) -> int:
    if not 0 <= number < below:
        raise ValueError(f"{name} must be from 0 to {below - 1}: not {number}")
    return number
