#!/usr/bin/python3
"""Runs what the pages tell their readers to run on several machines: on several hosts, with the
names, ports and files of the page. Only addresses of examples (10.0.0.0/24, 203.0.113.7) are
replaced, and the reader's own program.

    docs_hosts.py [MUSTER] [--only=TEXT]

The blocks are those behind <!-- test: hosts ... --> and the recipes' own marks. What runs on one
machine is run by tests/interop/docs_run.py, what runs in a swarm by docs_swarm.py.
"""
import json
import os
import re
import signal

from docs_site import (MODULE, PAGES, PATIENCE, PYTHON, Site, block, checks, commands, fill, squeeze,
                       unrun)
from rig import Rig, option, wait_until

# One that saves when the members change; the recipe's own function is put before it.
SAVER = """
import os, sys, threading, time
rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
asked, write = threading.Event(), os.write
os.write = lambda fd, data: (write(fd, data), asked.set())[0]
when_members_change(lambda: print(f"worker {rank} saves", flush=True))
asked.wait()
print(f"worker {rank} of {world}", flush=True)
for _ in range(600):
    if world == "1":
        sys.exit(0)
    time.sleep(0.1)
"""


# One whose first lines are the page's.
ADDER = """
import torch
number = torch.ones(1)
dist.all_reduce(number)
print("sum", int(number), flush=True)
dist.barrier()
"""


# Starts the same on every host, each of them known by a process in its namespaces.
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
for host in %s; do nsenter -t $host -n -u -m --wd="$PWD" -- "$@" & tasks="$tasks $!"; done
status=0
for task in $tasks; do wait $task || status=1; done
exit $status
"""


def test_readme():
    with Rig(2) as rig:
        site = Site(rig)
        keygen, run = commands("README.md", "hosts two")
        site.run(rig.hosts[0], keygen, "README: the token")
        site.copy()
        site.together(rig.hosts, [run, run], "4 workers", "README: two nodes")


def test_recipe_two():
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        page = "docs/recipes.md"
        site.run(a, block(page, "two node0").text(), "recipes: the token")
        site.copy()
        command = block(page, "two both").text()
        site.together((a, b), [command, command], "worker 3 of 4", "recipes: two nodes")
        for host in (a, b):
            with open(os.path.join(host.path, "verdict.json")) as file:
                checks.ok(json.load(file), "recipes: the verdict of " + host.name)
        server = site.serve(a, block(page, "two server").text(), "serving on",
                            "recipes: a server of its own")
        first = site.start(b, command)
        status = "muster rdzv status --rdzv-endpoint node0:29400 --token-file job.token"
        doctor = "muster doctor node0:29400"
        text = "\n".join(line for _, line in PAGES[page].prose)
        for line in (status, doctor):
            checks.ok("`%s`" % line in text, "recipes: the page says " + line)
        wait_until(lambda: "1 of 2 nodes are here" in site.ask(b, status)[1],
                   "the status: one of two nodes", PATIENCE, 0.2)
        said = site.run(b, doctor, "recipes: the doctor")
        checks.note(" ".join(said.split())[-200:])
        top = site.run(a, "muster top --once --token-file job.token 127.0.0.1:29501",
                       "recipes: top")
        checks.ok("job7" in top, "recipes: top shows the job", top)
        second = site.start(c, command)
        codes = [first.wait(PATIENCE), second.wait(PATIENCE)]
        checks.equal(codes, [0, 0], "recipes: two nodes with a server of its own")
        server.stop()


def test_recipe_taken():
    with Rig(2) as rig:
        site = Site(rig, block("docs/recipes.md", "notify").text() + SAVER)
        a, b = rig.hosts
        site.run(a, block("docs/recipes.md", "two node0").text(), "recipes: taken: the token")
        site.copy()
        command = "exec " + block("docs/recipes.md", "taken").text()
        stays, goes = site.start(a, command), site.start(b, command)
        for agent in (stays, goes):  # which rank is whose follows from their names
            wait_until(lambda: re.search(r"worker \d of 2", agent.output()), "two", PATIENCE)
        goes.signal(signal.SIGUSR1)
        checks.equal(goes.wait(PATIENCE), 1, "recipes: taken: the one that goes says so")
        checks.equal(stays.wait(PATIENCE), 0, "recipes: taken: the other goes on")
        checks.ok("saves" in stays.output() and "worker 0 of 1" in stays.output(),
                  "recipes: taken: saves, and is alone", stays.output())


def test_recipe_slurm():
    """The script as it is; what Slurm does is done by stand-ins: a task on each host."""
    with Rig(3) as rig:
        site = Site(rig)
        anchors = " ".join(str(host.anchor.pid) for host in rig.hosts)
        for name, text in (
                ("scontrol", "#!/bin/sh\nprintf '%s\\n' node0 node1 node2\n"),
                ("srun", SRUN % anchors)):
            path = os.path.join(site.bin, name)
            with open(path, "w") as file:
                file.write(text)
            os.chmod(path, 0o755)
        a = rig.hosts[0]
        site.write(a, "job.sbatch", block("docs/recipes.md", "slurm").text())
        said = site.run(a, "sh job.sbatch", "recipes: Slurm: the job ends well", SLURM_JOB_ID="7",
                        SLURM_JOB_NUM_NODES="3", SLURM_JOB_NODELIST="node[0-2]",
                        SLURM_SUBMIT_DIR=a.path)
        checks.equal(sorted(set(re.findall(r"worker \d of \d", said))),
                     ["worker %d of 3" % rank for rank in range(3)], "recipes: Slurm: a world")
        left = [name for name in os.listdir(a.path) if "token-" in name]
        checks.equal(left, [], "recipes: Slurm: the token is gone with the job")


def write_model(host):
    head = json.dumps({"w": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}})
    model = len(head).to_bytes(8, "little") + head.encode() + bytes(range(256)) * 4
    with open(os.path.join(host.path, "model.safetensors"), "wb") as file:
        file.write(model)
    return model


def read_model(host, name="model.safetensors"):
    with open(os.path.join(host.path, name), "rb") as file:
        return file.read()


def test_from_torchrun():
    page = "docs/from-torchrun.md"
    with Rig(2) as rig:
        site = Site(rig)
        keygen, run = commands(page, "hosts token")
        site.run(rig.hosts[0], keygen, "from-torchrun: the token")
        site.copy()
        site.together(rig.hosts, [run, run], "worker 1 of 2", "from-torchrun: with a token")
        torchrun, ours = [line for line in commands(page, "standalone") if "node0" in line]
        site.together(rig.hosts, [ours, ours], "worker 15 of 16", "from-torchrun: 8 a node")


def test_from_torchrun_kept():
    """torchrun's own agents with muster's rendezvous."""
    command = squeeze(block("docs/from-torchrun.md", "hosts torchrun").text())
    with Rig(2) as rig:
        site = Site(rig)
        site.run(rig.hosts[0], "muster keygen token job.token", "from-torchrun: kept: the token")
        site.copy()
        module = command.replace("torchrun ", PYTHON + " -m muster.torchrun -r 1 -t 1 ", 1)
        module = re.sub(r"--\w+(-\w+)+", lambda word: "--" + word[0][2:].replace("-", "_"), module)
        site.together(rig.hosts, [command, module.replace("--rdzv_backend=muster ", "")],
                      "worker 1 of 2", "from-torchrun: torchrun with muster's rendezvous", **MODULE)


def test_python_page():
    """init_process_group() without a launcher, on four hosts."""
    with Rig(4) as rig:
        site = Site(rig, block("docs/python.md", "hosts init").text() + ADDER)
        site.run(rig.hosts[0], "muster keygen token job.token", "python.md: the token")
        site.copy()
        site.together(rig.hosts, [PYTHON + " train.py"] * 4, "sum 4",
                      "python.md: without a launcher", MUSTER_TOKEN_FILE="job.token", **MODULE)


def has_state(site, host):
    """Whether a first node has come to the run: a state is longer than what stands there before."""
    command = "muster kv --store tcp://node0:29400 get torch.rendezvous.job7"
    return len(site.ask(host, command)[1]) > 99


def test_from_torchrun_mixed():
    """Agents of PyTorch 1.13 and muster's, whichever hosts and whichever comes first."""
    page = "docs/from-torchrun.md"
    torchrun = [line for line in commands(page, "standalone") if "node0" in line][0]
    mixed = commands(page, "hosts mixed")[0]
    with_token = mixed.replace("--allow", "--token-file job.token --allow")
    for what, first, second, count in (("torchrun hosts", torchrun, mixed, 9),
                                       ("muster hosts", mixed, torchrun, 9),
                                       ("muster on both", mixed, mixed, 2),
                                       ("with a token", with_token, torchrun, 9)):
        with Rig(2) as rig:
            site = Site(rig)
            a, b = rig.hosts
            site.run(a, "muster keygen token job.token", "from-torchrun: %s: a token" % what)
            early = site.start(a, first)
            if first is not torchrun:
                wait_until(lambda: has_state(site, a), "a state", PATIENCE, 0.2)
            site.together([b], [second], "worker", "from-torchrun: %s: the second" % what)
            checks.equal(early.wait(PATIENCE), 0, "from-torchrun: %s: the first" % what)
            checks.ok("of %d" % count in early.output(), "from-torchrun: %s: one world" % what,
                      early.output())


def test_run_page():
    with Rig(3) as rig:
        site = Site(rig)
        keygen, run = commands("docs/run.md", "hosts token")
        site.run(rig.hosts[0], keygen, "run.md: the token")
        site.copy()
        site.together(rig.hosts[:2], [run, run], "worker 1 of 2", "run.md: with a token")
        elastic = commands("docs/run.md", "hosts elastic")[1]
        site.together(rig.hosts[:2], [elastic, elastic], "of 16", "run.md: in torchrun's place",
                      MUSTER_TOKEN_FILE="job.token")


def test_lock_page():
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        keygen, export, serve, get = commands("docs/lock.md", "hosts lock")
        site.run(a, keygen, "lock.md: the token")
        site.copy()
        site.serve(b, export + "\n" + serve, "serving on", "lock.md: a server on node1")
        site.run(a, export + "\n" + get.replace("get key", "set key value"), "lock.md: from node0")
        said = site.run(c, export + "\n" + get, "lock.md: from anywhere in the job")
        checks.equal(said, "value\n", "lock.md: and it is what was set")
        command, *words = [line for _, line in block("docs/lock.md", "hosts refused").commands()]
        code, out, err = site.ask(a, command[2:])
        said = re.sub(r"^[\d-]{10} [\d:.]{12} ", "", out + err)  # the time
        checks.ok(code != 0 and said == " ".join(words) + "\n", "lock.md: refused in words",
                  (code, out + err, words))


def test_store_page():
    with Rig(2) as rig:
        site = Site(rig)
        a, b = rig.hosts
        site.run(a, "muster keygen token job.token", "store.md: the token")
        site.copy()
        env = {"MUSTER_TOKEN_FILE": "job.token"}
        site.serve(a, "muster serve --listen 0.0.0.0:29500", "serving on", "store.md: a server",
                   **env)
        site.serve(b, commands("docs/store.md", "hosts gateway")[0], "serving on",
                   "store.md: a gateway", **env)
        site.run(a, "muster kv --store tcp://node0:29500 set key value", "store.md: a key", **env)
        said = site.run(b, "muster kv --store tcp://127.0.0.1:29500 get key", "store.md: is there")
        checks.equal(said, "value\n", "store.md: and the same")


def test_scale_page():
    with Rig(5) as rig:
        site = Site(rig)
        site.run(rig.hosts[0], "muster keygen token job.token", "scale.md: the token")
        site.copy()
        env = {"MUSTER_TOKEN_FILE": "job.token"}
        serve, relay, run = commands("docs/scale.md", "hosts relays")
        site.serve(rig.hosts[0], serve, "serving on", "scale.md: the server", **env)
        for host in rig.hosts[1:3]:
            site.serve(host, relay, "serving on", "scale.md: a relay on " + host.name, **env)
        site.together(rig.hosts[3:], [fill(run, {"1000": "2"})] * 2, "worker 1 of 2",
                      "scale.md: two nodes behind relays", **env)


def test_state_page():
    with Rig(2) as rig:
        site = Site(rig)
        a, b = rig.hosts
        model = write_model(a)
        site.run(a, "muster keygen token job.token", "state.md: the token")
        site.copy()
        serve, pull = commands("docs/state.md", "hosts state")
        site.serve(a, serve, "serving at", "state.md: a donor")
        site.run(b, pull, "state.md: a puller")
        checks.equal(read_model(b), model, "state.md: byte for byte")


def test_operate_page():
    with Rig(4) as rig:
        site = Site(rig)
        text = "\n".join(line for _, line in PAGES["docs/operate.md"].prose)
        line = "muster doctor node1:29400 node2 node3"
        checks.ok("`%s`" % line in text, "operate.md: the page says " + line)
        site.run(rig.hosts[1], "muster keygen token job.token", "operate.md: the token")
        token = os.path.join(rig.hosts[1].path, "job.token")
        site.serve(rig.hosts[1], "muster serve --listen node1:29400", "serving on",
                   "operate.md: a server", MUSTER_TOKEN_FILE=token)
        for host in rig.hosts[1:]:
            _, said, _ = site.ask(host, line, MUSTER_TOKEN_FILE=token)
            checks.ok(re.search(r"^ok +node1:29400 .*port", said, re.M) and "BAD   node3" in said,
                      "operate.md: the doctor on %s knows who listens" % host.name, said)


def test_exclusion():
    with Rig(3) as rig:
        site = Site(rig, "import time; print('it trains', flush=True); time.sleep(600)")
        exclude, include = commands("docs/run.md", "hosts exclude")
        site.run(rig.hosts[0], "muster keygen token job.token", "run.md: the token")
        site.copy()
        env = {"MUSTER_TOKEN_FILE": "job.token"}
        agents = [site.start(host, "muster run --nnodes 2:3 --rdzv-endpoint node0:29400 "
                             "--rdzv-id job7 train.py", **env) for host in rig.hosts]
        for agent in agents:
            agent.says("it trains", PATIENCE)
        site.run(rig.hosts[1], exclude, "run.md: exclude", **env)
        agents[2].says("ECC errors", PATIENCE)
        agents[0].says("node 0 of 2", PATIENCE)
        site.run(rig.hosts[2], include, "run.md: include", **env)
        wait_until(lambda: agents[2].output().count("it trains") == 2, "node2 to train again",
                   PATIENCE)
        checks.ok(True, "run.md: node2 is in again")


if __name__ == "__main__":
    checks.run_tests(globals())
    if not option("only", ""):
        checks.equal(list(unrun("docs_hosts")), [], "every command for several hosts was run")
    checks.done()
