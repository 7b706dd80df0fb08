"""DiLoCo: peers train apart, and an outer optimizer follows the average of how far they have come.

Every fragment of the model has a **version**: how many rounds have moved its agreed values. What
becomes of a round depends on the group that made it, so a version has a **rank** as well, made of
that group's id, and at first of the values that a peer begins with. Whoever has not got the highest
has missed a round, or was in another group: it loads the fragment from those that have. So peers
that lose each other come together again, with nobody in charge.

Each fragment is a state of its own (``PREFIX_NUMBER``), shared again after each of its rounds: the
version is its epoch and the rank its priority, so what is loaded is the highest. Before a round a
peer asks who shares the fragment: so it knows whether it is behind, and for how many to wait.
Members also tell their versions in the round, for those who asked too early.
"""

import math
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _fragment, _lib, _load, _runtime, _tensors, worker
from ._donor import Donor
from ._runtime import Runtime
from ._tree import Mismatch
from .errors import Closed, ConnectionFailed, InvalidArgument, MusterError, NotFound

if TYPE_CHECKING:
    from .average import Look, Result

__all__ = ["Outer", "Round"]

#: For the first peers of a run to be heard of in the DHT: seconds.
PATIENCE = 10.0
#: For a round in which others need our share, when we leave: seconds.
LINGER = 10.0

#: Of a group.
SIZE_MAX = 256

#: A version and its rank: of two, the greater is the one that counts.
Version = Tuple[int, float]


class Round(NamedTuple):
    """What became of a fragment's round."""

    fragment: int
    step: int  #: after which it began
    version: int  #: of the fragment, afterwards
    result: "Optional[Result]"  #: who took part; None: there was no group
    error: Optional[MusterError]  #: why nothing was averaged; what was learned goes into the next
    loaded: bool  #: others were ahead, and the fragment is now as theirs
    seconds: float  #: that training waited for it

    @property
    def members(self) -> int:
        """How many took part, with us; 0 if it failed."""
        if self.result is None or self.error is not None:
            return 0
        return len(self.result.members) - len(self.result.failed)


class _Tensor:
    """A parameter: as it is trained here, as all agreed last, and how far it has come since."""

    def __init__(self, name: str, local: Any) -> None:
        torch = sys.modules["torch"]
        if not torch.is_tensor(local) or not torch.is_floating_point(local):
            raise InvalidArgument(f"{name}: only tensors of floats of PyTorch's can be trained")
        self.name = name
        self.parameter = local
        kind = torch.promote_types(local.dtype, torch.float32)
        self.agreed = self.local.to("cpu", kind, copy=True).contiguous()
        self.delta = torch.zeros_like(self.agreed)
        self.agreed.requires_grad_(True)  # some optimizers look

    @property
    def local(self) -> Any:
        return self.parameter.detach()  # in the same memory, also if that was replaced

    def measure(self) -> None:
        """How far it has come: what an optimizer takes for a gradient. A parameter that is shorter
        than float32 began at the agreed value as it can hold it: the rest is not progress."""
        torch = sys.modules["torch"]
        local, start = self.local, self.agreed.detach()
        self.delta.copy_(local)
        if local.dtype != start.dtype:
            start = start.to(local.dtype).to(start.dtype)
        torch.sub(start, self.delta, out=self.delta)

    def follow(self, alpha: float) -> None:
        """It is trained from the agreed value on, with a share of its own."""
        local = self.local
        if alpha:
            local.lerp_(self.agreed.detach().to(local.device, local.dtype), 1 - alpha)
        else:
            local.copy_(self.agreed.detach())


class _Fragment:
    """Some of the parameters, which are averaged together."""

    def __init__(self, number: int, name: str, tensors: List[_Tensor]) -> None:
        self.number = number
        self.name = name
        self.tensors = tensors
        self.version: Version = (0, _crc(tensors))
        self.averager: Any = None
        self.size = 0  # of the group for which the averager waits
        self.samples = 0.0  # since the version
        self.busy = False  # a round is under way
        self.began = 0  # the step after which it began
        self.sent = 0.0  # the samples that are in it
        self.loaded = False  # the fragment was loaded for it
        self.waited = 0.0  # the seconds that its beginning took


def _crc(tensors: List[_Tensor]) -> float:
    """The rank of the values that a run begins with: a number from 0 to 1."""
    crc = 0
    for it in tensors:
        count = it.agreed.numel() * it.agreed.element_size()
        if count:
            crc = zlib.crc32(_tensors.block(it.agreed.data_ptr(), count), crc)
    return crc / 2**32


def _named(model: Any) -> List[Tuple[str, Any]]:
    if callable(getattr(model, "named_parameters", None)):
        return [(name, it) for name, it in model.named_parameters() if it.requires_grad]
    if isinstance(model, Mapping):
        return [(str(name), it) for name, it in model.items()]
    return [(str(i), it) for i, it in enumerate(model)]


def _check(tensors: List[_Tensor]) -> None:
    if not tensors:
        raise InvalidArgument("there is nothing to train: no parameter needs a gradient")
    names: Dict[int, str] = {}
    for it in tensors:
        first = names.setdefault(it.local.data_ptr(), it.name) if it.delta.numel() else it.name
        if first != it.name:
            raise InvalidArgument(f"{first} and {it.name} share memory: leave one of them out")


def _buffers(model: Any) -> Dict[str, Any]:
    """What a module has beside its parameters, such as the statistics of a BatchNorm."""
    if not callable(getattr(model, "named_buffers", None)):
        return {}
    names = {name for name, _ in model.named_buffers()}
    return {name: it for name, it in model.state_dict().items() if name in names}


def _take_over(optimizer: Any, tensors: List[_Tensor]) -> Any:
    """Lets an optimizer of the parameters step their agreed values instead."""
    homes = {id(it.parameter): it.agreed for it in tensors}

    def home(parameter: Any) -> Any:
        if id(parameter) not in homes:
            raise InvalidArgument("the outer optimizer has a parameter that is not trained, of shape "
                                  f"{list(parameter.shape)}: give it those of the model that need "
                                  "a gradient")
        return homes[id(parameter)]

    groups = [[home(it) for it in group["params"]] for group in optimizer.param_groups]
    for parameter in [*optimizer.state]:
        agreed = home(parameter)
        optimizer.state[agreed] = {
            key: value.to(agreed) if getattr(value, "shape", None) == agreed.shape else value
            for key, value in optimizer.state.pop(parameter).items()
        }
    for group, agreed in zip(optimizer.param_groups, groups):
        group["params"] = agreed
    return optimizer


def _optimizer(given: Any, tensors: List[_Tensor]) -> Any:
    torch = sys.modules["torch"]
    agreed = [it.agreed for it in tensors]
    if given is None:
        return torch.optim.SGD(agreed, lr=0.7, momentum=0.9, nesterov=True)
    if isinstance(given, torch.optim.Optimizer):
        made = _take_over(given, tensors)
    else:
        made = given(agreed)
    known = {id(it) for group in made.param_groups for it in group["params"]}
    for it in tensors:
        if id(it.agreed) not in known:
            raise InvalidArgument(f"the outer optimizer has not got the parameter {it.name}")
    return made


def _rank(group_id: str) -> float:
    """The rank of what a group has made: a number from 0 to 1 that a float holds."""
    return int(group_id[:13] or "0", 16) / 16**13


class Outer:
    """Trains a model with peers that are far away: DiLoCo, with the fragments of Streaming DiLoCo.

    ::

        outer = muster.average.Outer(model, every=500, fragments=8, prefix="run7", dht=[address])
        outer.load_state()                     # begins where the others are
        for batch in data:
            loss = model(batch)
            loss.backward()
            optimizer.step()
            outer.step()

    Each peer trains by itself. Every ``every`` steps the peers average how far they have come, and
    the outer optimizer takes that average for a gradient: it steps the values that all agreed on
    last, and everybody goes on from there. Use it on one thread.

    :param model: a module, whose parameters that need a gradient are trained; or a list or dict of
        tensors. All of each must be in this process, on the CPU or not
    :param outer_optimizer: a function that is given a list of tensors and returns an optimizer of
        them; or an optimizer of the model's parameters, which is Outer's from then on. It steps
        copies of the parameters, in float32 and on the CPU. By default
        ``SGD(lr=0.7, momentum=0.9, nesterov=True)``
    :param every: each parameter is averaged every so many steps
    :param fragments: in so many parts, one after the other. All peers must have the same numbers,
        and the parameters in the same order
    :param prefix: the name of the run, the same at all peers; without a dot
    :param dht: multiaddrs of peers of the run; an empty list begins a new one
    :param overlap: a round goes on while the next steps are computed; it counts when it has ended,
        at the latest before the next round of the same fragment
    :param alpha: how much of its own a parameter keeps when a round counts, from 0 to 1; by default
        0, with ``overlap`` 0.5
    :param timeout: for a round, in seconds. Half of it is for others to come
    :param through: a ``muster.state.Donor`` in a DHT, as in ``Averager``. Then the addresses below,
        and ``dht``, are not used
    :param listen: a multiaddr; by default any port on loopback
    :param target_size: a round begins at once when so many are there; by default, when all are
        that share the run's state. Otherwise it begins when its time has come (``matchmaking``)
    :param options: the others are those of ``Averager``: ``encoding``, ``matchmaking`` and so on
    """

    def __init__(
        self,
        model: Any,
        outer_optimizer: Any = None,
        *,
        prefix: str,
        every: int = 500,
        fragments: int = 1,
        dht: Optional[Sequence[str]] = None,
        overlap: bool = False,
        alpha: Optional[float] = None,
        timeout: float = 120.0,
        target_size: Optional[int] = None,
        through: Optional[Donor] = None,
        listen: str = "/ip4/127.0.0.1/tcp/0",
        advertise: Optional[str] = None,
        key: str = "",
        allow: Optional[Sequence[str]] = None,
        runtime: Optional[Runtime] = None,
        **options: Any,
    ) -> None:
        if "torch" not in sys.modules:
            raise InvalidArgument("Outer trains tensors of PyTorch's, which is not imported")
        _runtime.check_is("through must be a muster.state.Donor", through, Donor)
        self.every = _lib.whole("every", every, 1, _fragment.EVERY_MAX)
        count = _lib.whole("fragments", fragments, 1, _fragment.COUNT_MAX)
        tensors = [_Tensor(name, it) for name, it in _named(model)]
        _check(tensors)
        if count > min(every, len(tensors)):
            raise InvalidArgument(f"there are more fragments than steps or parameters: {count} of "
                                  f"{every} and {len(tensors)}")  # fmt: skip
        if alpha is not None and not 0 <= alpha <= 1:
            raise InvalidArgument(f"alpha is from 0 to 1: not {alpha}")
        self._alpha = alpha if alpha is not None else 0.5 if overlap else 0.0
        self._overlap = overlap
        self._timeout = timeout
        self._model = model
        self._began = False
        self._closed = False
        self._ended: List[Round] = []  # rounds that step() has not returned yet
        #: How many steps the run has made; after ``load_state()`` as many as the others.
        self.steps = 0
        #: The outer optimizer, whose learning rate may be changed. It steps copies.
        self.optimizer = _optimizer(outer_optimizer, tensors)
        parts = _fragment.divide([it.delta.numel() for it in tensors], count)
        self._fragments = [_Fragment(number, f"{prefix}_{number}", [tensors[i] for i in part])
                           for number, part in enumerate(parts)]  # fmt: skip
        self._size = target_size
        self._options = options
        self._first = through is None and not dht  # there is nobody yet
        self._own = through is None
        self._donor = through or Donor(listen, advertise=advertise, key=key, allow=allow,
                                       dht=[] if dht is None else dht, runtime=runtime)  # fmt: skip
        try:
            for it in self._fragments:
                self._open(it, target_size or 0)
        except BaseException:
            self.close()
            raise

    def _open(self, it: _Fragment, size: int) -> None:
        """Opens a fragment's averager, for groups of a size."""
        from .average import Averager  # which has this class among its names

        if it.averager is not None:
            it.averager.close()
        deltas = {tensor.name: tensor.delta for tensor in it.tensors}
        it.averager = Averager(deltas, prefix=it.name, through=self._donor, target_size=size,
                               **self._options)  # fmt: skip
        it.size = size

    # --- what it is -------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The multiaddr that others dial: for their ``dht``."""
        return self._donor.address

    @property
    def peer(self) -> str:
        """Our peer id."""
        return str(self._fragments[0].averager.peer)

    @property
    def versions(self) -> List[int]:
        """How many rounds have moved each fragment."""
        return [it.version[0] for it in self._fragments]

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has left because the members of the job change."""
        return self._closed

    def look(self) -> "Optional[Look]":
        """What the oldest round that is under way waits for; from any thread."""
        busy = [it for it in self._fragments if it.busy]
        return min(busy, key=lambda it: it.began).averager.look() if busy else None

    # --- a step -----------------------------------------------------------------------------------

    def step(self, samples: float = 1.0) -> Optional[Round]:
        """Call it after each step of the inner optimizer. Returns the round that has ended, if one
        has: also one that failed, after which training goes on, and what it learned is in the next.

        Under ``muster run``, when the members of the job will change, it leaves (``closed``), and
        does nothing from then on: save, and call ``worker.saved()``.

        :param samples: behind this step: a round counts each peer by its samples
        """
        if not 0 <= samples < math.inf:
            raise InvalidArgument(f"samples is a number from 0: not {samples}")
        if self._closed:
            return None
        if worker.change_due() is not None:
            self.close()
            return None
        self._begin_run()
        self.steps += 1
        for it in self._fragments:
            it.samples += samples
            if it.busy and it.averager.wait(0):
                self._finish(it)
        number = _fragment.due(self.every, len(self._fragments), self.steps)
        if number is not None:
            self._make_round(self._fragments[number])
        return self._ended.pop(0) if self._ended else None

    def _make_round(self, it: _Fragment) -> None:
        now = self.steps
        if it.busy:
            self._finish(it)
        if self.steps == now:  # else the others are elsewhere
            self._start(it)
            if it.busy and not self._overlap:
                self._finish(it)

    def _start(self, it: _Fragment) -> None:
        """Begins a round."""
        it.began, it.loaded, it.waited = self.steps, False, 0.0
        before = time.monotonic()
        try:
            newest, others = self._others(it)
            if newest > it.version:
                self._catch_up(it)
                it.loaded = True
                if self.steps != it.began:  # the others are elsewhere
                    return self._tell(it, before, None, None)
            if others == 0:
                raise NotFound("no other peer of the run is here")
            if self._size is None and it.size != min(others + 1, SIZE_MAX):
                self._open(it, min(others + 1, SIZE_MAX))
            it.sent = it.samples
            with sys.modules["torch"].no_grad():
                for tensor in it.tensors:
                    tensor.measure()
            told = {"version": it.version[0], "rank": it.version[1], "step": self.steps}
            it.averager.begin(weight=it.samples, timeout=self._timeout, gather=told)
            it.busy, it.waited = True, time.monotonic() - before
        except Closed:
            raise
        except MusterError as error:
            self._tell(it, before, None, error)

    def _finish(self, it: _Fragment) -> None:
        """Waits for a round's end, and takes what came of it."""
        before = time.monotonic()
        result: Any = None
        try:
            try:
                result = it.averager.end()
            finally:
                it.busy = it.averager.look().phase != "idle"
            if result.parts_local:
                # Each member may lack other parts. So nobody who lacks any goes on with them.
                names = ", ".join(member.peer for member in result.failed) or "a member"
                raise ConnectionFailed(f"{result.parts_local} of {result.parts} parts were lost "
                                       f"with {names}")  # fmt: skip
            newest, last = self._newest_of(it, result)
            self.steps += max(0, last - it.began)
            if newest > it.version:
                raise MusterError("a member of the round was ahead of us, and we do not have what "
                                  "it began with")  # fmt: skip
            self._apply(it, (newest[0] + 1, _rank(result.group_id)))
            self._tell(it, before, result, None)
        except Closed:
            raise
        except MusterError as error:
            it.loaded |= self._try_to_catch_up(it)
            self._tell(it, before, getattr(error, "result", result), error)

    def _tell(self, it: _Fragment, before: float, result: Any,
              error: Optional[MusterError]) -> None:  # fmt: skip
        seconds = it.waited + time.monotonic() - before
        self._ended.append(Round(it.number, it.began, it.version[0], result, error, it.loaded,
                                 seconds))  # fmt: skip

    def _newest_of(self, it: _Fragment, result: Any) -> Tuple[Version, int]:
        """The highest version that a member came with, and the last step."""
        newest, step = it.version, it.began
        for member in result.members:
            told = member.gather
            if member.failure or not isinstance(told, dict):
                continue
            try:
                version = (int(told["version"]), float(told["rank"]))
                newest, step = max(newest, version), max(step, int(told["step"]))
            except (KeyError, TypeError, ValueError):
                pass  # it is not one of ours
        return newest, step

    def _apply(self, it: _Fragment, version: Version) -> None:
        """The agreed values follow the average, and the parameters follow them."""
        for tensor in it.tensors:
            tensor.agreed.grad = tensor.delta
        self.optimizer.step()
        for tensor in it.tensors:
            tensor.agreed.grad = None
        with sys.modules["torch"].no_grad():
            for tensor in it.tensors:
                tensor.follow(self._alpha)
        it.version = version
        it.samples -= it.sent
        self._share(it)

    # --- what others have -------------------------------------------------------------------------

    def load_state(self, timeout: float = 600.0) -> bool:
        """Loads what others have: the agreed values, the outer optimizer's statistics, the number of
        steps. Call it before the first step: so newcomers begin where the others are. Later only
        what is newer than ours is loaded. Returns whether there was anything. The first peer of a
        run has nobody to load from, and begins with what it has; with a ``dht``, after ten seconds.

        Raises what ``muster.state.load`` does if somebody has a state, and it cannot be loaded.
        """
        self._check_open()
        until = time.monotonic() + PATIENCE
        while not (self._began or self._first or self._others(self._fragments[0])[1]):
            if time.monotonic() >= until:
                break
            time.sleep(0.2)  # what was shared a moment ago is not in the DHT yet
        anything = False
        for it in self._fragments:
            if it.busy:
                self._finish(it)
            newest, others = self._others(it)
            if others and (newest > it.version or not self._began):
                self._load(it, timeout)
                anything = True
        self._begin_run()
        return anything

    def _begin_run(self) -> None:
        """From now on others can load from us."""
        if not self._began:
            self._began = True
            for it in self._fragments:
                self._share(it)

    def _others(self, it: _Fragment) -> Tuple[Version, int]:
        """The highest version that others share, or ours, and how many others there are."""
        try:
            rows = _load.list_states(prefix=it.name, through=self._donor)
        except NotFound:
            rows = []
        found = [(row.info.epoch, row.info.priority) for row in rows if row.info is not None]
        return max([it.version, *found]), len(found)

    def _catch_up(self, it: _Fragment) -> None:
        """Loads a fragment, of which others have a newer version, and whatever else they have
        newer."""
        self._load(it, self._timeout)
        for other in self._fragments:
            if not other.busy and self._others(other)[0] > other.version:
                self._load(other, self._timeout)

    def _try_to_catch_up(self, it: _Fragment) -> bool:
        """After a round that failed: the others may have gone on. What cannot be had now is tried
        again before the next round. Returns whether it was loaded."""
        try:
            behind = self._others(it)[0] > it.version
            if behind:
                self._catch_up(it)
            return behind
        except Closed:
            raise
        except MusterError:
            return False

    def _load(self, it: _Fragment, timeout: float) -> None:
        """Takes a fragment from others."""
        loaded = _load.load(prefix=it.name, through=self._donor, timeout=timeout, progress=False)
        tree = loaded.tree
        for tensor in it.tensors:
            value = tree["agreed"].get(tensor.name)
            if value is None or value.shape != tensor.agreed.shape:
                raise Mismatch(f"the run's model is another one: {tensor.name} differs")
        with sys.modules["torch"].no_grad():
            for tensor in it.tensors:
                tensor.agreed.copy_(tree["agreed"][tensor.name])
                tensor.follow(0.0)
                self.optimizer.state[tensor.agreed] = {
                    key: value.clone() if hasattr(value, "clone") else value
                    for key, value in tree["outer"].get(tensor.name, {}).items()
                }
            if not self._began:
                for name, value in _buffers(self._model).items():
                    if name in tree["buffers"]:
                        value.copy_(tree["buffers"][name])
        it.version = (loaded.epoch, loaded.info.priority)
        it.samples = 0.0
        self.steps = max(self.steps, loaded.step)
        if self._began:
            self._share(it)

    def _share(self, it: _Fragment) -> None:
        """Gives a fragment to others, as it is now."""
        state = self.optimizer.state
        tree = {
            "agreed": {tensor.name: tensor.agreed.detach() for tensor in it.tensors},
            "outer": {tensor.name: dict(state.get(tensor.agreed, {})) for tensor in it.tensors},
            "buffers": _buffers(self._model) if it.number == 0 else {},
        }
        self._donor.share(tree, prefix=it.name, epoch=it.version[0], priority=it.version[1],
                          step=self.steps)  # fmt: skip

    # --- the end ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise _runtime.closed_error("the outer optimizer")

    def close(self) -> None:
        """Leaves. A round in which others need our share is ended first, for up to ten seconds. The
        parameters stay as they are; what they have learned since the last round stays here. A
        second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for it in self._fragments:
            if it.busy and it.averager.look().phase == "reducing":
                it.averager.wait(LINGER)
        for it in self._fragments:
            if it.averager is not None:
                it.averager.close()
            if self._began and not self._own:
                self._donor.unshare(it.name)
        if self._own:
            self._donor.close()

    def __enter__(self) -> "Outer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
