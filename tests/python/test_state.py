"""States over loopback: PyTorch's tensors, numpy's, and neither; in place, into new trees, in
asyncio; and what happens when something goes wrong on the way."""

import asyncio
import os
import signal
import sys
import threading
import time
from typing import Any, Dict, List

import harness
import muster
from muster import _tensors, errors, state

checks = harness.checks

#: A donor as a process: shares so many MiB of a pattern, and says where.
DONOR = """
import sys
from muster import state
size, rate = int(sys.argv[1]) << 20, int(sys.argv[2]) << 20
donor = state.Donor("127.0.0.1:0", rate=rate)
data = bytearray((bytes(range(251)) * (size // 251 + 1))[:size])
donor.share({"w": data, "n": 3}, epoch=5)
print(donor.address, flush=True)
sys.stdin.read()
"""


class DonorProcess:
    def __init__(self, size: int, rate: int = 0) -> None:
        import subprocess

        self.process = subprocess.Popen(
            [sys.executable, "-c", DONOR, str(size), str(rate)], env=harness.ENVIRONMENT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True,
            preexec_fn=harness.lib.die_with_parent)  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def __enter__(self) -> "DonorProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def torch_tree(torch: Any) -> Dict[str, Any]:
    """A tensor of every type that this PyTorch has."""
    tree: Dict[str, Any] = {}
    for row in _tensors.DTYPES.values():
        kind = getattr(torch, row.torch, None)
        if kind is None:
            continue
        raw = torch.randint(0, 2 if row.name == "BOOL" else 256, (6 * row.bytes,),
                            dtype=torch.uint8)
        tree[row.name] = raw.view(kind).reshape(2, 3)
    for name, wire in _tensors.CARRIED.items():
        if hasattr(torch, name):
            raw = torch.randint(0, 256, (6 * _tensors.BY_NAME[wire].bytes,), dtype=torch.uint8)
            tree[name] = raw.view(getattr(torch, name)).reshape(2, 3)
    tree["c128"] = torch.randn(3, 2, dtype=torch.complex128)
    tree["point"] = torch.tensor(2.5)
    tree["empty"] = torch.zeros(0, 7)
    return tree


def same(torch: Any, a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and (
        a.numel() == 0 or torch.equal(a.contiguous().reshape(-1).view(torch.uint8),
                                      b.contiguous().reshape(-1).view(torch.uint8)))  # fmt: skip


def test_torch_types() -> None:
    import torch

    tree = torch_tree(torch)
    checks.ok(len(tree) >= 13, f"this PyTorch has {len(tree) - 3} types of the wire's")
    with state.share(tree, prefix="types", epoch=1, step=2, metadata={"lr": 0.5}) as shared:
        loaded = state.load(prefix="types", donors=[shared.address])
        wrong = [k for k in tree if not same(torch, tree[k], loaded.tree[k])]
        checks.equal(wrong, [], "each type comes back in a new tree")
        checks.equal((loaded.epoch, loaded.step, loaded.metadata, loaded.id, loaded.signer),
                     (1, 2, {"lr": 0.5}, shared.info.id, shared.info.signer), "with its version")
        into = {k: torch.zeros_like(v) for k, v in tree.items()}
        places = {k: v.data_ptr() for k, v in into.items()}
        result = state.load(into, prefix="types", donors=[shared.address])
        wrong = [k for k in tree if not same(torch, tree[k], into[k])]
        checks.equal(wrong, [], "and in place")
        checks.equal([k for k in into if into[k].data_ptr() != places[k]], [], "where they were")
        checks.ok(result.tree is into and result.bytes > 100 and "127.0.0.1" in result.report,
                  "the result tells of it")

        async def awaited() -> Any:
            return await state.load_async(prefix="types", donors=[shared.address], progress=False)

        again = asyncio.run(awaited()).tree
        checks.equal([k for k in tree if not same(torch, tree[k], again[k])], [], "and in asyncio")
        odd = {k: torch.zeros(v.shape[::-1] + (2,), dtype=v.dtype).transpose(0, -2)[..., 0]
               if v.dim() == 2 else torch.zeros_like(v) for k, v in tree.items()}
        checks.ok(not odd["F32"].is_contiguous(), "(tensors with gaps)")
        state.load(odd, prefix="types", donors=[shared.address])
        checks.equal([k for k in tree if not same(torch, tree[k], odd[k])], [],
                     "tensors with gaps are filled, too")
    with state.share(odd, prefix="odd") as shared:
        again = state.load(prefix="odd", donors=[shared.address]).tree
        checks.equal([k for k in tree if not same(torch, tree[k], again[k])], [], "and shared")
    checks.raises(TypeError, lambda: state.share({"x": torch.eye(3).to_sparse()}),
                  "a sparse tensor "
                  "is refused", "x: only dense")
    checks.raises(TypeError, lambda: state.share({"x": torch.zeros(3, device="meta")}),
                  "so is one without bytes", "meta")
    checks.raises(TypeError, lambda: state.load({"x": torch.zeros(3, device="meta")}, donors=["x:1"]),
                  "before anybody is asked", "to_empty")
    scaled = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    checks.raises(TypeError, lambda: state.share({"x": scaled}), "and a quantized one", "quantized")
    with state.share({"x": torch.ones(4)}, prefix="wide") as shared:
        one = torch.zeros(1)
        checks.raises(errors.InvalidArgument,
                      lambda: state.load({"x": one.expand(4)}, prefix="wide",
                                         donors=[shared.address]),
                      "one element that stands for four cannot be filled", "x: it cannot be written")
        checks.equal(one.item(), 0.0, "and nothing was written")


def test_copies_to_other_devices_are_waited_for() -> None:
    """There is no such device here: a stand-in says how the copy was asked for."""
    import types

    import torch

    from muster import _tensors

    asked = []
    for kind in ("cuda", "xpu"):
        slot = _tensors.slot(torch.zeros(2), "x")
        slot.tensor = types.SimpleNamespace(  # type: ignore[attr-defined]
            device=types.SimpleNamespace(type=kind), dtype=torch.float32, shape=(2,),
            copy_=lambda value, non_blocking: asked.append(non_blocking))  # fmt: skip
        slot.read_tensor(torch.zeros(8, dtype=torch.uint8), wait=False)  # type: ignore[attr-defined]
    checks.equal(asked, [True, False], "only CUDA's may go on: settle() waits for those")


def test_what_does_not_fit_is_not_loaded() -> None:
    """It is found before the download. Only where the order may be another, all must be loaded."""
    size = 1 << 16
    with state.share({"a": state.Array("F32", (size,)), "b": state.Array("F32", (size,))},
                     prefix="fit") as shared:  # fmt: skip
        def load(**tree: Any) -> int:
            """How many bytes were sent."""
            before = shared.donor.stats.bytes
            try:
                state.load(tree, prefix="fit", donors=[shared.address], progress=False)
            except state.Mismatch as error:
                checks.note(str(error))
            return shared.donor.stats.bytes - before

        good = state.Array("F32", (size,))
        for what, tree in {
            "another type of as many bytes": {"a": state.Array("I32", (size,)), "b": good},
            "another shape of as many": {"a": good, "b": state.Array("F32", (256, 256))},
            "another name": {"a": good, "c": state.Array("F32", (size,))},
            "other names": {"model/x": good, "model/y": state.Array("F32", (size,))},
        }.items():
            checks.equal(load(**tree), 0, f"nothing is sent for {what}")
        checks.equal(load(b=state.Array("F32", (size,)), a=good), 8 * size,
                     "another order is taken")


def test_types_that_travel_as_another() -> None:
    import torch

    half = torch.tensor([[1, 2], [3, 4]], dtype=torch.int16).view(torch.float16)
    pairs = half.view(torch.int32).view(torch.complex32)
    with state.share({"x": pairs, "y": torch.zeros(2, 1, dtype=torch.int32)},
                     prefix="as") as shared:  # fmt: skip
        numbers = {"x": torch.zeros(2, 1, dtype=torch.int32), "y": torch.zeros_like(pairs)}
        checks.raises(state.Mismatch,
                      lambda: state.load(numbers, prefix="as", donors=[shared.address]),
                      "a type is not taken for the one that it travels as",
                      "x is I32, in the state complex32; the tensors have been written")
        try:
            state.load(numbers, prefix="as", donors=[shared.address])
        except state.Mismatch as error:
            report = getattr(error, "report", "")
            checks.ok(shared.address in report, "its report names the donor", report)
        plain = {"x": state.Array("I32", (2, 1)), "y": state.Array("I32", (2, 1))}
        state.load(plain, prefix="as", donors=[shared.address])
        checks.equal(plain["x"].tolist(), [0x20001, 0x40003], "a plain array takes its bytes")
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.complex128))
    ours, theirs = torch.optim.Adam([weight]), torch.optim.Adam([weight])
    weight.grad = torch.full_like(weight, 1 + 2j)
    ours.step()
    with state.share({"o": ours}, prefix="c") as shared:
        state.load({"o": theirs}, prefix="c", donors=[shared.address])
    average = ours.state[weight]["exp_avg"]
    checks.ok(torch.equal(average, theirs.state[weight]["exp_avg"]),
              "also where the optimizer has no tensors yet", theirs.state[weight])


def test_numpy_types() -> None:
    import numpy

    tree: Dict[str, Any] = {}
    for name in ("bool", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8", "c8",
                 "c16"):
        tree[name] = numpy.arange(6).reshape(2, 3).astype(name)
    tree["big"] = numpy.arange(5, dtype=">f4")
    tree["point"], tree["empty"] = numpy.array(7.0), numpy.zeros((3, 0))
    tree["number"] = numpy.float32(1.5)
    with state.share(tree, prefix="np") as shared:
        again = state.load(prefix="np", donors=[shared.address]).tree
        wrong = [k for k in tree if not numpy.array_equal(tree[k], again[k])]
        checks.equal(wrong, [], "each type of numpy's comes back")
        checks.ok(isinstance(again["f4"], numpy.ndarray) and again["number"] == 1.5
                  and isinstance(again["number"], float), "as arrays and numbers")
        into = {k: numpy.zeros_like(v) for k, v in tree.items()}
        into["f4"], into["number"] = numpy.zeros((3, 2), "f4").T, 0
        state.load(into, prefix="np", donors=[shared.address])
        wrong = [k for k in tree if not numpy.array_equal(tree[k], into[k])]
        checks.equal(wrong, [], "and in place, also with gaps and of another byte order")
        into["u1"].flags.writeable = False
        checks.raises(errors.InvalidArgument, lambda: state.load(into, prefix="np",
                      donors=[shared.address]), "an array that is read-only is refused", "u1")
    checks.raises(TypeError, lambda: state.share({"x": numpy.array([object()])}), "objects are "
                  "refused", "x: states have no type")


def test_neither() -> None:
    ended = harness.run("""
import array, sys
from muster import state
tree = {"a": array.array("d", [1.5, 2.5]), "b": bytearray(b"abc"), "c": memoryview(b"read only"),
        "d": state.Array("BF16", (2, 2), bytearray(range(8))), "e": [1, "x", None, b"y",
                                                                     (2.5, True)]}
with state.share(tree, epoch=3) as shared:
    loaded = state.load(donors=[shared.address])
    into = {"a": array.array("d", [0, 0]), "b": bytearray(3), "c": bytearray(9),
            "d": state.Array("BF16", (2, 2)), "e": [0]}
    state.load(into, donors=[shared.address])
assert loaded.tree["a"].tolist() == [1.5, 2.5], loaded.tree
assert loaded.tree["d"] == tree["d"] and loaded.tree["e"] == tree["e"], loaded.tree
assert into == dict(tree, c=bytearray(b"read only")), into
assert "torch" not in sys.modules and "numpy" not in sys.modules
print("same")
""")
    checks.ok(ended.out == "same\n", "trees of buffers need neither package", ended)


def test_torch_without_torch() -> None:
    import torch

    tree = {"a": torch.arange(4.0), "b": torch.arange(3).to(torch.bfloat16)}
    with state.share(tree, prefix="t") as shared:
        ended = harness.run(
            "import sys\nfrom muster import state\n"
            "tree = state.load(prefix='t', donors=[sys.argv[1]]).tree\n"
            "print(tree['a'].tolist(), tree['b'].dtype, tree['b'].shape)\n", shared.address)
        checks.equal(ended.out, "[0.0, 1.0, 2.0, 3.0] BF16 (3,)\n",
                     "PyTorch's tensors are arrays where there is no PyTorch")


def trained(torch: Any, seed: int, steps: int, kind: str = "Adam") -> Any:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4),
                                torch.nn.Linear(4, 1))
    options: Dict[str, Any] = {"lr": 0.1 / (seed + 1)}
    if kind == "SGD":
        options["momentum"] = 0.9
    optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 5)).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler}


def flat(torch: Any, what: Any) -> List[Any]:
    """Everything in a tree of state_dicts, in order, for comparing."""
    if hasattr(what, "state_dict"):
        what = what.state_dict()
    if isinstance(what, dict):
        return [x for k in sorted(what, key=str) for x in [k, *flat(torch, what[k])]]
    if isinstance(what, (list, tuple)):
        return [x for item in what for x in flat(torch, item)]
    return [what.tolist() if isinstance(what, torch.Tensor) else what]


def test_modules_and_optimizers() -> None:
    import torch

    for kind in ("Adam", "SGD"):
        donor = trained(torch, 0, 5, kind)
        with state.share(donor, prefix="objects", step=5) as shared:
            for steps, what in ((0, "fresh"), (3, "used")):
                mine = trained(torch, 1, steps, kind)
                expected = flat(torch, donor)
                places = [p.data_ptr() for p in mine["model"].parameters()]
                state.load(mine, prefix="objects", donors=[shared.address])
                checks.equal(flat(torch, mine), expected,
                             f"{kind}, {what}: all of it is the donor's")
                checks.equal([p.data_ptr() for p in mine["model"].parameters()], places,
                             f"{kind}, {what}: the parameters are where they were")
                for tree in (mine, donor):
                    tree["optimizer"].zero_grad()
                    torch.manual_seed(5)
                    tree["model"](torch.ones(8, 5)).sum().backward()
                    tree["optimizer"].step()
                checks.equal(flat(torch, mine["model"]), flat(torch, donor["model"]),
                             f"{kind}, {what}: the next step is the same")
                donor = trained(torch, 0, 5, kind)
    model = trained(torch, 0, 0)["model"]
    with state.share(model, prefix="bare") as shared:
        other = trained(torch, 1, 0)["model"]
        state.load(other, prefix="bare", donors=[shared.address])
        checks.equal(flat(torch, other), flat(torch, model), "a module alone")
        pair = (trained(torch, 2, 0)["model"],)
        checks.raises(state.Mismatch, lambda: state.load(pair, prefix="bare",
                      donors=[shared.address]), "other names are a mismatch")


def test_tied_weights() -> None:
    import torch

    weight = torch.randn(40, 30)
    tree = {"a": weight, "b": weight, "part": weight[5:7]}
    with state.share(tree, prefix="tied") as shared:
        mine = torch.zeros(40, 30)
        state.load({"a": mine, "b": mine, "part": mine[5:7]}, prefix="tied",
                   donors=[shared.address])
        checks.ok(torch.equal(mine, weight), "one tensor under three names is loaded once")
        untied = {"a": torch.zeros(40, 30), "b": torch.zeros(40, 30), "part": torch.zeros(2, 30)}
        state.load(untied, prefix="tied", donors=[shared.address])
        checks.ok(torch.equal(untied["b"], weight), "it may be three tensors elsewhere")
    with state.share({"a": weight, "b": weight + 1}, prefix="tied") as shared:
        checks.raises(state.Mismatch, lambda: state.load({"a": mine, "b": mine}, prefix="tied",
                      donors=[shared.address]), "two tensors that differ are not one", "shares its")


def test_snapshots_and_versions() -> None:
    import torch

    weight = torch.zeros(1 << 20)
    with state.Donor("127.0.0.1:0") as donor:
        shared = donor.share({"w": weight}, step=1)
        first = shared.info.id
        weight += 1
        old = state.load(donors=[donor.address])
        checks.equal(float(old.tree["w"].max()), 0.0, "a copy was shared: it has not changed")
        donor.share({"w": weight}, step=2)
        new = state.load(donors=[donor.address])
        checks.equal((new.step, float(new.tree["w"].min())), (2, 1.0), "sharing again replaces it")
        checks.raises(errors.NotFound, lambda: state.load(donors=[donor.address], id=first),
                      "the old version is gone")
        checks.equal(float(old.tree["w"].max()), 0.0, "what was loaded stays")
        rows = state.list(donors=[donor.address])
        checks.equal([(r.donor, r.info and r.info.step, r.complete) for r in rows],
                     [(donor.address, 2, True)], "donors say what they have")
        donor.set(hidden=True)
        checks.raises(errors.NotFound, lambda: state.load(donors=[donor.address]), "unless hidden")
        donor.set(hidden=False)
        before = resident()
        for step in range(30):
            donor.share({"w": weight}, step=3 + step)
        checks.ok(resident() - before < 30, "old versions are freed: 120 MiB were shared",
                  f"{resident() - before:.0f} MiB more")
        donor.unshare()
        checks.raises(errors.NotFound, donor.info, "nothing is shared any more")
        checks.ok(donor.stats.downloads >= 2, "the donor has counted")
    checks.raises(errors.Closed, lambda: donor.share({"w": weight}),
                  "a closed donor shares nothing")


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / (1 << 20)


def test_mismatches() -> None:
    tree = {"a": bytearray(4), "b": {"x": state.Array("F32", (2, 3)), "y": bytearray(2)}, "n": 1}
    with state.share(tree, prefix="m") as shared:
        def attempt(into: Any, text: str, what: str) -> None:
            untouched = bytes(into["a"])
            checks.raises(state.Mismatch, lambda: state.load(into, prefix="m",
                          donors=[shared.address]), what, text)
            checks.equal(bytes(into["a"]), untouched, "and nothing was written: " + what)

        good: Dict[str, Any] = {"a": bytearray(b"zzzz"), "n": 0}
        attempt(dict(good, b={"x": state.Array("F32", (3, 2)), "y": bytearray(2)}), "b/x",
                "another shape")
        attempt(dict(good, b={"x": state.Array("I32", (2, 3)), "y": bytearray(2)}), "b/x",
                "another type")
        attempt(dict(good, b={"x": state.Array("F32", (2, 3))}), "b/y", "one that is only there")
        attempt(dict(good,
                     b={"x": state.Array("F32", (2, 3)), "y": bytearray(2), "z": bytearray(1)}),
                "b/z", "one that is only here")
        checks.raises(errors.InvalidArgument, lambda: state.load((1, bytearray(4)), prefix="m",
                      donors=[shared.address]), "a number in a tuple cannot be set", "tuple")
        late = {"n": 5, "b": {"y": bytearray(2), "x": state.Array("F32", (2, 3))},
                "a": bytearray(4)}
        state.load(late, prefix="m", donors=[shared.address])
        checks.equal(late["n"], 1, "the order of the keys does not matter")


def test_foreign_files() -> None:
    import json
    import struct

    rows = {"z": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "a": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]}}
    text = json.dumps(rows).encode()
    with harness.Scratch() as scratch, state.Donor("127.0.0.1:0") as donor:
        path = os.path.join(scratch, "foreign.safetensors")
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + struct.pack("<ff", 1.5, 2.5) + b"abc")
        donor.share_file(path, epoch=4)
        loaded = state.load(donors=[donor.address])
        checks.equal((loaded.epoch, sorted(loaded.tree), loaded.tree["z"].tolist()),
                     (4, ["a", "z"], [1.5, 2.5]), "a file of another program is a dict by names")
        into = {"a": bytearray(3), "z": state.Array("F32", (2,))}
        state.load(into, donors=[donor.address])
        checks.equal((into["a"], into["z"].tolist()), (b"abc", [1.5, 2.5]),
                     "it is loaded in place although its order is another")


def test_errors_and_reports() -> None:
    port = harness.free_port()
    try:
        state.load(donors=[f"127.0.0.1:{port}"], timeout=2)
        checks.ok(False, "nobody is there")
    except (errors.ConnectionFailed, errors.TimedOut) as error:
        checks.ok(f"127.0.0.1:{port}" in getattr(error, "report", ""), "the report names the donor")
    with state.share({"x": bytearray(1)}, prefix="mine") as shared:
        for kind, options, what in [
            (errors.NotFound, {"prefix": "other"}, "no such prefix"),
            (errors.NotFound, {"prefix": "mine", "id": "0" * 64}, "no such version"),
            (errors.InvalidArgument, {"prefix": "mine", "id": "xyz"}, "no id at all"),
            (errors.InvalidArgument, {"prefix": "mine", "trust": ["nobody"]}, "no peer at all"),
        ]:
            checks.raises(kind, lambda o=options: state.load(donors=[shared.address], **o), what)
    checks.raises(errors.InvalidArgument, lambda: state.load(), "nobody to ask", "donors")
    checks.raises(TypeError, lambda: state.load(donors="127.0.0.1:1"), "one text is no list")
    checks.raises(ValueError, lambda: state.share({"x": bytearray(1)}, epoch=-1),
                  "a negative epoch")
    checks.raises(errors.InvalidArgument, lambda: state.share({}, metadata={"x": object()}),
                  "metadata that is none", "object")


def test_store_and_trust() -> None:
    with harness.Server() as server, muster.Store(server.url) as store:
        checks.raises(errors.NotFound, lambda: state.load(store=store, timeout=5), "nobody yet")
        with state.share({"x": bytearray(b"1")}, store=store) as shared:
            loaded = state.load(store=store, trust=[shared.info.signer])
            checks.equal(bytes(loaded.tree["x"].data), b"1", "donors are found in a store")


def test_progress() -> None:
    seen: List[state.Progress] = []
    with DonorProcess(32, rate=12) as donor:
        loaded = state.load(donors=[donor.address], progress=seen.append)
    checks.ok(len(seen) >= 3 and seen[-1].bytes == seen[-1].total == loaded.bytes == 32 << 20,
              "a function is told how far it is", seen[-2:])
    checks.ok(all(a.bytes <= b.bytes for a, b in zip(seen, seen[1:])), "and it never goes back")
    checks.ok(any(p.rate > 0 and p.donors == 1 and p.info and p.info.epoch == 5 for p in seen),
              "with rate, donors and version")

    def stop(p: state.Progress) -> None:
        if p.bytes:
            raise KeyError("enough")

    with DonorProcess(32, rate=2) as donor:
        began = time.monotonic()
        checks.raises(KeyError, lambda: state.load(donors=[donor.address], progress=stop),
                      "an exception in it ends the load")
        checks.ok(time.monotonic() - began < 10, "at once")


def test_interruption() -> None:
    with DonorProcess(64, rate=8) as donor:
        target = bytearray(64 << 20)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            state.load({"w": target, "n": 0}, donors=[donor.address], progress=False)
            checks.ok(False, "Ctrl-C ends a load")
        except KeyboardInterrupt:
            took = time.monotonic() - began - 0.5
            checks.ok(took < 5, "Ctrl-C ends a load", f"{took * 1000:.0f} ms")

        async def canceled() -> float:
            into = {"w": bytearray(64 << 20), "n": 0}
            task = asyncio.ensure_future(
                state.load_async(into, donors=[donor.address], progress=False))
            await asyncio.sleep(0.5)
            began = time.monotonic()
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return time.monotonic() - began
            return 99.0

        took = asyncio.run(canceled())
        checks.ok(took < 5, "so does the end of its task", f"{took * 1000:.0f} ms")
        checks.raises(errors.TimedOut, lambda: state.load(donors=[donor.address], timeout=0.7,
                      progress=False), "and its timeout")


def test_donor_killed() -> None:
    with DonorProcess(32, rate=16) as first, DonorProcess(32, rate=16) as second:
        def kill(p: state.Progress) -> None:
            if p.bytes > 4 << 20 and first.process.poll() is None:
                first.process.kill()
                first.process.wait()

        into = {"w": bytearray(32 << 20), "n": 0}
        loaded = state.load(into, donors=[first.address, second.address], progress=kill)
        pattern = (bytes(range(251)) * ((32 << 20) // 251 + 1))[: 32 << 20]
        checks.ok(first.process.poll() is not None, "a donor was killed on the way")
        checks.ok(into["w"] == pattern and into["n"] == 3, "the other gives the rest")
        checks.ok(first.address in loaded.report and second.address in loaded.report,
                  "the report names both", loaded.report)
    with DonorProcess(32, rate=16) as only:
        threading.Timer(0.6, only.process.kill).start()
        try:
            state.load(donors=[only.address], timeout=3, progress=False)
            checks.ok(False, "without a donor it fails")
        except (errors.ConnectionFailed, errors.TimedOut) as error:
            checks.ok(only.address in getattr(error, "report", ""), "without a donor it fails",
                      getattr(error, "report", None))


def test_fork_and_exit() -> None:
    ended = harness.run("""
import os, sys
import muster
from muster import state
shared = state.share({"x": bytearray(b"abc")})
tree = state.load(donors=[shared.address]).tree
pid = os.fork()
if pid == 0:
    assert bytes(tree["x"].data) == b"abc"
    try:
        shared.info
    except muster.errors.Closed as error:
        assert "fork" in str(error)
        again = state.share({"x": bytearray(b"child")})
        assert bytes(state.load(donors=[again.address]).tree["x"].data) == b"child"
        sys.exit(7)
    sys.exit(1)
assert os.waitpid(pid, 0)[1] == 7 << 8
del shared
print(bytes(tree["x"].data))
""")
    checks.ok(ended.code == 0 and ended.out == "b'abc'\n",
              "a fork shares anew, and the end is quiet",
              ended)
    ended = harness.run("""
import muster
from muster import state
rt = muster.Runtime()
with state.Donor(runtime=rt) as donor:
    donor.share({"x": bytearray(b"abc")})
    tree = state.load(donors=[donor.address], runtime=rt).tree
rt.close()
print(bytes(tree["x"].data))
""")
    checks.ok(ended.code == 0 and ended.out == "b'abc'\n", "a tree outlives its runtime", ended)


def test_the_lock_is_released() -> None:
    """Other threads of Python's go on during a load."""
    turns = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            turns[0] += 1

    with DonorProcess(32, rate=64) as donor:
        thread = threading.Thread(target=count)
        thread.start()
        state.load(donors=[donor.address], progress=False)
        stop.set()
        thread.join()
    # A load that kept the lock would let it run only between its waits.
    checks.ok(turns[0] > 20, "other threads run during a load", turns[0])


harness.main(globals())
