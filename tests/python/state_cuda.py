"""States on a GPU: every type of PyTorch's there and back, in place, with an optimizer; and how
long it takes. It is for a machine with CUDA, and no part of the test suite, whose machines have
none::

    python3 tests/python/state_cuda.py [build/muster] [--gib=4]
"""

import os
import time
from typing import Any, Callable, Dict, List

import harness
import torch
from muster import _donor, _kept, _tensors, _tree, state

checks = harness.checks
SIZE = harness.option("gib", 4) << 30


def bits(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu()


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b))


def every_type() -> Dict[str, Any]:
    tree: Dict[str, Any] = {}
    for row in _tensors.DTYPES.values():
        kind = getattr(torch, row.torch, None)
        if kind is not None:
            top = 2 if row.name == "BOOL" else 256
            raw = torch.randint(0, top, (6 * row.bytes,), dtype=torch.uint8)
            tree[row.name] = raw.view(kind).reshape(2, 3).cuda()
            tree["cpu." + row.name] = raw.view(kind).reshape(2, 3)
    tree["c128"] = torch.randn(3, 2, dtype=torch.complex128).cuda()
    tree["big"] = torch.randn(50_000_003, device="cuda")
    tree["gaps"] = torch.randn(300, 200, device="cuda").t()
    tree["empty"] = torch.zeros(0, 3, device="cuda")
    tree["point"] = torch.tensor(2.5, device="cuda")
    return tree


def test_types() -> None:
    tree = every_type()
    with state.share(tree) as shared:
        new = state.load(donors=[shared.address], progress=False).tree
        checks.equal([k for k in tree if not same(tree[k], new[k])], [], "every type comes back")
        into = {k: torch.zeros_like(v) for k, v in tree.items()}
        places = {k: v.data_ptr() for k, v in into.items()}
        state.load(into, donors=[shared.address], progress=False)
        wrong = [k for k in tree if not same(tree[k], into[k]) or into[k].data_ptr() != places[k]]
        checks.equal(wrong, [], "also in place")


def test_what_is_under_way_comes_first() -> None:
    tensor = torch.zeros(1 << 26, device="cuda")
    for _ in range(50):
        tensor += 1
    with state.share({"x": tensor}) as shared:
        tensor.zero_()
        got = state.load(donors=[shared.address], progress=False).tree["x"]
        checks.equal((float(got.min()), float(got.max())), (50.0, 50.0),
                     "the copy is of one moment")


def trained(seed: int, steps: int) -> Dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (seed + 1))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 64, device="cuda")).pow(2).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


def flat(what: Any) -> List[Any]:
    if hasattr(what, "state_dict"):
        what = what.state_dict()
    if isinstance(what, dict):
        return [x for k in sorted(what, key=str) for x in [k, *flat(what[k])]]
    if isinstance(what, (list, tuple)):
        return [x for item in what for x in flat(item)]
    return [what.tolist() if isinstance(what, torch.Tensor) else what]


def test_optimizers() -> None:
    donor = trained(0, 5)
    with state.share(donor) as shared:
        for steps in (0, 3):
            mine = trained(1, steps)
            state.load(mine, donors=[shared.address], progress=False)
            checks.equal(flat(mine), flat(donor), f"after {steps} steps all of it is the donor's")
            found = {str(entry["exp_avg"].device) for entry in mine["optimizer"].state.values()}
            checks.equal(found, {"cuda:0"}, "and on the GPU")


def timed(what: str, call: Callable[[], Any]) -> Any:
    torch.cuda.synchronize()
    began = time.monotonic()
    result = call()
    took = time.monotonic() - began
    checks.note(f"{what}: {took:.2f} s, {took / (SIZE / (1 << 30)):.3f} s/GiB")
    return result


def test_speed() -> None:
    tree = {f"l{i:02d}": torch.full((SIZE // 64,), float(i), device="cuda") for i in range(16)}
    plan = _tree.Plan(tree)
    for _ in range(3):
        timed("snapshot", lambda: _donor._Snapshot(plan)).free()
    with harness.Scratch() as scratch:
        where = "/dev/shm" if os.path.isdir("/dev/shm") else scratch
        kept = _kept.Kept(where, f"muster-bench-{os.getpid()}")
        for i in range(5):
            timed("keep", lambda i=i: kept.write(plan, _kept.Version(0, i, "x")))
        kept.remove()
    with timed("share", lambda: state.share(tree)) as shared:
        for where in ("cpu", "cuda"):
            into = {k: torch.ones_like(v, device=where) for k, v in tree.items()}
            for _ in range(3):
                timed("load, " + where, lambda: state.load(into, donors=[shared.address],
                                                           progress=False))
            checks.ok(all(float(v[0]) == float(v[-1]) == i for i, v in enumerate(into.values())),
                      "what was loaded is right")


if not torch.cuda.is_available():
    checks.skip("there is no GPU")
    checks.done()
harness.main(globals())
