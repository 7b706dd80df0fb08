"""Errors: one exception for each kind of failure, all of them ``MusterError``.

Each also derives from the exception of Python's own that means the same, so that code which knows
nothing of muster can handle it: a timeout is a ``TimeoutError``, a lost connection a
``ConnectionError``, an invalid argument a ``ValueError``.
"""

from __future__ import annotations


import errno

from . import _lib

TYPE_CHECKING = False  # see muster/__init__.py
if TYPE_CHECKING:
    from typing import Dict, Optional, Type

__all__ = [
    "MusterError",
    "Busy",
    "Canceled",
    "Closed",
    "ConnectionFailed",
    "Corrupt",
    "Exists",
    "InvalidArgument",
    "LimitExceeded",
    "Locked",
    "NoMemory",
    "NotFound",
    "NotSupported",
    "OutcomeUnknown",
    "Refused",
    "RemoteError",
    "RendezvousClosed",
    "RendezvousError",
    "RendezvousTimeout",
    "SystemFailure",
    "TimedOut",
]


class MusterError(Exception):
    """Something that the library could not do.

    ``code`` is the library's number, and ``name`` its name, such as ``MUSTER_ETIMEDOUT``.
    """

    code: int = 0
    name: str = ""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else self.name


class InvalidArgument(MusterError, ValueError):
    """An argument, a URL or a file of the lock is wrong."""


class TimedOut(MusterError, TimeoutError):
    """It did not happen in time."""


class ConnectionFailed(MusterError, ConnectionError):
    """The other end cannot be reached, was lost, or does not speak the protocol."""


class Refused(ConnectionFailed):
    """The other end refuses us: wrong credential, not allowed, not authorized."""


class Locked(MusterError, PermissionError):
    """Connections beyond loopback need the job's credential."""


class OutcomeUnknown(ConnectionFailed):
    """The other end was lost with the operation, which may or may not have happened."""


class NotFound(MusterError, KeyError):
    """There is no such key, lease, state, worker or method."""


class Exists(MusterError, FileExistsError):
    """It exists already."""


class Busy(MusterError):
    """It is in use."""


class Closed(MusterError):
    """It was closed."""


class Canceled(MusterError):
    """It was canceled."""


class LimitExceeded(MusterError):
    """A limit was exceeded, or the store is full."""


class NotSupported(MusterError, NotImplementedError):
    """This kind of store or backend cannot do that."""


class NoMemory(MusterError, MemoryError):
    """There is not enough memory."""


class Corrupt(MusterError):
    """Data is damaged, or the disk failed."""


class SystemFailure(MusterError, OSError):
    """The operating system refused something; ``errno`` says what."""

    @property
    def errno(self) -> int:  # type: ignore[override]
        """The number of the system's error."""
        return -self.code


class RemoteError(MusterError):
    """The handler of a call failed.

    ``type`` is the name of the exception that a handler in Python raised, and ``text`` its text; of
    a handler in another language, ``text`` is all that it said.
    """

    type: str = ""
    text: str = ""


class RendezvousError(MusterError):
    """The rendezvous failed."""


class RendezvousClosed(RendezvousError):
    """The run is closed."""


class RendezvousTimeout(RendezvousError, TimeoutError):
    """The other nodes did not come in time."""


_CLASSES: Dict[str, Type[MusterError]] = {
    "EINVAL": InvalidArgument,
    "EURL": InvalidArgument,
    "ENOTNUM": InvalidArgument,
    "ENOMEM": NoMemory,
    "ETIMEDOUT": TimedOut,
    "ECANCELED": Canceled,
    "ENOENT": NotFound,
    "EWORKER": NotFound,
    "ENOMETHOD": NotFound,
    "EEXIST": Exists,
    "EBUSY": Busy,
    "EAGAIN": Busy,
    "ECLOSED": Closed,
    "EDRAIN": Closed,
    "ELIMIT": LimitExceeded,
    "EFULL": LimitExceeded,
    "EOVERFLOW": LimitExceeded,
    "EWINDOW": LimitExceeded,
    "EDHT_QUOTA": LimitExceeded,
    "ENOTSUP": NotSupported,
    "ECONN": ConnectionFailed,
    "EPROTO": ConnectionFailed,
    "EVERSION": ConnectionFailed,
    "ENOTSTORE": ConnectionFailed,
    "ENAME": ConnectionFailed,
    "EADDR": ConnectionFailed,
    "ETLS": ConnectionFailed,
    "ENOTLS": ConnectionFailed,
    "EDHT_NOBODY": ConnectionFailed,
    "ESIGNATURE": Refused,
    "EPEERID": Refused,
    "EPEERDENIED": Refused,
    "EREFUSED": Refused,
    "EDHT_DENIED": Refused,
    "ESESSION": OutcomeUnknown,
    "EONCE": OutcomeUnknown,
    "ELOCKED": Locked,
    "ECORRUPT": Corrupt,
    "EDISK": Corrupt,
    "EREMOTE": RemoteError,
    "ERDZV_CLOSED": RendezvousClosed,
    "ERDZV_GRACEFUL": RendezvousClosed,
    "ERDZV_TIMEOUT": RendezvousTimeout,
}


def class_of(name: str) -> Type[MusterError]:
    """The exception for an error's name, such as ``MUSTER_ETIMEDOUT``."""
    short = name[len("MUSTER_"):] if name.startswith("MUSTER_") else name
    if short.startswith("ERDZV_"):
        return _CLASSES.get(short, RendezvousError)
    return _CLASSES.get(short, MusterError)


# What the library says in the words of muster's command, and what Python calls it. Those that are
# part of another come after it.
_WORDS = {
    "--token-file FILE, or MUSTER_TOKEN_FILE":
        "muster.Runtime(token_file=FILE), or MUSTER_TOKEN_FILE",
    "--token-file FILE": "MUSTER_TOKEN_FILE=FILE",
    "--token-file": "MUSTER_TOKEN_FILE",
    "--tls-ca": "MUSTER_TLS_CA",
    "--allow PEER,...": "allow=[PEER, ...]",
    "--allow CIDR": "MUSTER_ALLOW=CIDR",
    "--allow": "MUSTER_ALLOW",
    "--insecure": "MUSTER_INSECURE=1",
    "--max-size": "max_bytes=",
    "--nnodes ": "nodes=",
    "--nnodes": "nodes",
    "--rdzv-id": "run_id",
    "--rdzv-backend c10d": 'backend="c10d"',
    "--rdzv-conf dialect=1.13": 'config="dialect=1.13"',
    "--master-addr and --master-port, or host:port": "host:port",
    "--node-rank, or rank= in the configuration": 'config="rank=NUMBER"',
    ", unless --keep-trying is given": "",
}


def in_words(text: str) -> str:
    """A text of the library's, in the words of this module."""
    if "--" in text:
        for ours, theirs in _WORDS.items():
            text = text.replace(ours, theirs)
    return text


def from_code(code: int, text: Optional[str] = None) -> MusterError:
    """The exception for a code that the library returned; without a text, the text of the last
    error on this thread."""
    if text is None:
        text = _lib.text(_lib.fast.muster_errmsg())
    name = _lib.text(_lib.fast.muster_errname(code))
    system = -4096 < code < 0
    if system:
        name = errno.errorcode.get(-code, f"errno {-code}")
    kind = SystemFailure if system else class_of(name)
    error = kind(in_words(text) or _lib.text(_lib.fast.muster_strerror(code)))
    error.code = code
    error.name = name
    return error


def check(code: int) -> int:
    """Raises the exception for a negative code; returns any other as it is."""
    if code < 0:
        raise from_code(code)
    return code
