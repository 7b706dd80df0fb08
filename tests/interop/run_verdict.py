#!/usr/bin/python3
"""Who failed first: one rank of four, on one of two agents, dies in one of several ways; the others
fail because of it, often before the agent of the first one knows. Both agents must name the one
that began, by rank and by how it ended.

usage: run_verdict.py path/to/muster [--seeds=50] [--first=0]
"""
import json
import os
import random
import subprocess
import sys

from lib import Checks, Scratch, die_with_parent, free_port, muster_path, option

WORKER = r"""
import json, os, random, signal, socket, sys, time

def die(rng, rank):
    way = rng.choice(["exit", "kill", "segv", "raise"])
    if way == "exit":
        os._exit(rng.randrange(1, 120))
    if way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        with open(path, "w") as f:
            json.dump({"message": {"message": "ValueError: rank %d" % rank, "extraInfo": {
                "py_callstack": "Traceback of %d" % rank, "timestamp": str(int(time.time()))}}}, f)
    raise ValueError("rank %d" % rank)

directory, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
victim = rng.randrange(4)
pause = rng.random() * 0.02
rank = int(os.environ["RANK"])
path = os.path.join(directory, "meet")
if rank == victim:
    s = socket.socket(socket.AF_UNIX)
    s.bind(path + ".part")
    s.listen(8)
    os.rename(path + ".part", path)
    peers = [s.accept()[0] for _ in range(3)]
    for p in peers:
        p.send(b"x")
    print("rank %d is about to die" % rank, flush=True)
    time.sleep(pause)
    die(rng, rank)
s = socket.socket(socket.AF_UNIX)
while True:
    try:
        s.connect(path)
        break
    except OSError:
        time.sleep(0.002)
s.recv(1)
s.recv(1)
# As who depends on a peer does: with a word about it.
if random.Random(seed * 4 + rank).random() < 0.3:
    sys.stderr.write("terminate called after throwing an instance of 'std::runtime_error'\n"
                     "  what():  Connection closed by peer\n")
    sys.stderr.flush()
    os.abort()
raise ConnectionError("rank %d has lost its peer" % rank)
"""


def start_agent(muster, directory, seed, port, index):
    command = [muster, "run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=seed%d" % seed,
               "--rdzv-endpoint=127.0.0.1:%d" % port, "--local-addr=127.0.0.1",
               "--log-dir", os.path.join(directory, "log%d" % index),
               "--verdict", os.path.join(directory, "verdict%d" % index),
               os.path.join(directory, "worker.py"), directory, str(seed)]
    os.mkdir(os.path.join(directory, "log%d" % index))
    return subprocess.Popen(command, env=dict(os.environ, PYTHON_EXEC=sys.executable),
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
                            universal_newlines=True)


def run_seed(checks, muster, seed):
    victim = random.Random(seed).randrange(4)
    with Scratch() as directory:
        with open(os.path.join(directory, "worker.py"), "w") as f:
            f.write(WORKER)
        port = free_port()
        agents = [start_agent(muster, directory, seed, port, i) for i in range(2)]
        said = [a.communicate(timeout=60)[0] for a in agents]
        for i, agent in enumerate(agents):
            what = "seed %d, agent %d" % (seed, i)
            if not checks.equal(agent.returncode, 1, what + " ends with 1"):
                checks.note(said[i])
                continue
            with open(os.path.join(directory, "verdict%d" % i)) as f:
                verdict = json.load(f)
            first = verdict["first_failure"]
            if not checks.ok(first is not None and first["rank"] == victim,
                             what + " names rank %d" % victim, said[i]):
                continue
            if "ValueError" in first["message"]:
                checks.equal(first["message"], "ValueError: rank %d" % victim,
                             what + " has its error file")
                checks.equal(first["traceback"], "Traceback of %d" % victim,
                             what + " has its traceback")
            checks.ok("rank %d is about to die" % victim in first["tail"],
                      what + " has its last lines", first["tail"])
            checks.ok("first failure: rank %d " % victim in said[i], what + " says so", said[i])


def main():
    checks = Checks()
    muster = muster_path()
    first = option("first", 0)
    for seed in range(first, first + option("seeds", 50)):
        run_seed(checks, muster, seed)
    checks.done()


if __name__ == "__main__":
    main()
