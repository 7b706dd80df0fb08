#!/usr/bin/python3
"""An unchanged DDP training script (ddp_train.py: gloo, CPU) under torchrun and under `muster run`.

Two agents with two workers each come to the same loss under both, to the last digit. Then, under
ours, the agent of rank 0 is killed with SIGKILL in the middle of training: the other one's workers
run again in a world of their own; a new agent is taken in; all of them end with 0.

usage: run_ddp.py path/to/muster
"""
import os
import re
import subprocess
import sys
import threading
import time

from lib import HERE, Checks, Muster, Scratch, die_with_parent, free_port, muster_path, wait_until

PATIENCE = 90  # importing torch takes seconds when the machine has other things to do
STEPS = 25


def read_proc(pid, name):
    with open("/proc/%s/%s" % (pid, name), errors="replace") as file:
        return file.read()


def descendants(root):
    """A line for that process and each one below it: what it is, and what it waits for."""
    parents, lines = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = read_proc(pid, "stat").rpartition(") ")[2].split()
            parents[pid] = fields[1]
            lines[pid] = "pid %s, state %s, threads %s, waits in %s: %s" % (
                pid, fields[0], fields[17], read_proc(pid, "wchan"),
                read_proc(pid, "cmdline").replace("\0", " "))
        except OSError:
            continue  # it has just ended
    family, more = set(), {str(root)}
    while more:
        family |= more
        more = {pid for pid, parent in parents.items() if parent in family} - family
    return [lines[pid] for pid in sorted(family) if pid in lines]


class Agent:
    """An agent as a process, and the lines that it and its workers have said so far."""

    def __init__(self, command, scratch):
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PET_", "TORCH", "MUSTER_"))}
        environment.update(PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1", TMPDIR=scratch)
        self.lines = []
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, universal_newlines=True, errors="replace",
            preexec_fn=die_with_parent)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def said(self):
        return "".join(list(self.lines))

    def kill(self):
        self.process.kill()
        self.process.wait()


def wait_for(agents, patience=PATIENCE):
    """Their exit codes; None for one that had to be killed."""
    deadline = time.monotonic() + patience
    late = []
    for agent in agents:
        try:
            agent.process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            late.append(agent)
    # All that are late tell how they stand before the first is killed: the others go on then.
    for agent in late:
        agent.lines += ["still there: %s\n" % line for line in descendants(agent.process.pid)]
    for agent in late:
        agent.kill()
    for agent in agents:
        agent.reader.join(5)
    return [None if agent in late else agent.process.returncode for agent in agents]


def launcher(muster, kind, endpoint, nodes, *more):
    # Debian's torchrun only starts when it has something to redirect.
    command = [muster, "run"] if kind == "muster" else \
        [sys.executable, "-m", "torch.distributed.run", "--rdzv_backend", "c10d",
         "--monitor_interval", "0.5", "-r", "2", "-t", "2"]
    return command + ["--nnodes", nodes, "--nproc_per_node", "2", "--rdzv_endpoint", endpoint,
                      "--rdzv_id", "ddp"] + list(more) + [os.path.join(HERE, "ddp_train.py")]


def ends(agents):
    """(rank, world, step, loss) of each worker that came to its end, by rank."""
    # Under torchrun lines can lose their ends to each other: Python writes those apart.
    found = re.findall(r"end rank=(\d+) world=(\d+) step=(\d+) loss=(0x[\d.a-f]+p[-+]\d+)",
                       "".join(agent.said() for agent in agents))
    return sorted((int(rank), int(world), int(step), loss) for rank, world, step, loss in found)


def finish(checks, agents, what):
    codes = wait_for(agents)
    # Who waits in vain waits for another one: all of them tell.
    tell = ["agent %d: %s\n%s" % (number, codes[number], agent.said()[-3000:])
            for number, agent in enumerate(agents)]
    for number, code in enumerate(codes):
        checks.ok(code == 0, "%s: agent %d ends with 0" % (what, number), "\n".join(tell))


def train(checks, muster, kind, scratch):
    """Two agents by themselves; the loss that all four workers came to."""
    endpoint = "127.0.0.1:%d" % free_port()
    agents = [Agent(launcher(muster, kind, endpoint, "2") + ["--steps", str(STEPS)], scratch)
              for _ in range(2)]
    finish(checks, agents, kind)
    found = ends(agents)
    checks.equal([end[:3] for end in found], [(rank, 4, STEPS) for rank in range(4)],
                 "%s: four workers in one world train to the end" % kind)
    losses = {end[3] for end in found}
    checks.ok(len(losses) == 1, "%s: they have one loss" % kind, losses)
    return losses


def steps_in(agents, world):
    """The steps that were made in worlds of that size."""
    return [int(step) for step in re.findall(r"step (\d+) of a world of %d\n" % world,
                                             "".join(agent.said() for agent in agents))]


def has_rank_0(agent):
    return "begin rank=0 " in agent.said()


def elastic(checks, muster, scratch):
    stop = os.path.join(scratch, "stop")
    with Muster(path=muster) as server:
        command = launcher(muster, "muster", "127.0.0.1:%d" % server.port, "1:2",
                           "--max_restarts", "3", "--rdzv_conf", "is_host=0")
        command += ["--steps", "100000", "--pause", "0.02", "--until", stop, "--checkpoint",
                    os.path.join(scratch, "checkpoint")]
        agents = [Agent(command, scratch) for _ in range(2)]
        try:
            wait_until(lambda: len(steps_in(agents, 4)) > 5, "steps of four workers", PATIENCE)
            victim = agents[0] if has_rank_0(agents[0]) else agents[1]
            survivor = agents[1 - agents.index(victim)]
            victim.kill()
            reached = max(steps_in(agents, 4))
            wait_until(lambda: len(steps_in([survivor], 2)) > 5, "steps without the dead agent",
                       PATIENCE)
            checks.ok(steps_in([survivor], 2)[0] >= reached,
                      "an agent is killed: the other one's workers go on from the checkpoint",
                      (reached, steps_in([survivor], 2)[0]))
            newcomer = Agent(command, scratch)
            agents.append(newcomer)
            seen = len(steps_in([survivor, newcomer], 4))
            wait_until(lambda: len(steps_in([survivor, newcomer], 4)) > seen + 5,
                       "steps with the new agent", PATIENCE)
            checks.ok(max(steps_in([survivor, newcomer], 4)) > max(steps_in([survivor], 2)),
                      "a new agent is taken in, and training goes on")
            open(stop, "w").close()
            finish(checks, [survivor, newcomer], "after all that")
            found = ends([survivor, newcomer])
            checks.equal([end[:2] for end in found], [(rank, 4) for rank in range(4)],
                         "four workers end in one world")
            checks.ok(len({end[2:] for end in found}) == 1, "at one step, with one loss", found)
        except AssertionError as error:
            checks.ok(False, str(error), "\n".join(agent.said()[-3000:] for agent in agents))
        finally:
            for agent in agents:
                agent.kill()


def main():
    checks = Checks()
    muster = muster_path()
    with Scratch() as scratch:
        theirs = train(checks, muster, "torchrun", scratch)
        ours = train(checks, muster, "muster", scratch)
        checks.equal(ours, theirs, "the same loss under both, to the last digit")
        elastic(checks, muster, scratch)
    checks.done()


if __name__ == "__main__":
    main()
