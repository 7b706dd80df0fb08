"""What the workers of a node keep from one round to the next: a file in memory for each state.

When nodes come or go, all workers are started again, and what was in their memory is gone. So one
worker of each node writes its state into a file in ``/dev/shm``. The directory belongs to the agent
that started the workers, by its process id and the time at which it started:

    /dev/shm/muster-UID/RUN.NAMESPACE.PID.START/PREFIX.safetensors

``muster run`` names it in ``MUSTER_KEEP``, and removes it at its end (src/cli/run_kept.h). What an
agent leaves that was killed, the next worker on the machine that joins anything removes.
"""

import ctypes
import errno
import os
import re
import stat
import zlib
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple

from . import _safetensors, _tree
from .errors import Corrupt, LimitExceeded, MusterError

__all__ = ["Kept", "Version"]

#: The key of the version in a kept file's metadata.
KEY = "muster_version"


class Version(NamedTuple):
    """A version that a node has. Two nodes with the same one have trained in the same round, step
    by step, and so have the same state."""

    epoch: int
    step: int
    round: str

    @classmethod
    def parse(cls, raw: Any) -> "Optional[Version]":
        """A version that was a list in a file or in a store; None if it is none."""
        if (isinstance(raw, (list, tuple)) and len(raw) == 3 and isinstance(raw[2], str)
                and all(type(n) is int and 0 <= n < 2**63 for n in raw[:2])):  # fmt: skip
            return cls(raw[0], raw[1], raw[2])
        return None


# --- whose directory it is ------------------------------------------------------------------------


def _stat_of(pid: int) -> Optional[Tuple[int, str]]:
    """The parent of a process, and when it started; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[1]), fields[19].decode()


def _namespace() -> str:
    """Process ids mean nothing in another container, with which /dev/shm may be shared."""
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "0"


def _word(text: str, most: int) -> str:
    short = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:most]
    return short if short == text else f"{short}_{zlib.crc32(text.encode()):08x}"


def _base() -> str:
    """The directory of this user's, which nobody else may write to."""
    path = f"/dev/shm/muster-{os.getuid()}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "it must be a directory that only you can enter: remove "
                              "it, or give join() another directory", path)  # fmt: skip
    return path


def _remove(path: str) -> None:
    """Removes a directory of files; another worker may be doing the same."""
    try:
        for name in os.listdir(path):
            try:
                os.unlink(os.path.join(path, name))
            except OSError:
                pass
        os.rmdir(path)
    except OSError:
        pass


def remove_dead(base: str) -> List[str]:
    """Removes what agents left that are no more; returns the names."""
    removed = []
    for name in os.listdir(base):
        parts = name.rsplit(".", 3)
        if len(parts) != 4 or not parts[2].isdigit() or parts[1] != _namespace():
            continue
        now = _stat_of(int(parts[2]))
        if now is None or now[1] != parts[3]:
            _remove(os.path.join(base, name))
            removed.append(name)
    return removed


def default_directory(run_id: str) -> str:
    """The directory of the agent that started this worker; ``muster run`` names it."""
    base = _base()
    remove_dead(base)
    named = os.environ.get("MUSTER_KEEP")
    if named:
        os.makedirs(named, 0o700, exist_ok=True)
        return named
    agent = os.getppid()
    found = _stat_of(agent)
    start = found[1] if found is not None else "0"
    path = os.path.join(base, f"{_word(run_id, 64)}.{_namespace()}.{agent}.{start}")
    os.makedirs(path, 0o700, exist_ok=True)
    return path


def directory_in(base: str) -> str:
    """A directory of the agent's own in one that the user names, so that no job finds what another
    has left there. It is removed by the next job that keeps something in the same place."""
    named = os.environ.get("MUSTER_KEEP")
    if not named:
        return base
    remove_dead(base)
    path = os.path.join(base, os.path.basename(named))
    os.makedirs(path, 0o700, exist_ok=True)
    return path


# --- the file -------------------------------------------------------------------------------------


def _exchange(one: str, other: str) -> bool:
    """Lets two files change places in one step; whether that was possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


class Kept:
    """The file in which a node keeps a state, and a spare one beside it: a new version is written
    over the one before the last, and then the two files change places."""

    def __init__(self, directory: str, prefix: str) -> None:
        self.directory = directory
        name = os.path.join(directory, _word(prefix, 100))
        self.path = name + ".safetensors"
        self.arriving = name + ".load"
        self._new = name + ".new"
        self._spare: Optional[_safetensors.MappedFile] = None
        self._current: Optional[_safetensors.MappedFile] = None

    def version(self) -> Optional[Version]:
        """The version that is there; None if there is none, or only a part of one."""
        try:
            head = _safetensors.read_head(self.path)
            _, metadata = _tree.decode(head.metadata, [it.name for it in head.entries])
        except (OSError, MusterError):
            return None
        return Version.parse(metadata.get(KEY))

    def write(self, plan: _tree.Plan, version: Version,
              metadata: Optional[Mapping[str, Any]] = None) -> None:  # fmt: skip
        """Keeps a tree as it is now, in place of the version before. A worker that is killed
        meanwhile leaves that one."""
        raw = _tree.encode(plan, dict(metadata or {}, **{KEY: [*version]}))
        spare = self._spare or _safetensors.MappedFile(self._new)
        self._spare = None
        try:
            self._check_room(_safetensors.file_bytes(plan.slots, raw) - spare.bytes)
            spare.write(plan.slots, raw)
        except BaseException as error:
            spare.close()
            self._discard(self._new)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise self._full(plan.bytes) from None
            raise
        self._put_in_place(spare)

    def _put_in_place(self, spare: _safetensors.MappedFile) -> None:
        """The spare file becomes the one that counts, and that one the spare."""
        if self._current is not None and _exchange(self._new, self.path):
            self._spare = self._current
        else:
            os.replace(self._new, self.path)
            if self._current is not None:
                self._current.close()
        self._current = spare

    def take_arrived(self, version: Version) -> None:
        """Keeps what was loaded from others, if it is what it should be."""
        head = _safetensors.read_head(self.arriving)
        _, metadata = _tree.decode(head.metadata, [it.name for it in head.entries])
        if Version.parse(metadata.get(KEY)) != version:
            raise Corrupt("the state that was loaded is not the version that was announced")
        os.replace(self.arriving, self.path)

    def remove(self) -> None:
        """Removes what is kept."""
        for file in (self._spare, self._current):
            if file is not None:
                file.close()
        self._spare = self._current = None
        for path in (self._new, self.path, self.arriving, self.arriving + ".part"):
            self._discard(path)

    def _discard(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def _check_room(self, need: int) -> None:
        """A version is written beside the one before, so there must be room for two. Others use
        /dev/shm as well, and get a tenth of what is left."""
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize
        if need > free - free // 10:
            raise self._full(need)

    def _full(self, need: int) -> LimitExceeded:
        disk = os.statvfs(self.directory)
        free = disk.f_bavail * disk.f_frsize
        return LimitExceeded(
            f"{self.directory} has no room for a state of {need} bytes beside the version before "
            f"it ({free} bytes are free): make room there, or give join() a directory on a larger "
            "disk"
        )
