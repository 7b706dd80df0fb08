"""Joining: the workers of an elastic job begin with the same state, whichever of them have it.

When nodes come or go, ``muster run`` starts all workers again. Their memory is gone, so one worker
of each node, the keeper (local rank 0), writes the state into a file in memory after each step
(``_kept``). At the next start the workers agree, through the store of the round, on the version to
begin with:

1. Each keeper writes which version its node has, or none: ``have/NODE``.
2. Rank 0 waits for all of them and writes the decision: the version with the highest epoch, then
   the highest step; among several of these, the one that most nodes have. If no node has one, it is
   what rank 0's worker begins with, which rank 0 keeps first.
3. If some node lacks that version, the keepers that have it share their files (``donor/NODE``), and
   the others load it into files of their own, from all of them at once, verified.
4. Each keeper says that its node's file is that version: ``ready/NODE``. All workers of the node
   read it into their tensors.
5. All workers wait until all have done so (``arrived``), and only then train.

The decision is one key that is written once, and each worker either has exactly that version or
fails. So no worker begins with another version than the rest, whenever one is killed. If one is,
the agents end the round and the store with it, and all begin at 1 in the next. A file is replaced
by renaming a whole one over it, so a node always has its old version or its new one. A version is
lost only if all nodes that have it are.

A version's third part is a random word, drawn with the decision of each round. Two nodes that have
the same epoch and step of different rounds have perhaps computed different things; those of one
round have not, as far as the workers compute the same.
"""

import json
import os
import socket
import threading
import time
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Union

from . import _kept, _lib, _read, _runtime, _tree
from ._donor import Donor
from ._kept import Kept, Version
from ._load import Tell, _Load, _request
from .errors import Corrupt, InvalidArgument, Locked, MusterError, TimedOut
from .store import Store

__all__ = ["Joined", "join"]

_calls: Dict[str, int] = {}
_calls_lock = threading.Lock()


class _Place(NamedTuple):
    """Where a worker is in its job."""

    rank: int
    world_size: int
    local_rank: int
    node: int
    nodes: int
    run_id: str


def _number(given: Optional[int], name: str, default: int) -> int:
    if given is not None:
        return given
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"the variable {name} must be a number: not {text!r}") from None


def _place(
    rank: Optional[int], world_size: Optional[int], local_rank: Optional[int],
    node: Optional[int], nodes: Optional[int], run_id: Optional[str],
) -> _Place:  # fmt: skip
    """What the caller says, else the environment. Without either a worker is alone."""
    world_size = _number(world_size, "WORLD_SIZE", 1)
    rank = _number(rank, "RANK", 0)
    local_rank = _number(local_rank, "LOCAL_RANK", 0)
    node = _number(node, "GROUP_RANK", rank if local_rank == 0 else 0)
    nodes = _number(nodes, "GROUP_WORLD_SIZE", world_size)
    run_id = run_id if run_id is not None else os.environ.get("TORCHELASTIC_RUN_ID", "")
    if not (0 <= rank < world_size and 0 <= node < nodes):
        raise InvalidArgument(f"rank {rank} of {world_size} on node {node} of {nodes}: set RANK, "
                              "WORLD_SIZE, LOCAL_RANK, GROUP_RANK and GROUP_WORLD_SIZE, or give "
                              "join() rank, world_size, local_rank, node and nodes")
    return _Place(rank, world_size, local_rank, node, nodes, run_id)


def _open_store(timeout: float) -> Store:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if not host or not port:
        raise InvalidArgument("there is no MASTER_ADDR and MASTER_PORT: start the script with "
                              "`muster run`, or give join() the store of the round")
    host = f"[{host}]" if ":" in host else host
    return Store(f"tcp://{host}:{port}", connect_timeout=timeout)


class _Round:
    """The agreement of one round, in its store."""

    def __init__(self, store: Store, prefix: str, timeout: float) -> None:
        with _calls_lock:
            number = _calls[prefix] = _calls.get(prefix, 0) + 1
        self.store = store
        self.base = f"muster-join/{prefix}/{number}/"
        self.end = time.monotonic() + timeout

    def left(self) -> float:
        return max(self.end - time.monotonic(), 0.001)

    def put(self, key: str, value: Any) -> None:
        self.store.set(self.base + key, json.dumps(value), timeout=self.left())

    def get(self, key: str, what: str) -> Any:
        """Waits for a key; ``what`` says for what, if it does not come."""
        try:
            raw = self.store.get(self.base + key, timeout=self.left())
        except TimedOut as error:
            raise TimedOut(f"joining: waited in vain for {what}") from error
        try:
            return json.loads(raw)
        except ValueError:
            raise Corrupt(f"{self.base}{key} in the store is not what join() writes") from None

    def is_first(self, key: str) -> bool:
        """Whether nobody else has asked for this: with virtual local ranks, several have number
        0."""
        return self.store.add(self.base + key, 1, timeout=self.left()) == 1

    def arrive(self, count: int, who: str) -> None:
        """Returns when all of them have come here."""
        if self.store.add(f"{self.base}arrived/{who}", 1, timeout=self.left()) == count:
            self.put(f"all/{who}", True)
        self.get(f"all/{who}", f"all {count} {who} to have the state")


def _decide(have: List[Any]) -> Dict[str, Any]:
    """The version that all begin with, and which nodes have it. ``version`` is None if there is
    none."""
    versions = [Version.parse(row.get("version")) for row in have]
    known = Counter(v for v in versions if v is not None)
    chosen = max(known, key=lambda v: (v.epoch, v.step, known[v], v.round), default=None)
    holders = [i for i, v in enumerate(versions) if v is not None and v == chosen]
    return {
        "version": None if chosen is None else [*chosen],
        "holders": holders,
        "round": os.urandom(8).hex(),
    }


def _is_loopback(address: str) -> bool:
    host = address.rsplit(":", 1)[0].strip("[]")
    return address.startswith("unix:") or host.startswith("127.") or host in ("::1", "localhost")


def _host() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    try:
        network = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        network = 0
    return f"{socket.gethostname()} {boot} {network}"


class Joined:
    """A worker's place in the training. ``step`` and ``epoch`` say how many are done.

    ``source`` says where the state came from: ``"start"`` (nobody had one), ``"kept"`` (this node
    did) or ``"others"``.
    """

    def __init__(self, what: Any, place: _Place, kept: Optional[Kept], every: int) -> None:
        self.step = 0
        self.epoch = 0
        self.source = "start"
        self.metadata: Dict[str, Any] = {}
        self._what = what
        self._place = place
        self._kept = kept
        self._every = every
        self._round = ""
        self._done_at = 0  # the step that was kept last

    def update(
        self,
        step: Optional[int] = None,
        *,
        epoch: Optional[int] = None,
        metadata: Optional[Mapping[str, Any]] = None,
    ) -> bool:
        """Says that a step is done, and keeps the state as it is now. Call it after each step, on
        every worker. Returns whether this worker has kept it.

        :param step: how many steps are done; by default one more than before
        :param epoch: how many epochs are done
        :param metadata: a dict that the next ``join`` has as its ``metadata``
        """
        self.step = self.step + 1 if step is None else step
        self.epoch = self.epoch if epoch is None else epoch
        due = self.step % self._every == 0 or self.step - self._done_at >= self._every
        if self._kept is None or not due:
            return False
        version = Version(self.epoch, self.step, self._round)
        self._kept.write(_tree.Plan(self._what), version, metadata)
        self._done_at = self.step
        return True

    def steps(self, count: int) -> Iterator[int]:
        """The numbers of the steps that are left of ``count``; each is done, and kept, when the
        next is asked for."""
        while self.step < count:
            yield self.step
            self.update()

    def forget(self) -> None:
        """Removes what this node keeps: the next round begins without it."""
        if self._kept is not None:
            self._kept.remove()

    def __repr__(self) -> str:
        return f"<muster.state.Joined epoch {self.epoch}, step {self.step}, from {self.source}>"


class _Joining:
    """The steps of the protocol, for one worker."""

    def __init__(
        self, joined: Joined, round: _Round, prefix: str, listen: Optional[str],
        advertise: Optional[str], progress: Union[Tell, bool, None],
    ) -> None:  # fmt: skip
        self.joined = joined
        self.place = joined._place
        self.round = round
        self.kept = joined._kept
        self.prefix = prefix
        self.listen = listen
        self.advertise = advertise
        self.progress = progress

    def run(self) -> None:
        place, round = self.place, self.round
        if self.kept is not None:
            own = self.kept.version()
            round.put(f"have/{place.node}", {"version": own and [*own]})
        if place.rank == 0:
            have = [round.get(f"have/{i}", f"node {i} of {place.nodes} to say what it has")
                    for i in range(place.nodes)]  # fmt: skip
            round.put("decision", _decide(have))
        decision = round.get("decision", "rank 0 to decide on a version")
        version = Version.parse(decision["version"])
        self.joined._round = str(decision["round"])
        if version is None:
            version, holders = self._begin(self.joined._round), [0]
            self.joined.source = "start"
        else:
            holders = [int(i) for i in decision["holders"]]
            self.joined.source = "kept" if place.node in holders else "others"
        self._bring(version, holders)
        round.arrive(place.world_size, "workers")

    def _begin(self, word: str) -> Version:
        """Nobody has a state: all begin with that of the first node's keeper, which is rank 0."""
        version = Version(self.joined.epoch, self.joined.step, word)
        if self.place.node == 0 and self.kept is not None:
            self.kept.write(_tree.Plan(self.joined._what), version)
        return version

    def _bring(self, version: Version, holders: List[int]) -> None:
        """Brings the version to this node, and into this worker's tensors."""
        place, round = self.place, self.round
        if self.kept is None:
            row = round.get(f"ready/{place.node}", "local rank 0 to get the state")
            if row["error"]:
                raise MusterError(f"joining: local rank 0 could not get it: {row['error']}")
            self._read(version, row["path"])
            return
        donor: Optional[Donor] = None
        why = "it failed"
        try:
            if len(holders) < place.nodes:
                donor = Donor(self.listen, advertise=self.advertise)
                if place.node in holders:
                    self._offer(donor, version)
                else:
                    self._load(donor, version, holders)
            self._read(version, self.kept.path)
            why = ""
        except Exception as error:
            why = str(error)
            raise
        finally:
            self._tell(why)
        if donor is not None:
            # Others may still be loading from here.
            round.arrive(place.nodes, "nodes")
            donor.close()

    def _tell(self, why: str) -> None:
        try:
            path = self.kept.path if self.kept is not None else ""
            self.round.put(f"ready/{self.place.node}", {"error": why, "path": path})
        except MusterError:
            if not why:
                raise

    def _offer(self, donor: Donor, version: Version) -> None:
        assert self.kept is not None
        shared = donor.share_file(self.kept.path, prefix=self.prefix, epoch=version.epoch,
                                  step=version.step)  # fmt: skip
        self.round.put(f"donor/{self.place.node}",
                       {"address": shared.address, "id": shared.info.id, "host": _host()})

    def _load(self, donor: Donor, version: Version, holders: List[int]) -> None:
        rows = [self.round.get(f"donor/{i}", f"node {i} to share the state") for i in holders]
        ids = Counter(row["id"] for row in rows)
        wanted = max(ids, key=lambda id: (ids[id], id))
        rows = [row for row in rows if row["id"] == wanted]
        here = _host()
        reached = [row["address"] for row in rows
                   if row["host"] == here or not _is_loopback(row["address"])]  # fmt: skip
        if not reached:
            raise Locked(
                f"the state is on {rows[0]['host'].split()[0]}, which shares it on loopback only: "
                "give the workers the job's token on every node (MUSTER_TOKEN_FILE in their "
                "environment), or join(listen=...)"
            )
        request, keep = _request(donor._runtime or _runtime.default(), self.prefix, reached, None,
                                 None, None, None, None, wanted)  # fmt: skip
        assert self.kept is not None
        request.file = _lib.encoded(self.kept.arriving)
        request.timeout_ms = _lib.milliseconds(self.round.left())
        with donor._using() as pointer:
            request.through = pointer
            assert donor._runtime is not None
            _Load(donor._runtime, request, keep, self.prefix, self.progress).run().free()
        self.kept.take_arrived(version)

    def _read(self, version: Version, path: str) -> None:
        _, metadata = _read.read_with(path, self.joined._what)
        if Version.parse(metadata.pop(_kept.KEY, None)) != version:
            raise Corrupt(f"{path} was replaced while it was being read")
        self.joined.epoch, self.joined.step = version.epoch, version.step
        self.joined.metadata = metadata
        self.joined._done_at = version.step


def join(
    what: Any,
    *,
    prefix: str = "model",
    every: int = 1,
    store: Optional[Store] = None,
    directory: Optional[str] = None,
    listen: Optional[str] = None,
    advertise: Optional[str] = None,
    timeout: float = 600.0,
    progress: Union[Tell, bool, None] = None,
    rank: Optional[int] = None,
    world_size: Optional[int] = None,
    local_rank: Optional[int] = None,
    node: Optional[int] = None,
    nodes: Optional[int] = None,
    run_id: Optional[str] = None,
) -> Joined:
    """Brings all workers of a round to the same state: the newest that any of their nodes has kept.

    Call it on every worker before the first step, with the tree that the training changes::

        state = muster.state.join({"model": model, "optimizer": optimizer})
        for step in range(state.step, steps):
            train(step)
            state.update()

    When it returns, all workers of the round have the same state, bit for bit, and the same
    ``step``. If no node has one, it is that of rank 0. ``update`` keeps it in memory of the node,
    which outlives the workers; it needs room for two versions in ``/dev/shm``.

    Under ``muster run`` everything else comes from the environment. Between machines the workers
    need the job's credential, as the agents do: set ``MUSTER_TOKEN_FILE`` for both.

    :param every: keep the state only after every so many steps
    :param store: the store of the round, which no other round has used
    :param directory: where the state is kept, instead of ``/dev/shm``; one for each node
    :param listen: where other nodes get it from this one
    :param advertise: the host that they dial
    :param timeout: for all workers to come, and to have the state
    """
    if every < 1:
        raise InvalidArgument(f"every is a number of steps: not {every}")
    place = _place(rank, world_size, local_rank, node, nodes, run_id)
    if place.world_size == 1 and store is None and not os.environ.get("MASTER_ADDR"):
        # Alone, and nobody starts it again: it keeps something only if it is told where.
        joined = Joined(what, place, Kept(directory, prefix) if directory else None, every)
        return _alone(joined)
    own = None if store is not None else _open_store(timeout)
    try:
        round = _Round(store or own, prefix, timeout)  # type: ignore[arg-type]
        kept = None
        if place.local_rank == 0 and round.is_first(f"keeper/{place.node}"):
            own_place = _kept.directory_in(directory) if directory else None
            kept = Kept(own_place or _kept.default_directory(place.run_id), prefix)
        joined = Joined(what, place, kept, every)
        _Joining(joined, round, prefix, listen, advertise, progress).run()
    finally:
        if own is not None:
            own.close()
    return joined


def _alone(joined: Joined) -> Joined:
    kept = joined._kept
    joined._round = os.urandom(8).hex()
    version = kept.version() if kept is not None else None
    if kept is None or version is None:
        return joined
    _, metadata = _read.read_with(kept.path, joined._what)
    metadata.pop(_kept.KEY, None)
    joined.epoch, joined.step, joined.metadata = version.epoch, version.step, metadata
    joined.source, joined._done_at = "kept", version.step
    return joined
