#!/usr/bin/python3
"""Workers that are late: whoever has the address of an earlier round's store can neither read nor
write what a later round keeps, over a connection that it still has or over a new one, also where the
system has few ports and gives them out again soon.

    late.py [MUSTER] [--only=TEXT]
"""
import os
import sys

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

MUSTER = muster_path()
WORKER = os.path.join(HERE, "late_worker.py")
PATIENCE = 60
NODES = 2
ROUNDS = 8
PORTS = (40000, 40023)  # that the system draws from, also those that had connections just now
checks = Checks()


class Job:
    def __init__(self, rig, credential):
        self.hosts = rig.hosts
        self.folder = os.path.join(rig.path, "words")
        os.makedirs(self.folder)
        for host in rig.hosts:
            host.must_run("sh", "-c", "cd /proc/sys/net/ipv4; echo %d %d > ip_local_port_range; "
                          "echo 0 > tcp_max_tw_buckets; echo 1 > tcp_fin_timeout" % PORTS)
        self.agents = [host.start(
            MUSTER, "run", "--nnodes", str(NODES), "--max-restarts", str(ROUNDS),
            "--rdzv-endpoint", "node0:29400", *credential, WORKER, self.folder,
            env={"PYTHON_EXEC": sys.executable}) for host in rig.hosts]

    def tell(self, name):
        open(os.path.join(self.folder, name), "w").close()

    def words(self, name):
        """What a process has said, once it has."""
        path = os.path.join(self.folder, name)
        wait_until(lambda: os.path.exists(path), name, PATIENCE, 0.02)
        with open(path) as file:
            return file.read().split()

    def go_round(self, number):
        """A round begins; on each node somebody takes the address with it, who will be late."""
        places = [self.words("round.%d.%d" % (number, rank)) for rank in range(NODES)]
        for node, (addr, port) in enumerate(places):
            name = "late.%d.%d" % (number, node)
            self.hosts[node].start(sys.executable, WORKER, self.folder, addr, port, name)
            checks.equal(self.words(name + ".first"), [str(number)],
                         "round %d, node %d: the word of the round" % (number, node))
        return places

    def end_round(self, number):
        self.tell("over.%d" % number)
        words = [self.words("word.%d.%d" % (number, rank)) for rank in range(NODES)]
        checks.equal(words, [[str(number)]] * NODES, "round %d: is still its own" % number)
        self.tell("gone.%d" % number)


def check_rounds(credential_of):
    with Rig(NODES) as rig:
        job = Job(rig, credential_of(rig))
        first = int(wait_until(lambda: [name for name in os.listdir(job.folder)
                                        if name.startswith("round.")],
                               "the first round", PATIENCE, 0.02)[0].split(".")[1])
        places = []
        for number in range(first, first + ROUNDS):
            places += job.go_round(number)
            for earlier in range(first, number):
                for node in range(NODES):
                    name = "late.%d.%d" % (earlier, node)
                    if not os.path.exists(os.path.join(job.folder, name + ".go")):
                        job.tell(name + ".go")
                        checks.equal(job.words(name + ".got"), ["None", "None"],
                                     "round %d: who is late from %d, at node %d, gets nothing" %
                                     (number, earlier, node))
            if number == first + ROUNDS - 1:
                job.tell("end")
            job.end_round(number)
        checks.equal([agent.wait(PATIENCE) for agent in job.agents], [0] * NODES, "all end well")
        # By the node at which they are open: with a credential, that is the worker's own.
        stores = [(node % NODES if addr == "127.0.0.1" else addr, port)
                  for node, (addr, port) in enumerate(places)]
        used = set(stores)
        checks.note("stores: %s" % sorted(used, key=str))
        wanted = len(places) if places[0][0] == "127.0.0.1" else ROUNDS
        checks.equal(len(used), wanted, "no two rounds have a port in common")


def test_with_a_token():
    check_rounds(lambda rig: make_token(rig)["node0"])


def test_insecure():
    check_rounds(lambda rig: ["--insecure"])


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
