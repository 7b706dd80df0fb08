"""muster.average.Outer: what it does with a round's outcome, with averagers that do as they are told;
then real ones over loopback."""

import contextlib
import math
import threading
from types import SimpleNamespace
from typing import Any, Callable, Dict, Iterator, List, Optional

import harness
import muster
from muster import _fragment, _outer, average, errors, state, worker

checks = harness.checks
try:
    import torch
except ImportError:
    checks.skip("no PyTorch here")

torch.set_num_threads(1)
QUICK: Dict[str, Any] = {"matchmaking": 1.5, "request_timeout": 0.7}


# --- averagers that do as they are told -----------------------------------------------------------


class Told:
    """A swarm in which the test plays the others."""

    def __init__(self) -> None:
        self.averagers: Dict[str, "Averager"] = {}
        self.shared: Dict[str, Any] = {}  # what we share, by prefix
        self.others: Dict[str, Any] = {}  # what others share
        self.count = 1  # how many others there are
        self.opened: List[int] = []  # for groups of what size
        self.coming: Any = None  # what somebody will share soon

    def come(self, seconds: float) -> None:
        """Instead of a pause: somebody begins to share."""
        self.count, self.others = 1, {"run_0": self.coming}

    def open(self, tensors: Dict[str, Any], prefix: str, target_size: int, **_: Any) -> "Averager":
        """The averager of a prefix, which stays the same when it is opened again."""
        self.opened.append(target_size)
        averager = self.averagers.setdefault(prefix, Averager(tensors))
        averager.closed = False
        return averager


class Averager:
    """A round ends as `outcome(averager)` says: it may change the tensors, and returns a result or
    raises. `ready` is whether a round that was begun has ended."""

    def __init__(self, tensors: Dict[str, Any]) -> None:
        self.tensors = tensors
        self.begun: List[Dict[str, Any]] = []
        self.busy = False
        self.ready = True
        self.closed = False
        self.outcome: Callable[["Averager"], Any] = lambda it: result()

    def begin(self, **options: Any) -> None:
        self.begun.append(options)
        self.busy = True

    def wait(self, timeout: Optional[float] = None) -> bool:
        return self.ready

    def end(self) -> Any:
        self.busy = False
        return self.outcome(self)

    def look(self) -> Any:
        return SimpleNamespace(phase="reducing" if self.busy else "idle")

    def close(self) -> None:
        self.closed = True


class Donor:
    def __init__(self, swarm: Told) -> None:
        self.swarm = swarm
        self.closed = False

    def share(self, tree: Any, *, prefix: str, epoch: int, priority: float, step: int) -> None:
        self.swarm.shared[prefix] = give(tree, epoch, priority, step)

    def close(self) -> None:
        self.closed = True


def give(tree: Any, epoch: int, priority: float, step: int) -> Any:
    """A state as load() returns it."""
    def copied(it: Any) -> Any:
        if isinstance(it, dict):
            return {key: copied(value) for key, value in it.items()}
        return it.detach().clone() if torch.is_tensor(it) else it

    info = SimpleNamespace(epoch=epoch, priority=priority, step=step)
    return SimpleNamespace(tree=copied(tree), info=info, epoch=epoch, step=step)


def result(group: str = "80", parts_local: int = 0, told: Any = ()) -> Any:
    members = [SimpleNamespace(peer=f"peer{i}", failure="", gather=it) for i, it in enumerate(told)]
    return SimpleNamespace(group_id=group, parts=4, parts_local=parts_local, members=members, failed=[])


@contextlib.contextmanager
def told() -> Iterator[Told]:
    swarm = Told()
    kept = (_outer.Donor, average.Averager, _outer._load)

    def list_states(prefix: str, through: Any) -> List[Any]:
        if swarm.count == 0:
            raise errors.NotFound("no peer shares a state under that prefix")
        found = swarm.others.get(prefix)
        info = SimpleNamespace(epoch=0, priority=-1.0) if found is None else found.info
        return [SimpleNamespace(info=info)] * swarm.count + [SimpleNamespace(info=None)]

    donor = type("Donor", (Donor,), {"__init__": lambda self, *_, **__: Donor.__init__(self, swarm)})
    _outer.Donor = donor  # type: ignore[misc, assignment]
    average.Averager = swarm.open  # type: ignore[misc, assignment]
    _outer._load = SimpleNamespace(  # type: ignore[assignment]
        list_states=list_states, load=lambda prefix, **_: swarm.others[prefix])
    try:
        yield swarm
    finally:
        _outer.Donor, average.Averager, _outer._load = kept  # type: ignore[misc]


def linear(*values: float) -> Any:
    """A model with one parameter of these values."""
    model = torch.nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([values]))
    return model


def move(model: Any, *by: float) -> None:
    """A step of an inner optimizer."""
    with torch.no_grad():
        model.weight += torch.tensor([by], dtype=model.weight.dtype)


def sgd(lr: float = 1.0, **options: Any) -> Callable[[List[Any]], Any]:
    return lambda tensors: torch.optim.SGD(tensors, lr=lr, **options)


def raises(kind: Any, what: str, call: Callable[[], Any]) -> Any:
    try:
        call()
    except kind as error:
        checks.ok(True, what, error)
        return error
    checks.ok(False, what)
    return None


def near(a: Any, b: Any, what: str) -> None:
    a, b = (torch.as_tensor(it, dtype=torch.float64) for it in (a, b))
    checks.ok(torch.allclose(a, b, atol=1e-6), what, f"{a.tolist()} and {b.tolist()}")


# --- rounds ---------------------------------------------------------------------------------------


def test_rounds_come_by_the_schedule() -> None:
    with told() as swarm:
        model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(3)])
        outer = average.Outer(model, prefix="run", every=9, fragments=4)
        names = [[*swarm.averagers[f"run_{i}"].tensors] for i in range(4)]
        checks.equal(names, [["0.weight", "2.bias"], ["1.weight"], ["2.weight"], ["0.bias", "1.bias"]],
                     "all fragments are about as large")
        rounds = [(n, it) for n in range(1, 19) for it in [outer.step()] if it is not None]
        checks.equal([n for n, _ in rounds], [3, 5, 7, 9, 12, 14, 16, 18], "four rounds in nine steps")
        checks.equal([it.fragment for _, it in rounds], [0, 1, 2, 3] * 2, "of each fragment in turn")
        checks.equal([it.step for _, it in rounds], [n for n, _ in rounds], "they say when they began")
        checks.equal([_fragment.due(9, 4, n) for n in (3, 4, 9)], [0, None, 3], "as the schedule has it")
        checks.equal(outer.versions, [2, 2, 2, 2], "each has moved twice")


def test_fragments_are_alike() -> None:
    checks.equal(_fragment.divide([5, 5, 5, 5], 2), [[0, 2], [1, 3]], "layers of one size, in turn")
    checks.equal(_fragment.divide([1, 9, 2, 8], 2), [[0, 1], [2, 3]], "the smaller fill up")
    checks.equal(_fragment.divide([0, 0, 7], 3), [[2], [0], [1]], "no fragment is empty")


def test_the_outer_optimizer_follows_the_average() -> None:
    with told() as swarm:
        model, reference = linear(1.0, 2.0), linear(1.0, 2.0)
        options = {"lr": 0.7, "momentum": 0.9, "nesterov": True}
        outer = average.Outer(model, prefix="run", every=2)
        known = torch.optim.SGD(reference.parameters(), **options)
        seen = []

        def halve(it: Averager) -> Any:  # the others have not moved
            seen.append(it.tensors["weight"].clone())
            it.tensors["weight"] /= 2
            return result()

        swarm.averagers["run_0"].outcome = halve
        for turn in range(3):
            move(model, 0.5, -1.0)
            outer.step(8)
            before = model.weight.detach().clone()
            move(model, 0.5, -1.0)
            checks.ok(torch.equal(model.weight, before + torch.tensor([[0.5, -1.0]])), "it trains apart")
            round = outer.step(8)
            reference.weight.grad = torch.tensor([[-0.5, 1.0]])
            known.step()
            near(seen[-1], [[-1.0, 2.0]], "how far it has come")
            near(model.weight.detach(), reference.weight.detach(), f"round {turn + 1} moves it as the optimizer does")
            checks.ok(round is not None and round.error is None and round.version == turn + 1, "it is told", round)
        checks.equal([it["weight"] for it in swarm.averagers["run_0"].begun], [16, 16, 16], "the weight is the samples")
        checks.ok(model.weight.grad is None, "the gradients of the model are not touched")


def test_a_round_moves_its_fragment_only() -> None:
    with told():
        tensors = {"a": torch.zeros(2), "b": torch.zeros(2)}
        outer = average.Outer(tensors, sgd(momentum=0.9), prefix="run", every=2, fragments=2)
        for _ in range(4):
            tensors["a"] += 1
            tensors["b"] += 1
            outer.step()
        # Each moves by what it has come, and by nine tenths of the time before.
        near([it.tolist() for it in (outer._fragments[0].tensors[0].agreed.detach(), tensors["b"])],
             [[3.9, 3.9], [5.8, 5.8]], "a round does not step the others again")


def test_a_round_that_fails_goes_into_the_next() -> None:
    with told() as swarm:
        model = linear(0.0)
        outer = average.Outer(model, sgd(), prefix="run", every=1)
        averager = swarm.averagers["run_0"]

        def nobody(it: Averager) -> Any:
            it.tensors["weight"] += 1000  # parts that had come
            raise errors.TimedOut("nobody came")

        averager.outcome = nobody
        move(model, 1.0)
        round = outer.step()
        checks.ok(round is not None and isinstance(round.error, errors.TimedOut), "it is told", round)
        checks.equal([round.members, round.version, outer.versions], [0, 0, [0]], "nothing has moved")
        near(model.weight.detach(), [[1.0]], "the model stays as it was trained")
        averager.outcome = lambda it: result(parts_local=1)
        move(model, 1.0)
        round = outer.step()
        checks.ok("1 of 4 parts" in str(round.error), "parts that were lost are a failure", round)
        near(model.weight.detach(), [[2.0]], "which leaves the model alone as well")
        averager.outcome = lambda it: result()
        move(model, 1.0)
        round = outer.step()
        near(averager.tensors["weight"], [[-3.0]], "the next has all three steps")
        checks.equal(averager.begun[-1]["weight"], 3.0, "and counts them")
        checks.equal([round.error, outer.versions], [None, [1]], "it goes on")
        outer.step()
        checks.equal(averager.begun[-1]["weight"], 1.0, "they count once")


def test_short_floats() -> None:
    with told() as swarm:
        model = linear(1.0, 1.0).to(torch.bfloat16)
        outer = average.Outer(model, sgd(), prefix="run", every=1)
        delta = swarm.averagers["run_0"].tensors["weight"]
        checks.equal(str(delta.dtype), "torch.float32", "bfloat16 is averaged in float32")

        def small(it: Averager) -> Any:
            it.tensors["weight"] += torch.tensor([[-0.001, 0.0]])  # less than bfloat16 can tell from 1
            return result()

        swarm.averagers["run_0"].outcome = small
        seen = []
        for _ in range(8):
            seen.append(outer.step())
        near(swarm.shared["run_0"].tree["agreed"]["weight"], [[1.008, 1.0]], "small steps add up")
        near(model.weight.detach().double(), [[1.0078125, 1.0]], "until the model can hold them")


def test_overlap() -> None:
    with told() as swarm:
        model = linear(0.0)
        outer = average.Outer(model, sgd(), prefix="run", every=4, overlap=True)
        averager = swarm.averagers["run_0"]
        averager.ready = False
        for _ in range(4):
            move(model, 1.0)
            checks.equal(outer.step(), None, "nothing has ended")
        checks.equal(len(averager.begun), 1, "the round has begun")
        move(model, 1.0)
        checks.equal(outer.step(), None, "training goes on meanwhile")
        averager.ready = True
        move(model, 1.0)
        round = outer.step()
        checks.ok(round is not None and round.step == 4, "it counts when it has ended", round)
        near(model.weight.detach(), [[5.0]], "half way between 4, which all agreed on, and 6")
        averager.ready = False
        for _ in range(6):
            round = outer.step()
        checks.ok(round is not None and round.step == 8 and len(averager.begun) == 3,
                  "the next round of a fragment waits for its last", round)
        checks.equal([it["weight"] for it in averager.begun], [4, 4, 4], "no sample counts twice")
        outer.close()
        checks.ok(averager.closed and outer.closed, "it is closed in a round")
    with told() as swarm:
        model = linear(0.0)
        outer = average.Outer(model, sgd(), prefix="run", every=1, overlap=True, alpha=0.0)
        move(model, 1.0)
        outer.step()
        move(model, 1.0)
        outer.step()
        near(model.weight.detach(), [[1.0]], "with alpha 0 it goes on where all agreed")


# --- optimizers -----------------------------------------------------------------------------------


def test_optimizers() -> None:
    with told() as swarm:
        model = torch.nn.Linear(2, 1)
        given = torch.optim.Adagrad([{"params": [model.weight], "lr": 0.5}, {"params": [model.bias]}], lr=0.1)
        outer = average.Outer(model, given, prefix="run", every=1)
        checks.ok(outer.optimizer is given, "an optimizer of the parameters is taken over")
        move(model, 1.0, 1.0)
        bias = model.bias.detach().clone()
        before = model.weight.detach().clone() - 1.0
        outer.step()
        near(model.weight.detach(), before + 0.5, "with its groups and its statistics")
        near(model.bias.detach(), bias, "what has not moved does not")
        averager = swarm.averagers["run_0"]
        averager.outcome = lambda it: result("81")
        outer.step()
        checks.equal([*swarm.shared["run_0"].tree["outer"]["weight"]], ["step", "sum"], "others can load these")
        other = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=1.0)
        raises(errors.InvalidArgument, "one of another model is refused",
               lambda: average.Outer(model, other, prefix="run"))
        raises(errors.InvalidArgument, "one that lacks a parameter is refused",
               lambda: average.Outer(model, lambda tensors: torch.optim.SGD(tensors[:1], lr=1.0), prefix="run"))


def test_arguments() -> None:
    with told():
        for what, options in (("more fragments than parameters", {"fragments": 3}),
                              ("more fragments than steps", {"fragments": 2, "every": 1}),
                              ("alpha", {"alpha": 2.0})):  # fmt: skip
            raises(errors.InvalidArgument, f"{what}: refused",
                   lambda: average.Outer(torch.nn.Linear(2, 2), prefix="run", **options))
        raises(errors.InvalidArgument, "whole numbers are refused",
               lambda: average.Outer([torch.zeros(3, dtype=torch.int64)], prefix="run"))
        raises(errors.InvalidArgument, "a model without a parameter that needs a gradient is refused",
               lambda: average.Outer(torch.nn.Linear(2, 2).requires_grad_(False), prefix="run"))
        twice = torch.zeros(3)
        raises(errors.InvalidArgument, "memory that is there twice is refused",
               lambda: average.Outer({"a": twice, "tied": twice}, prefix="run"))
        frozen = torch.nn.Linear(2, 2)
        frozen.bias.requires_grad_(False)
        outer = average.Outer(frozen, prefix="run", every=1)
        checks.equal([it.name for it in outer._fragments[0].tensors], ["weight"], "what is not trained stays")
        fault = raises(errors.InvalidArgument, "an optimizer of what is not trained is refused",
                       lambda: average.Outer(frozen, torch.optim.SGD(frozen.parameters(), lr=1.0), prefix="run"))
        checks.ok("need a gradient" in str(fault), "in words that help", fault)
        for wrong in (math.nan, math.inf, -1.0):
            raises(errors.InvalidArgument, "samples that cannot be are refused", lambda: outer.step(wrong))
        checks.equal(outer.steps, 0, "and are no step")
        outer = average.Outer({"a": torch.zeros(2), "b": torch.ones(2)}, prefix="run", every=1)
        checks.ok(outer.step() is not None, "tensors by name")


# --- peers that are ahead -------------------------------------------------------------------------


def theirs(value: float, epoch: int, rank: float, step: int) -> Any:
    tree = {"agreed": {"weight": torch.tensor([[value]])}, "buffers": {},
            "outer": {"weight": {"momentum_buffer": torch.tensor([[0.25]])}}}
    return give(tree, epoch, rank, step)


def test_a_newcomer_loads() -> None:
    with told() as swarm:
        swarm.count = 0
        first = average.Outer(linear(0.0), prefix="run", every=10)
        checks.equal(first.load_state(), False, "the first of a run has nobody to load from")
        checks.ok("run_0" in swarm.shared, "but shares what it has")
    with told() as swarm:
        swarm.others["run_0"] = theirs(7.0, 0, 0.0, 0)
        model = linear(0.0)
        outer = average.Outer(model, prefix="run", every=10)
        checks.ok(outer.load_state(), "before the first step, what others have counts")
        near(model.weight.detach(), [[7.0]], "it begins there")
        checks.equal(outer.load_state(), False, "later only what is newer")
        swarm.others["run_0"] = theirs(9.0, 3, 0.5, 31)
        checks.ok(outer.load_state(), "which is loaded")
        checks.equal([outer.steps, outer.versions], [31, [3]], "with the steps")
        near(outer.optimizer.state[outer._fragments[0].tensors[0].agreed]["momentum_buffer"], [[0.25]],
             "and the outer optimizer's statistics")
        checks.equal([swarm.shared["run_0"].epoch, swarm.shared["run_0"].step], [3, 31], "and shared in turn")
        swarm.others["run_0"] = give({"agreed": {"weight": torch.zeros(1, 2)}, "outer": {}, "buffers": {}}, 4, 0, 40)
        raises(state.Mismatch, "another model is refused", outer.load_state)
        near(model.weight.detach(), [[9.0]], "and touches nothing")


def test_peers_that_begin_with_other_values() -> None:
    with told():
        outers = [average.Outer(linear(value), prefix="run") for value in (1.0, 1.0, 2.0)]
        ranks = [it._fragments[0].version for it in outers]
        checks.ok(ranks[0] == ranks[1] and ranks[0] != ranks[2], "other values are another version", ranks)
        checks.ok(all(0 == number and 0 <= rank < 1 for number, rank in ranks), "of the same number", ranks)


def test_a_newcomer_waits_for_the_first() -> None:
    with told() as swarm:
        _outer.time, kept = SimpleNamespace(monotonic=_outer.time.monotonic, sleep=swarm.come), _outer.time
        try:
            swarm.count = 0
            model = linear(0.0)
            swarm.coming = theirs(7.0, 0, 0.0, 0)
            outer = average.Outer(model, prefix="run", dht=["/ip4/127.0.0.1/tcp/1"])
            checks.ok(outer.load_state(), "what was shared a moment ago is not overlooked")
            near(model.weight.detach(), [[7.0]], "it is loaded")
        finally:
            _outer.time = kept


def test_statistics_of_a_module_come_along() -> None:
    with told() as swarm:
        donor, model = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
        donor(torch.randn(16, 2) + 5)
        average.Outer(donor, prefix="run", every=10).step()
        swarm.others.update(swarm.shared)
        average.Outer(model, prefix="run", every=10).load_state()
        near(model.running_mean, donor.running_mean, "a newcomer has them")


def test_it_waits_for_those_that_are_here() -> None:
    with told() as swarm:
        model = linear(0.0)
        outer = average.Outer(model, sgd(), prefix="run", every=1)
        swarm.count = 0
        move(model, 1.0)
        round = outer.step()
        checks.ok(isinstance(round.error, errors.NotFound) and not swarm.averagers["run_0"].begun,
                  "alone it waits for nobody", round)
        near(model.weight.detach(), [[1.0]], "and trains on")
        for swarm.count in (3, 3, 2):
            outer.step()
        checks.equal(swarm.opened, [0, 4, 3], "a round begins when all that are here have come")
    with told() as swarm:
        outer = average.Outer(linear(0.0), sgd(), prefix="run", every=1, target_size=8)
        outer.step()
        checks.equal(swarm.opened, [8], "or those that it was told of")


def test_who_has_missed_a_round_loads() -> None:
    with told() as swarm:
        model = linear(0.0)
        outer = average.Outer(model, sgd(), prefix="run", every=5)
        averager = swarm.averagers["run_0"]
        mine = {"version": 0, "rank": -1.0, "step": 5}
        ahead = {"version": 2, "rank": 0.5, "step": 15}

        def round_with(others: Any, group: str) -> Any:
            def outcome(it: Averager) -> Any:
                # They share what came of the round when it has ended.
                swarm.others["run_0"] = theirs(9.0, 3, 0.5, 15)
                return result(group, told=(mine, others))
            return outcome

        averager.outcome = round_with(ahead, "80")
        for _ in range(5):
            move(model, 1.0)
            round = outer.step()
        checks.ok(round is not None and round.loaded and "ahead of us" in str(round.error), "it loads", round)
        near(model.weight.detach(), [[9.0]], "what they have")
        checks.equal([outer.versions, outer.steps], [[3], 15], "and is where they are")
        averager.outcome = lambda it: result("40", told=(dict(ahead, version=3), {"version": "x"}, None, 5))
        for _ in range(5):
            move(model, 1.0)
            round = outer.step()
        checks.ok(not round.loaded and outer.versions == [4], "who is ahead goes on", round)
        near(model.weight.detach(), [[14.0]], "with its own")
        averager.outcome = lambda it: result("40", told=({"version": 4, "rank": 0.0, "step": 45},))
        for _ in range(5):
            outer.step()
        checks.equal([outer.versions, outer.steps], [[5], 45], "those who count otherwise count as the last")


def test_after_a_failure_it_looks_before_it_counts_again() -> None:
    with told() as swarm:
        model = linear(0.0)
        outer = average.Outer(model, sgd(), prefix="run", every=1)
        averager = swarm.averagers["run_0"]

        def lost(it: Averager) -> Any:
            raise errors.TimedOut("lost")

        averager.outcome = lost
        move(model, 1.0)
        outer.step()
        # The others had the result, and share it a little later.
        swarm.others["run_0"] = theirs(5.0, 1, 0.5, 1)
        averager.outcome = lambda it: result()
        move(model, 1.0)
        outer.steps = 0
        round = outer.step()
        checks.ok(round is not None and round.loaded and round.error is None, "it loads what they have", round)
        checks.equal([it["weight"] for it in averager.begun], [1.0, 0.0], "and nothing is counted twice")
        near(averager.tensors["weight"], [[0.0]], "but it takes part, so that nobody waits for it")
        near(model.weight.detach(), [[5.0]], "and goes on with theirs")
        checks.equal(outer.versions, [2], "at their version")
        swarm.others["run_0"] = theirs(7.0, 6, 0.5, 40)
        round = outer.step()
        checks.ok(round is not None and round.loaded and len(averager.begun) == 2, "far behind, there is no round", round)
        checks.equal([outer.versions, outer.steps], [[6], 40], "it is where they are then")


def test_it_leaves_when_members_change() -> None:
    with told() as swarm:
        outer = average.Outer(linear(0.0), prefix="run", every=1)
        outer.step()
        kept = worker.change_due
        worker.change_due = lambda: 5.0
        try:
            checks.equal([outer.step(), outer.step()], [None, None], "there are no more rounds")
        finally:
            worker.change_due = kept
        averager = swarm.averagers["run_0"]
        checks.ok(outer.closed and averager.closed and len(averager.begun) == 1, "it has left")
        outer.close()
        raises(errors.Closed, "a state is not loaded any more", outer.load_state)


# --- real ones ------------------------------------------------------------------------------------


def train(outer: Any, model: Any, seed: int, steps: int) -> List[Any]:
    """Trains until the run has made so many steps; returns the rounds."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rounds = []
    while outer.steps < steps:
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])).backward()
        optimizer.step()
        rounds.append(outer.step(16))
    return [it for it in rounds if it is not None]


def together(*calls: Callable[[], Any]) -> List[Any]:
    said: List[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            said[i] = calls[i]()
        except Exception as error:  # noqa: BLE001 - it is looked at
            said[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def agreed(outer: Any) -> Any:
    return torch.cat([t.agreed.detach().reshape(-1) for it in outer._fragments for t in it.tensors])


def opened(dht: List[str], size: int, **options: Any) -> Any:
    model = torch.nn.Linear(4, 1)
    return model, average.Outer(model, sgd(0.7, momentum=0.9, nesterov=True), prefix="run", dht=dht, every=10,
                                fragments=2, target_size=size, timeout=60, **QUICK, **options)


def test_peers_agree() -> None:
    models, outers = [], []
    for i in range(2):
        torch.manual_seed(i)
        model, outer = opened([outers[0].address] if outers else [], 2)
        models.append(model)
        outers.append(outer)
        checks.equal(outer.load_state(), i > 0, f"peer {i} begins")
    try:
        near(agreed(outers[0]), agreed(outers[1]), "they begin with the same values")
        _, sleeper = opened([outers[0].address], 2)
        sleeper.load_state()
        said = together(*[lambda i=i: train(outers[i], models[i], i, 20) for i in range(2)])
        checks.ok(all(isinstance(it, list) for it in said), "they train", said)
        checks.equal([[it.error for it in rounds] for rounds in said], [[None] * 4] * 2, "all rounds go well")
        checks.equal([it.members for it in said[0]], [2] * 4, "with both")
        near(agreed(outers[0]), agreed(outers[1]), "they agree")
        with sleeper:
            rounds = [sleeper.step() for _ in range(5)]
            checks.ok(rounds[-1] is not None and rounds[-1].loaded, "one that has slept notices", rounds)
            checks.equal([sleeper.steps, sleeper.versions], [20, [2, 2]], "and is where they are")
            near(agreed(sleeper), agreed(outers[0]), "in all fragments")
        torch.manual_seed(9)
        model, newcomer = opened([outers[1].address], 2)
        with newcomer:
            checks.ok(newcomer.load_state() and newcomer.steps == 20, "a newcomer begins where they are", newcomer.steps)
            near(agreed(newcomer), agreed(outers[0]), "with what they agreed on")
            outers[1].close()
            said = together(lambda: train(outers[0], models[0], 0, 30), lambda: train(newcomer, model, 9, 30))
            checks.ok([it.members for it in said[1]] == [2, 2], "and goes on with the one that stays", said)
            near(agreed(newcomer), agreed(outers[0]), "they agree")
    finally:
        for it in outers:
            it.close()


def test_overlapped_peers_through_a_donor() -> None:
    torch.manual_seed(0)
    a, first = opened([], 2, overlap=True)
    first.load_state()
    with first, state.Donor("/ip4/127.0.0.1/tcp/0", key="", dht=[first.address]) as donor:
        b, second = opened([], 2, overlap=True, through=donor)
        with second:
            checks.equal([second.address, second.load_state()], [donor.address, True], "one peer shares and averages")
            said = together(lambda: train(first, a, 0, 60), lambda: train(second, b, 1, 60))
            checks.ok(all(isinstance(it, list) for it in said), "they train", said)
            errs = [it.error for rounds in said for it in rounds if it.error is not None]
            checks.ok(errs == [] and len(said[0]) >= 10, "rounds go on beside the steps", (errs, len(said[0])))
            for it in (first, second):
                while any(f.busy for f in it._fragments):
                    it._finish(next(f for f in it._fragments if f.busy))
            checks.equal(first.versions, second.versions, "the same rounds have counted at both")
            near(agreed(first), agreed(second), "they agree")
        checks.ok(not donor.closed, "the donor is its owner's")
        raises(errors.NotFound, "which does not share the run any more", lambda: donor.info("run_0"))


assert muster.average is average
harness.main(globals())
