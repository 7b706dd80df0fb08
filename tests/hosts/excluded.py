#!/usr/bin/python3
"""Nodes that are kept out of a job: one that fails too often, one that somebody names, and one whose
own check fails. Three hosts, real addresses, a token.

    excluded.py [MUSTER] [--only=TEXT]
"""
import json
import os
import re
import signal
import time

from drill import make_token
from rig import Checks, Rig, muster_path, wait_until

checks = Checks()
MUSTER = muster_path()
# A worker says in which world it runs, and fails as soon as it is told to.
WORKER = ('echo "$WORLD_SIZE" >"$0/world.$HOSTNAME"; '
          'while :; do [ -e "$0/done" ] && exit 0; '
          '[ -e "$0/fail.$HOSTNAME" ] && { rm "$0/fail.$HOSTNAME"; exit 3; }; sleep 0.05; done')


class Job:
    def __init__(self, rig, nnodes, *options, only=(), hosts=None):
        self.rig = rig
        self.folder = os.path.join(rig.path, "job")
        os.makedirs(self.folder)
        self.token = make_token(rig)
        self.options = options
        self.nnodes = nnodes
        self.only = dict(only)  # options for one host
        self.agents = {host.name: self.start(host) for host in hosts or rig.hosts}

    def start(self, host):
        return host.start(
            MUSTER, "run", "--nnodes", self.nnodes, "--max-restarts", "20", "--rdzv-endpoint",
            "node0:29400", "--rdzv-id", "job", *self.options, *self.only.get(host.name, ()),
            "--no-python", *self.token[host.name], "sh", "-c", WORKER, self.folder,
            env={"HOSTNAME": host.name})

    def rdzv(self, *words, endpoint="node0:29400"):
        host = self.rig.hosts[2]
        return host.run(MUSTER, "rdzv", *words, "--rdzv-endpoint", endpoint, "--rdzv-id", "job",
                        *self.token[host.name])

    def status(self):
        code, out, err = self.rdzv("status", "--json")
        assert code == 0, out + err
        return json.loads(out)

    def await_world(self, size, names, why):
        """Checks that workers run in a world of that size on just these hosts."""
        def come():
            code, out, _ = self.rdzv("status", "--json")
            if code != 0:
                return False  # There is no such run yet.
            status = json.loads(out)
            running = sorted(member["name"].split("_")[0] for member in status["members"]
                             if member["place"] == "running")
            worlds = [self.world(name) for name in names]
            return running == sorted(names) and worlds == [size] * len(names)

        try:
            good = wait_until(come, why, 40, 0.05)
        except AssertionError:
            good = False
        return checks.ok(good, why, "%s | %s" % (self.status(), self.words()))

    def host(self):
        """Which of the endpoints hosts: mostly the first, but the others agree without one that
        comes late. The last node is no endpoint, so it says so."""
        last = self.agents[self.rig.hosts[-1].name].output()
        return re.search(r"(\S+) hosts the rendezvous \(term 1\)", last)[1]

    def world(self, name):
        try:
            with open(os.path.join(self.folder, "world." + name)) as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    def fail(self, name):
        """Its worker fails; returns when it has."""
        path = os.path.join(self.folder, "fail." + name)
        open(path, "w").close()
        wait_until(lambda: not os.path.exists(path), "the failure of " + name, 20, 0.02)

    def words(self):
        return " | ".join("%s: %s" % (name, agent.output().strip()[-400:])
                          for name, agent in self.agents.items())

    def finish(self, what):
        open(os.path.join(self.folder, "done"), "w").close()
        try:
            wait_until(lambda: not any(agent.alive() for agent in self.agents.values()), "the end",
                       60)
        except AssertionError:
            pass
        codes = {name: agent.popen.poll() for name, agent in self.agents.items()}
        checks.equal(codes, {name: 0 for name in codes}, what + ": the job ends well")
        if any(code != 0 for code in codes.values()):
            checks.note(self.words())


ALL = ["node0", "node1", "node2"]


def test_node_that_fails_three_times_is_kept_out():
    """The job goes on without it, and it comes back when its time is over."""
    with Rig(3) as rig:
        job = Job(rig, "2:3", "--exclude-after", "3/10m", "--exclude-for", "8s")
        if not job.await_world(3, ALL, "three train"):
            return
        for _ in range(2):
            job.fail("node1")
            job.await_world(3, ALL, "three train again")
        began = time.monotonic()
        job.fail("node1")
        job.await_world(2, ["node0", "node2"], "the third failure is one too many")
        checks.ok(job.agents["node1"].alive(), "its agent stays", job.words())
        job.agents["node1"].says("this node is excluded from the run", 20)
        checks.ok("3 times within 600 s" in job.agents["node1"].output(), "it says why",
                  job.words())
        listed = job.status()["exclusions"]
        checks.equal([e["node"].split("_")[0] for e in listed], ["node1"], "status lists it")
        code, out, err = job.rdzv("status")
        checks.ok("excluded for another" in out and "3 times within 600 s" in out,
                  "status says it in words", out)
        # A new agent on the same machine has another name, and is not let in either.
        job.agents["node1"].stop()
        job.agents["node1"] = job.start(rig.hosts[1])
        job.agents["node1"].says("this node is excluded from the run", 20)
        job.await_world(3, ALL, "it comes back when its time is over")
        checks.ok(time.monotonic() - began >= 8, "not before")
        checks.note("back after %.1f s" % (time.monotonic() - began))
        job.finish("after an exclusion")


def test_exclude_and_include_by_hand():
    with Rig(3) as rig:
        job = Job(rig, "2:3")
        if not job.await_world(3, ALL, "three train"):
            return
        code, out, err = job.rdzv("exclude", "node2", "--reason", "its fan is loud")
        checks.equal((code, out, err), (0, "", ""), "exclude")
        job.await_world(2, ["node0", "node1"], "the others go on")
        job.agents["node2"].says("its fan is loud", 20)
        checks.ok(job.agents["node2"].alive(), "its agent waits", job.words())
        checks.equal([e["reason"] for e in job.status()["exclusions"]], ["its fan is loud"],
                     "status has the reason")
        code, out, err = job.rdzv("include", "node7")
        checks.ok(code == 2 and "no node" in err, "include of another", (code, err))
        code, out, err = job.rdzv("include", "node2")
        checks.equal((code, out, err), (0, "", ""), "include")
        job.await_world(3, ALL, "it is back")
        checks.equal(job.status()["exclusions"], [], "nobody is excluded")
        job.rdzv("exclude", "node1", "--for", "1h")
        job.await_world(2, ["node0", "node2"], "the others go on again")
        job.finish("an excluded node ends with the job")


def test_excluded_node_may_end_at_once():
    """--exclude-action exit; and the others, which are too few, say whom they miss."""
    with Rig(3) as rig:
        job = Job(rig, "3", "--rdzv-conf", "join_timeout=5", "--exclude-action", "exit")
        if not job.await_world(3, ALL, "three train"):
            return
        job.rdzv("exclude", "node1", "--reason", "on fire")
        checks.equal(job.agents["node1"].wait(30), 4, "its exit code: it was refused")
        checks.ok("on fire" in job.agents["node1"].output(), "its verdict", job.words())
        for name in ("node0", "node2"):
            checks.equal(job.agents[name].wait(40), 3, "%s: no round in time" % name)
            checks.ok("excluded: node1" in job.agents[name].output(),
                      "%s names the excluded node" % name, job.words())


def test_exclusions_outlive_the_host():
    """Who is excluded, and who has failed how often, is known to the next host, too."""
    with Rig(5) as rig:
        job = Job(rig, "2:5", "--exclude-after", "2/10m", "--rdzv-endpoint",
                  "node0:29400,node1:29400,node2:29400")
        names = ALL + ["node3", "node4"]
        if not job.await_world(5, names, "five train"):
            return
        job.fail("node4")
        job.await_world(5, names, "one failure is let pass")
        job.rdzv("exclude", "node3", "--reason", "its fan is loud")
        four = [name for name in names if name != "node3"]
        job.await_world(4, four, "the others go on")
        host = job.host()
        left = [name for name in ALL if name != host]
        job.agents[host].kill()
        job.agents[left[0]].says("hosts the rendezvous now", 20)
        wait_until(lambda: all(job.world(name) == 3 for name in left + ["node4"]),
                   "three go on with another host", 40)
        job.agents["node3"].says("hosts the rendezvous now", 20)
        job.fail("node4")
        wait_until(lambda: all(job.world(name) == 2 for name in left),
                   "two go on without the node that failed twice", 40)
        job.agents["node4"].says("this node is excluded from the run", 20)
        checks.ok("2 times within 600 s" in job.agents["node4"].output(),
                  "the failure before the loss of the host counts", job.words())
        at = {name: name + ":29400" for name in ALL}
        for endpoint in (at[left[0]], at[left[1]], at[host] + "," + at[left[1]]):
            code, out, err = job.rdzv("status", "--json", endpoint=endpoint)
            excluded = [e["node"].split("_")[0] for e in json.loads(out or "{}").get("exclusions", [])]
            checks.equal((code, sorted(excluded), err), (0, ["node3", "node4"], ""),
                         "status of " + endpoint)
        checks.equal(job.world("node3"), 5, "the node that was excluded before is not let in")
        del job.agents[host]
        job.finish("after the loss of the host")


def test_newcomer_that_hosts_knows_the_run():
    """The first endpoint comes when the host is gone, so it hosts, and has only heard of the run."""
    with Rig(4) as rig:
        endpoints = "node0:29400,node1:29400,node2:29400"
        job = Job(rig, "2:4", "--rdzv-endpoint", endpoints, hosts=rig.hosts[1:])
        three = ["node1", "node2", "node3"]

        def status():
            code, out, _ = job.rdzv("status", "--json", endpoint=endpoints)
            return json.loads(out) if code == 0 else {}

        wait_until(lambda: all(job.world(name) == 3 for name in three), "three train", 40)
        job.fail("node3")
        wait_until(lambda: status().get("restarts_left") == 19, "a restart is spent", 40)
        before = status()
        host = job.host()
        left = [name for name in three if name != host]
        for name in left:
            job.agents[name].signal(signal.SIGSTOP)
        job.agents.pop(host).kill()
        job.agents["node0"] = job.start(rig.hosts[0])
        job.agents["node0"].says("node0:29400", 20)
        for name in left:
            job.agents[name].signal(signal.SIGCONT)
        job.agents["node0"].says("node0 hosts the rendezvous (term 2)", 40)
        wait_until(lambda: status().get("running", 0) >= 2, "they go on", 40)
        after = status()
        checks.equal((after["restarts_left"], after["incarnation"]), (19, before["incarnation"]),
                     "it goes on with the same run")
        # It may have come too late for the first round.
        wait_until(lambda: all(job.world(name) == 3 for name in job.agents), "it trains as well", 40)
        job.finish("with a newcomer that hosts")


def test_check_keeps_a_node_out_until_it_passes():
    with Rig(3) as rig:
        flag = os.path.join(rig.path, "healthy")
        # A line of more than MU_AGENT_CHECK_LINE_MAX bytes is cut.
        check = '[ -e %s ] || { echo looking; head -c 999 /dev/zero | tr "\\0" x; echo; echo "GPU 3 has fallen off the bus"; exit 1; }' % flag
        job = Job(rig, "2:3", only={"node1": ("--check", check)})
        job.await_world(2, ["node0", "node2"], "two train")
        job.agents["node1"].says("kept out by its check: GPU 3 has fallen off the bus", 20)
        checks.ok("[check]: looking" in job.agents["node1"].output(), "its output is shown",
                  job.words())
        lines = job.agents["node1"].output().splitlines()
        checks.equal({line.count("x") for line in lines if line.endswith("xx")}, {240},
                     "a long line is cut")
        open(flag, "w").close()
        job.await_world(3, ALL, "it joins when it passes")
        checks.ok("the check of this node has passed" in job.agents["node1"].output(),
                  "it says so", job.words())
        # Its workers fail, and the check does not pass any more.
        os.unlink(flag)
        said = job.agents["node1"].output().count("kept out by its check")
        job.fail("node1")
        job.await_world(2, ["node0", "node2"], "the others go on without it")
        checks.ok(job.agents["node1"].output().count("kept out by its check") > said,
                  "it was checked again", job.words())
        open(flag, "w").close()
        job.await_world(3, ALL, "it is back")
        job.finish("after checks")


def test_check_that_hangs_is_killed():
    with Rig(2) as rig:
        flag = os.path.join(rig.path, "healthy")
        job = Job(rig, "2", "--check-timeout", "1s",
                  only={"node1": ("--check", "[ -e %s ] || sleep 600" % flag)})
        job.agents["node1"].says("it did not end within 1 s", 20)
        open(flag, "w").close()
        wait_until(lambda: job.world("node1") == 2 and job.world("node0") == 2, "a world of two",
                   40)
        job.finish("after a check that hung")


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
