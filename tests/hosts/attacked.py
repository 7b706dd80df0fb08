#!/usr/bin/python3
"""A server with 512 MiB beside strangers who mean it no good: honest clients are answered, a job
that meets there goes on, nothing is killed.

    attacked.py [MUSTER] [--measure] [--only=TEXT]

Without --measure the attacks are small and no time is looked at. With it they are whole, and a
table says how long honest clients wait, alone and attacked:

    sleepers   ask nothing: how late this machine wakes them, which is in all the others
    neighbours on a connection over the server's own loopback, where no network is between
    requests   on a connection that is there
    newcomers  `muster kv get`, from its start to its end, with a handshake
    pages      /healthz of the status page
"""
import base64
import os
import subprocess
import sys

from drill import Job, make_certificates, make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

checks = Checks()
MEASURE = "--measure" in sys.argv
MUSTER = muster_path()
PYTHON = sys.executable
MEMORY = 512 << 20
PARTS = 5
# What is measured goes before whatever else this machine does, as if the hosts were machines.
FIRST = ["nice", "-n", "-10"] if MEASURE else []
SECONDS = 10 if MEASURE else 2


class Scene:
    """node0: the server; node1: the honest; node2: the attacker, with 50 addresses; node3, node4: a
    job whose nodes meet at the server."""

    def __init__(self, rig, certificates):
        self.home, self.honest, self.attacker = rig.hosts[:3]
        self.credential = make_certificates(rig) if certificates else make_token(rig)
        self.server = self.home.start(
            *FIRST, MUSTER, "serve", "--listen", "0.0.0.0:29400", "--allow", "10.78.0.0/24",
            "--http", "127.0.0.1:29401" if certificates else "0.0.0.0:29401",
            *self.credential["node0"], memory=MEMORY)
        self.server.says("29400")
        self.job = Job(checks, rig, rig.hosts[3:], rig.hosts[0], "2", self.credential)
        self.addresses = self.attacker.more_addresses(50)
        self.page = None
        if not certificates:
            token = self.credential["node1"][1]
            password = self.honest.must_run(MUSTER, "keygen", "page", token).strip()
            self.page = "Basic " + base64.b64encode(b"muster:" + password.encode()).decode()

    def attack(self, kind, count):
        """Starts it; the processes. A process may have only so many connections."""
        port = "29401" if kind == "silent" else "29400"
        parts = PARTS if kind in ("halfopen", "ffdhe") else 1
        return [self.attacker.start(
            PYTHON, os.path.join(HERE, "attacker.py"), kind, "node0", port, str(count // parts),
            ",".join(self.addresses[i::parts]), stdin=subprocess.PIPE) for i in range(parts)]

    def measure(self):
        """What the honest see: {what: (p50, p99, max, failures)}."""
        runs = {"requests": ["requests", "node0", "29400", SECONDS, 100],
                "newcomers": ["commands", SECONDS, 10, MUSTER, "kv", "--store", "tcp://node0:29400",
                              *self.credential["node1"], "--timeout", "20s", "--connect",
                              "20s", "get", "honest"]}
        if self.page:
            runs["pages"] = ["page", "http://node0:29401/healthz", self.page, SECONDS, 10]
        runs["sleepers"] = ["nothing", SECONDS, 100]
        runs["neighbours"] = ["requests", "127.0.0.1", "29400", SECONDS, 100]
        hosts = {"neighbours": self.home}
        processes = {what: hosts.get(what, self.honest).start(
            *FIRST, PYTHON, os.path.join(HERE, "honest.py"), *map(str, words))
            for what, words in runs.items()}
        results = {}
        for what, process in processes.items():
            process.wait(SECONDS + 120)
            last = process.output().splitlines()[-1].split()
            assert len(last) == 4, process.output()
            results[what] = tuple(map(float, last))
        return results


ATTACKS = {
    "halfopen": ("half-open handshakes from 50 addresses", 20000, 2000),
    "ffdhe": ("hellos for ffdhe8192", 1000, 60),
    "multiget": ("askers of 48 MiB who read nothing", 40, 40),
    "silent": ("silent connections to the page", 64, 64),
}


def attacked(kind, certificates=False):
    name, whole, some = ATTACKS[kind]
    count = whole if MEASURE else some
    what = "%d %s, %s" % (count, name, "certificates" if certificates else "a token")
    print("   " + what, flush=True)
    # Cables of the kernel's: a wire in user space, which carries one packet after the other, would
    # be what the flood holds up.
    with Rig(5, wire=False) as rig:
        scene = Scene(rig, certificates)
        job = scene.job
        if not job.await_world(2, what + ": a job begins"):
            return
        alone = scene.measure()
        attackers = scene.attack(kind, count)
        wait_until(lambda: scene.attacker.packets_sent() > 50, "the attack")
        during = scene.measure()
        for attacker in attackers:
            attacker.says("begun", 120)
        if scene.server.alive():
            checks.note("server: %.0f MiB at the most" % (scene.server.memory_peak() / (1 << 20)))
        checks.ok(scene.server.alive(), what + ": the server lives", scene.server.output()[-500:])
        for who, (p50, p99, worst, failures) in during.items():
            before = alone[who]
            checks.equal(failures, 0, "%s: %s are answered" % (what, who))
            checks.note("%-10s p50 %8.2f ms %8.2f ms (%5.2fx)   p99 %8.2f ms %8.2f ms (%5.2fx)   "
                        "max %8.2f ms %8.2f ms" % (
                            who, before[0], p50, p50 / before[0], before[1], p99, p99 / before[1],
                            before[2], worst))
        job.await_world(2, what + ": the job goes on")
        checks.equal(job.worlds(), 1, what + ": undisturbed")
        for attacker in attackers:
            attacker.popen.stdin.close()
            attacker.wait(60)
            checks.note("attacker: " + " ".join(attacker.output().split())[-200:])
        job.finish(what)


def test_token():
    for kind in ATTACKS:
        attacked(kind)


def test_certificates():
    for kind in ("halfopen", "ffdhe"):
        attacked(kind, certificates=True)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
