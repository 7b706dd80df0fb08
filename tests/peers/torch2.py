#!/usr/bin/python3
"""PyTorch 2 at the other end: its store and ours, both ways; its agents and ours in one run; its
processes under `muster run`.

    torch2.py MUSTER [--short]

It is run by the Python of build-peers/torch, and so are the tests of other folders that it calls."""
import os
import subprocess
import sys
import tempfile

from peers_lib import Checks, ROOT, SHORT
from programs import chosen, run_program
from lib import Muster, PATIENCE, die_with_parent, muster_path

checks = Checks()
MODULE = {"PYTHONPATH": os.path.join(ROOT, "python"), "PYTHONDONTWRITEBYTECODE": "1",
          "MUSTER_LIBRARY": os.path.join(os.path.dirname(muster_path()), "libmuster.so"),
          "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
# What is shortest comes first: --short runs that alone.
STORE = [("torch_client_on_muster",), ("torch_client_on_muster", "--gateway"),
         ("muster_client_on_torch",), ("muster_client_on_torch", "--no-libuv"),
         ("file_store",)]
AGENTS = [("rdzv_mixed",), ("run_mixed",), ("run_ddp",), ("run_env",), ("run_cli",), ("run_sealed",),
          ("run_hang",), ("stacks",), ("state_cli",)]
PYTHON = [("torch",), ("state",), ("state_trees",), ("state_ddp",), ("worker",)]

REDUCE = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "sum", int(total), "restart", os.environ["TORCHELASTIC_RESTART_COUNT"],
      "torch" in sys.modules and "ready", flush=True)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and len(sys.argv) > 1:
    sys.exit(3)
dist.destroy_process_group()
"""


def agents(script, *commands):
    """Runs agents side by side to their end: ([exit codes], what they said)."""
    started = [subprocess.Popen([*command, script], env=dict(os.environ, **MODULE), text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
               for command in commands]
    said = [agent.communicate(timeout=4 * PATIENCE)[0] for agent in started]
    return [agent.returncode for agent in started], "".join(said)


def script(folder):
    path = os.path.join(folder, "reduce.py")
    with open(path, "w") as file:
        file.write(REDUCE)
    return path


def installed(folder):
    """What an installed package has beside its modules: torchrun finds the backend by that."""
    info = os.path.join(folder, "muster-0.dist-info")
    os.makedirs(info)
    for name, text in (("METADATA", "Metadata-Version: 2.1\nName: muster\nVersion: 0\n"),
                       ("entry_points.txt",
                        "[torchrun.handlers]\nmuster = muster.torch:torchrun_handler\n")):
        with open(os.path.join(info, name), "w") as file:
            file.write(text)
    MODULE["PYTHONPATH"] += ":" + folder


def test_1_store():
    for name, *args in chosen(STORE):
        run_program(checks, " ".join(["PyTorch 2,", name, *args]), "tests/interop/%s.py" % name,
                    muster_path(), *args)


def test_2_torchrun_with_our_rendezvous():
    with tempfile.TemporaryDirectory() as folder, Muster() as server:
        installed(folder)
        torchrun = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--nnodes", "2",
                    "--nproc-per-node", "1", "--rdzv-backend=muster", "--rdzv-id", "job7",
                    "--rdzv-endpoint", "127.0.0.1:%d" % server.port]
        codes, said = agents(script(folder), torchrun, torchrun)
        checks.ok(codes == [0, 0] and "rank 0 sum 2" in said and "rank 1 sum 2" in said,
                  "torchrun --rdzv-backend=muster", (codes, said[-2000:]))


def test_3_torchrun_on_our_store():
    with tempfile.TemporaryDirectory() as folder, Muster() as server:
        torchrun = [os.path.join(os.path.dirname(sys.executable), "torchrun"), "--nnodes", "2",
                    "--nproc-per-node", "1", "--rdzv-backend=c10d", "--rdzv-conf", "is_host=0",
                    "--rdzv-endpoint", "127.0.0.1:%d" % server.port, "--rdzv-id", "job8"]
        codes, said = agents(script(folder), torchrun, torchrun)
        checks.ok(codes == [0, 0] and "rank 0 sum 2" in said and "rank 1 sum 2" in said,
                  "torchrun's agents meet on our store", (codes, said[-2000:]))


def test_4_warm():
    with tempfile.TemporaryDirectory() as folder:
        path = script(folder)
        run = [muster_path(), "run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1",
               "--warm=torch", path, "fail"]
        done = subprocess.run(run, env=dict(os.environ, **MODULE), capture_output=True, text=True,
                              timeout=4 * PATIENCE, check=False)
        said = done.stdout + done.stderr
        checks.ok(done.returncode == 0 and "rank 0 sum 2 restart 1" in said and
                  "rank 1 sum 2 restart 1" in said, "muster run --warm=torch restarts DDP workers",
                  (done.returncode, said[-2000:]))


def test_5_tests_of_other_folders():
    if SHORT:
        return
    for name, *args in AGENTS:
        run_program(checks, " ".join(["PyTorch 2,", name, *args]), "tests/interop/%s.py" % name,
                    muster_path(), *args)
    for name, *args in PYTHON:
        run_program(checks, "PyTorch 2, python, " + name, "tests/python/test_%s.py" % name,
                    muster_path(), *args, environment=MODULE)
    run_program(checks, "PyTorch 2, distributed checkpoints", "tests/python/torch2_checkpoint.py",
                environment=MODULE)
    run_program(checks, "PyTorch 2, joins and losses", "tests/python/torch2_elastic.py",
                "--backends", "muster,mixed", muster_path(), environment=MODULE, seconds=1200)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
