#!/usr/bin/python3
"""PyTorch with muster's rendezvous: the handler of torchrun's agents, torchrun itself, and
init_process_group with muster://. With any PyTorch from 1.13 on."""

import datetime
import os
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Tuple

import harness

checks = harness.checks

try:
    import torch
    from torch.distributed.elastic.rendezvous import RendezvousParameters, api
except ImportError as _error:
    checks.skip(f"this Python has no PyTorch: {_error}")
    checks.done()

from muster import torchrun  # noqa: E402
from muster._torch_handler import MusterRendezvousHandler, _torch_error  # noqa: E402
from muster.errors import from_code  # noqa: E402

OLD = torch.__version__.startswith("1.")
QUICK = {"last_call_timeout": "100ms", "upscale_delay": "50ms"}


def handler(port: int, nodes: str = "2:2", **config: str) -> Any:
    least, most = nodes.split(":")
    more = {} if OLD else {"local_addr": "127.0.0.1"}
    config = dict(QUICK, **config)
    made = registry().create_handler(
        RendezvousParameters(
            "muster",
            f"127.0.0.1:{port}",
            "job",
            int(least),
            int(most),
            timeout=900,
            **more,
            **config,
        )
    )
    return made


def registry() -> Any:
    torchrun.register()
    return api.rendezvous_handler_registry


def together(*calls: Callable[[], Any]) -> List[Any]:
    """The results of calls that wait for each other; an exception is a result."""
    results: List[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            results[i] = calls[i]()
        except Exception as error:  # noqa: BLE001 - a result
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(harness.PATIENCE)
    return results


def parts(info: Any) -> Tuple[Any, int, int]:
    """The store, the rank and the number of nodes, of old and new PyTorch."""
    if isinstance(info, Exception):
        raise AssertionError(f"no round: {info!r}")
    return info if isinstance(info, tuple) else (info.store, info.rank, info.world_size)


def test_handler_rounds() -> None:
    port = harness.free_port()
    a, b = handler(port), handler(port)
    checks.ok(isinstance(a, MusterRendezvousHandler), "PyTorch's registry makes it")
    checks.equal(
        (a.get_backend(), a.get_run_id(), a.is_closed()), ("muster", "job", False), "names"
    )
    checks.equal((a.use_agent_store, a.num_nodes_waiting()), (True, 0), "before a round")
    first = together(a.next_rendezvous, b.next_rendezvous)
    (one, rank_a, size), (two, rank_b, _) = (parts(r) for r in first)
    checks.equal(({rank_a, rank_b}, size), ({0, 1}, 2), "ranks")
    one.set("key", "value")
    checks.equal(two.get("key"), b"value", "one store")
    checks.ok(type(one).__module__.startswith("torch."), "which is PyTorch's own", type(one))
    checks.equal(one.add("MASTER_PORT", 0), 0, "in which the agents' keys are their own")
    one.add("count", 5)
    two.set_timeout(datetime.timedelta(seconds=1))
    if not OLD:
        ports = [r.bootstrap_store_info.master_port for r in first]
        checks.equal(
            {r.bootstrap_store_info.master_addr for r in first}, {"127.0.0.1"}, "workers meet"
        )
        stores = [torch.distributed.TCPStore("127.0.0.1", p, is_master=False) for p in ports]
        stores[0].add("count", 3)
        checks.equal(
            stores[1].add("count", 0), 3, "workers of both nodes have one store, their own"
        )
    checks.equal((a.num_nodes_waiting(), b.num_nodes_waiting()), (0, 0), "the round goes on")
    second = together(a.next_rendezvous, b.next_rendezvous)
    (one, _, size), (two, _, _) = (parts(r) for r in second)
    checks.equal(size, 2, "again")
    checks.equal(one.add("count", 0), 0, "rounds do not see each other's keys")
    checks.equal(two.timeout, datetime.timedelta(seconds=300), "and the timeout is the usual one")
    if not OLD:
        again = torch.distributed.TCPStore(
            "127.0.0.1", second[0].bootstrap_store_info.master_port, is_master=False
        )
        checks.equal(again.add("count", 0), 0, "nor do their workers")
    checks.equal(together(a.shutdown, b.shutdown), [True, True], "shutdown")


def test_handler_learns_of_changes() -> None:
    with harness.Server() as server:
        a, b = handler(server.port, "1:2", is_host="0"), handler(server.port, "1:2", is_host="0")
        together(a.next_rendezvous, b.next_rendezvous)
        b._rdzv.close()  # as a node that goes without a word to the run
        began = time.monotonic()
        harness.wait_until(lambda: a.num_nodes_waiting() > 0, "the agent is told to restart")
        checks.ok(time.monotonic() - began < 15, "a node that left ends the round")
        _, rank, size = parts(a.next_rendezvous())
        checks.equal((rank, size), (0, 1), "a world without it")
        late = handler(server.port, "1:2", is_host="0")
        joining: List[Any] = []
        thread = threading.Thread(
            target=lambda: joining.append(late.next_rendezvous()), daemon=True
        )
        thread.start()
        harness.wait_until(lambda: a.num_nodes_waiting() > 0, "a late node ends the round")
        checks.equal(parts(a.next_rendezvous())[2], 2, "and is let in")
        thread.join(harness.PATIENCE)
        checks.equal(len(joining), 1, "at both ends")
        late.shutdown()
        harness.wait_until(a.is_closed, "the run is closed")
        checks.equal(a.num_nodes_waiting(), 0, "after a success the workers of others go on")
        checks.raises(api.RendezvousClosedError, a.next_rendezvous, "but no round comes")


def test_handler_tells_failure() -> None:
    with harness.Server() as server:
        a, b = handler(server.port, is_host="0"), handler(server.port, is_host="0")
        together(a.next_rendezvous, b.next_rendezvous)
        try:
            raise RuntimeError("a worker failed")
        except RuntimeError:
            b.shutdown()
        harness.wait_until(lambda: a.num_nodes_waiting() > 0, "the agent is told to restart")
        checks.raises(api.RendezvousClosedError, a.next_rendezvous, "which says why", "has failed")


def test_handler_errors() -> None:
    with harness.Server() as server:
        lonely = handler(server.port, is_host="0", join_timeout="1")
        checks.raises(api.RendezvousTimeoutError, lonely.next_rendezvous, "nobody came", "1 of 2")
        others = [handler(server.port, is_host="0") for _ in range(2)]
        together(*[o.next_rendezvous for o in others])
        lonely.shutdown()
        checks.ok(not others[0].is_closed(), "a node that was never in does not close the run")
        checks.raises(
            ValueError,
            lambda: handler(server.port, jon_timeout="1"),
            "an unknown option",
            "join_timeout",
        )
        checks.raises(
            ValueError,
            lambda: handler(server.port, insecure="perhaps"),
            "a wrong flag",
            "true or false",
        )
        others[0].set_closed()
        checks.raises(api.RendezvousClosedError, others[0].next_rendezvous, "closed")
    refused = _torch_error(from_code(-10037, "it has a different token (--token-file)"))
    checks.ok(isinstance(refused, api.RendezvousConnectionError), "a credential that is refused")
    checks.equal(
        str(refused), "it has a different token (--rdzv-conf token_file=FILE)",
        "the remedy is torchrun's",
    )  # fmt: skip
    checks.equal(
        str(_torch_error(from_code(-10037, "it wants --token-file FILE, or MUSTER_TOKEN_FILE"))),
        "it wants --rdzv-conf token_file=FILE, or MUSTER_TOKEN_FILE",
        "and is told once",
    )
    checks.equal(
        str(_torch_error(from_code(-10037, "give every node --token-file FILE, or --allow CIDR (PyTorch only) or --insecure"))),
        "give every node --rdzv-conf token_file=FILE or --rdzv-conf insecure=true",
        "and names no option that torchrun lacks",
    )  # fmt: skip
    nobody = handler(harness.free_port(), is_host="0", join_timeout="1")
    checks.raises(
        (api.RendezvousConnectionError, api.RendezvousTimeoutError),
        nobody.next_rendezvous,
        "no server",
    )


def test_waiting_is_not_silent() -> None:
    """A launcher that waits says for what, without being asked."""
    port = harness.free_port()
    with harness.Scratch() as folder:
        script = os.path.join(folder, "nothing.py")
        open(script, "w").close()
        agent = subprocess.Popen(
            [sys.executable, "-m", "muster.torchrun", "--nnodes=2", "--rdzv_id=alone",
             f"--rdzv_endpoint=127.0.0.1:{port}", "--rdzv_conf=is_host=false", script],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
            env=harness.ENVIRONMENT, preexec_fn=harness.lib.die_with_parent,
        )  # fmt: skip
        lines = []
        for line in agent.stdout:
            lines.append(line)
            if "waiting for the rendezvous" in line:
                break
        agent.kill()
        agent.wait()
        agent.stdout.close()
    checks.ok(f"127.0.0.1:{port}" in lines[-1], "it names the endpoint", "".join(lines))
    checks.ok("refused" in lines[-1], "and says what is wrong with it", lines[-1])


def test_handler_with_a_token() -> None:
    with harness.Scratch() as folder:
        token = os.path.join(str(folder), "token")
        subprocess.run(
            [harness.MUSTER, "keygen", "token", token],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        port = harness.free_port()
        a = handler(port, token_file=token)
        b = handler(port, token_file=token)
        (one, _, _), (two, _, size) = (
            parts(r) for r in together(a.next_rendezvous, b.next_rendezvous)
        )
        one.set("key", "value")
        checks.equal((two.get("key"), size), (b"value", 2), "a run with a token")
        checks.raises(
            (OSError, ValueError, api.RendezvousError),
            lambda: handler(port, token_file=token + ".no"), "a token that is not there",
        )  # fmt: skip
        together(a.shutdown, b.shutdown)


# --- torchrun -------------------------------------------------------------------------------------

DDP = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(1, 1))
model(torch.ones(1, 1)).sum().backward()
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("sum", int(total), "of", dist.get_world_size(), flush=True)
dist.barrier()
"""


def torchrun_command(port: int, *options: str) -> List[str]:
    return [
        sys.executable, "-m", "muster.torchrun", "--nnodes", "2", "--nproc_per_node", "2",
        "--monitor_interval", "0.1", "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "job",
        *(["-r", "1", "-t", "1"] if OLD else ["--local_addr", "127.0.0.1"]), *options,
    ]  # fmt: skip


def test_torchrun() -> None:
    with harness.Scratch() as folder:
        script = os.path.join(str(folder), "ddp.py")
        with open(script, "w") as file:
            file.write(DDP)
        command = [*torchrun_command(harness.free_port()), script]
        env = dict(harness.ENVIRONMENT, OMP_NUM_THREADS="1")
        running = [
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             universal_newlines=True, preexec_fn=harness.lib.die_with_parent)
            for _ in range(2)
        ]  # fmt: skip
        ended = [harness.finish(process, 120) for process in running]
    checks.ok(all(e.code == 0 for e in ended), "two agents", ended)
    lines = [line for e in ended for line in e.out.splitlines() if "sum" in line]
    checks.equal([line.split("sum ")[1] for line in lines], ["10 of 4"] * 4, "DDP with 4 workers")


def test_torchrun_arguments() -> None:
    cases = [
        (["x.py"], True), (["x.py", "--node_rank=1"], True), (["--node_rank=1", "x.py"], False),
        (["--master_addr", "a", "x.py"], False), (["--rdzv_backend=c10d", "x.py"], True),
    ]  # fmt: skip
    os.environ.pop("PET_RDZV_BACKEND", None)
    for args, added in cases:
        expected = ["--rdzv_backend=muster", *args] if added else args
        checks.equal(torchrun.with_backend(args), expected, " ".join(args))


# --- init_process_group ---------------------------------------------------------------------------

INIT = """
import sys, torch, torch.distributed as dist, muster.torch
url, rounds = sys.argv[1], int(sys.argv[2])
for _ in range(rounds):
    dist.init_process_group("gloo", init_method=url)
    total = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    print("rank", dist.get_rank(), "of", dist.get_world_size(), "sum", int(total), flush=True)
    assert muster.torch.rendezvous().ended() is None
    dist.barrier()
    dist.destroy_process_group()
"""


def init(urls: List[str], rounds: int) -> List[harness.Ended]:
    env = {"OMP_NUM_THREADS": "1"}
    running = [harness.start(INIT, url, str(rounds), env=env) for url in urls]
    return [harness.finish(process, 120) for process in running]


def test_init_method() -> None:
    port = harness.free_port()
    ended = init([f"muster://127.0.0.1:{port}/job?nodes=2:2&last_call_timeout=1"] * 2, 2)
    lines = sorted(line for e in ended for line in e.out.splitlines())
    expected = ["rank 0 of 2 sum 3"] * 2 + ["rank 1 of 2 sum 3"] * 2
    checks.equal(lines, expected, "two processes, two rounds")
    checks.ok(all(e.code == 0 for e in ended), "all end well", ended)
    port = harness.free_port()
    base = f"muster://127.0.0.1:{port}/job?world_size=3&rank="
    ended = init([base + "2", base + "0", base + "1"], 1)
    got = [e.out.strip() for e in ended]
    checks.equal(got, [f"rank {r} of 3 sum 6" for r in (2, 0, 1)], "ranks that were asked for")
    checks.ok(all(e.code == 0 for e in ended), "all end well", ended)


def test_init_method_errors() -> None:
    import torch.distributed as dist

    import muster.torch  # noqa: F401 - registers muster://

    for url, text in (
        ("muster://127.0.0.1:1/", "RUN_ID"), ("muster://127.0.0.1:1/job", "how many processes"),
        ("muster://127.0.0.1:1/job?world_size=2&nodes=2", "how many processes"),
        ("muster://127.0.0.1:1/job?world_size=2&rank=2", "not a rank"),
        ("muster://127.0.0.1:1/job?nodes=2&rank=1", "needs world_size"),
        ("muster://127.0.0.1:1/job?world_size=x", "number"),
    ):  # fmt: skip
        checks.raises(
            ValueError, lambda u=url: dist.init_process_group("gloo", init_method=u), url, text
        )


if __name__ == "__main__":
    harness.main(globals())
