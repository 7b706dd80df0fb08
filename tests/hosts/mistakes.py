#!/usr/bin/python3
"""What a user reads after a mistake: on two hosts with real addresses, each mistake of the table below
is made, and the words that matter, the exit code and the time until the words came are printed. A
mistake that the others may still put right (the host is not up yet) ends nothing: its code is "waits".
Nodes that were told to keep trying outlive all of it, and run when the mistake is put right.

usage: mistakes.py path/to/muster [--only=TEXT]
"""
import os
import time

from rig import Checks, Rig, muster_path, option, wait_until

MUSTER = muster_path()
PYTHON = "/usr/bin/python3"
WAITS = "waits"
# No line that matters comes later than after 3 s on a machine that has time; here is a test of words.
SILENT_S = 3
PATIENCE_S = 60
AT_ONCE = 10  # so many mistakes are made at a time

checks = Checks()

SCRIPTS = {
    "good.py": "pass\n",
    "loud.py": "for i in range(20000):\n    print('0123456789', flush=True)\n",
    "syntax.py": "import os\nfor x in range(3)\n    print(x)\n",
    "imports.py": "import no_such_package_at_all\n",
    "eats.py": "import time\nheld = b'x' * (600 << 20)\ntime.sleep(60)\n",
    "raises.py": "raise RuntimeError('the loss is NaN')\n",
    "silent.py": "import socket, time\ns = socket.create_server(('0.0.0.0', 29700))\nwhile True:\n"
                 "    time.sleep(1)\n",
}


class Mistake:
    """argv after `muster`; at: the number of the host, of which 2 has a name server that is dead; words: what must be read, a tuple for either of several;
    last: what must be read besides, at the end; code: the exit code, or WAITS; more: options of
    Host.start()."""

    def __init__(self, name, words, code, *argv, at=1, last=(), patience=PATIENCE_S, **more):
        self.name, self.words, self.code, self.argv, self.at = name, words, code, argv, at
        self.last, self.patience, self.more = last, patience, more
        self.process = self.told_s = None
        self.said = ""

    def start(self, rig):
        self.began = time.monotonic()
        self.process = rig.hosts[self.at].start(MUSTER, *self.argv, **self.more)

    def lacks(self, words):
        self.said = self.process.output()
        return [word for word in words
                if not any(w in self.said for w in (word if isinstance(word, tuple) else (word,)))]

    def look(self):
        """Returns whether there is nothing more to wait for."""
        past = time.monotonic() - self.began
        ended = not self.process.alive()
        if self.told_s is None and not self.lacks(self.words):
            self.told_s = past
        done = ended if self.code != WAITS else self.told_s is not None or ended
        return done or past > self.patience

    def judge(self):
        got = WAITS if self.process.alive() else self.process.popen.returncode
        self.process.kill()
        lacks = self.lacks([*self.words, *self.last])
        checks.ok(not lacks and got == self.code, self.name,
                  "it does not say %r, or its code is not %s but %s:\n%s" % (
                      lacks, self.code, got, self.said))

    def row(self):
        lines = [line for line in self.said.splitlines() if any(w in line for word in self.words[:1]
                 for w in (word if isinstance(word, tuple) else (word,)))]
        return "%-34s %7s %5s  %s" % (
            self.name, "%.1f s" % self.told_s if self.told_s is not None else "-", self.code,
            lines[0].split("muster: ", 1)[-1][:300] if lines else "")


def run(*options, nnodes="2", endpoint="node0:29500", token="good.token", script="good.py"):
    """The words of `muster run` for a node of a job on two hosts."""
    words = ["run", "--nnodes", nnodes, "--rdzv-conf", "join_timeout=600"]
    words += ["--rdzv-endpoint", endpoint] if endpoint else []
    words += ["--token-file", token] if token else []
    return [*words, *options, script]


def alone(*options, script="good.py"):
    return ["run", "--standalone", *options, script]


def tls(directory, host):
    return ["--tls-ca", directory + "/ca.pem", "--tls-cert", "%s/%s.pem" % (directory, host),
            "--tls-key", "%s/%s.key" % (directory, host)]


def of_places():
    """Whom the node dials, and what is there."""
    unknown = ["cannot connect to nosuch-host:29400: the host name is unknown"]
    for_good = {"last": ["asked for 60 s"], "patience": 80}
    yield Mistake("wrong host name", unknown, 4, *run("--rdzv-id", "m1", endpoint="nosuch-host:29400"),
                  **for_good)
    yield Mistake("wrong host name, --keep-trying", unknown, WAITS,
                  *run("--rdzv-id", "m2", "--keep-trying", endpoint="nosuch-host:29400"))
    yield Mistake("wrong host name, c10d", unknown, 4, *run(
        "--rdzv-backend", "c10d", endpoint="nosuch-host:29400"), **for_good)
    yield Mistake("wrong host name, static", unknown, 4, "run", "--insecure", "--nnodes", "2",
                  "--node-rank", "1", "--master-addr", "nosuch-host", "--master-port", "29400",
                  "good.py", **for_good)
    yield Mistake("wrong port", ["cannot connect to node0:29999: Connection refused",
                                 "muster doctor node0:29999", "s left"], WAITS,
                  *run("--rdzv-id", "m3", endpoint="node0:29999"))
    yield Mistake("no server, static", ["cannot connect to node0:29998: Connection refused"], WAITS,
                  "run", "--insecure", "--nnodes", "2", "--node-rank", "1", "--master-addr", "node0",
                  "--master-port", "29998", "good.py")
    yield Mistake("no server, c10d", ["cannot connect to node0:29997: Connection refused",
                                      "muster doctor node0:29997"], WAITS,
                  *run("--rdzv-backend", "c10d", endpoint="node0:29997"))
    yield Mistake("wrong host name, etcd-v3", ["cannot connect to http://nosuch-host:2379"], 4, *run(
        "--rdzv-backend", "etcd-v3", endpoint="nosuch-host:2379", token=None), patience=80)
    for backend in ("etcd", "etcd-v2", "etcd-v3"):
        yield Mistake("no etcd, " + backend, [
            "cannot connect to http://node0:2379", "muster doctor etcd etcd://node0:2379"], WAITS,
            "run", "--nnodes", "2", "--rdzv-backend", backend, "--rdzv-endpoint", "node0:2379", "good.py")
    yield Mistake("name server that is dead", ["looking up the name in --rdzv-endpoint takes long"], WAITS,
                  *run(endpoint="slow-host:29400"), at=2)
    yield Mistake("unroutable address", ["cannot connect to 203.0.113.7:29400: Network is unreachable"],
                  WAITS, *run(endpoint="203.0.113.7:29400"))
    yield Mistake("firewall that drops", ["10.78.0.99:29400 does not answer", "firewall"], WAITS,
                  *run(endpoint="10.78.0.99:29400"))
    yield Mistake("another kind of server", [
        "node0:29700: it takes the connection, but does not answer", "--rdzv-backend c10d"], WAITS,
        *run(endpoint="node0:29700", token=None))
    yield Mistake("no endpoint", ["--nnodes 2 needs the address where the nodes meet",
                                  "muster run --nnodes 2 --rdzv-endpoint node1:29400"], 1,
                  *run(endpoint=None))
    yield Mistake("endpoint with a typo", ["node0:294000", "between 0 and 65535"], 1,
                  *run(endpoint="node0:294000"))
    yield Mistake("kv, wrong port", ["server=node0:29999 why=\"Connection refused\""], 4, "kv", "--store",
                  "tcp://node0:29999", "get", "key", last=["cannot connect to node0:29999"])
    yield Mistake("kv, wrong host name", ["server=nosuch-host:29500 why=\"the host name is unknown\""], 4,
                  "kv", "--store", "tcp://nosuch-host:29500", "get", "key")
    yield Mistake("rdzv status, firewall that drops", ["server=10.78.0.99:29400", "does not answer"], 4,
                  "rdzv", "status", "--rdzv-endpoint", "10.78.0.99:29400")


def of_credentials():
    yield Mistake("wrong token", ["cannot connect to node0:29500", "token"], 4, *run(token="wrong.token"))
    yield Mistake("wrong token, --keep-trying", ["cannot connect to node0:29500", "trying again"], WAITS,
                  *run("--keep-trying", token="wrong.token"))
    yield Mistake("wrong token, c10d", ["cannot connect to node0:29500", "token"], 4,
                  *run("--rdzv-backend", "c10d", token="wrong.token"))
    yield Mistake("wrong token, the server's log", ["LOCK-REFUSED"], WAITS, "serve", "--listen",
                  "node0:29501", "--token-file", "good.token", at=0)
    yield Mistake("wrong token, kv", ["cannot connect to node0:29501", "token"], 4, "kv", "--store",
                  "tcp://node0:29501", "--token-file", "wrong.token", "get", "key")
    yield Mistake("no token", ["it wants the job's credential: --token-file FILE"], 4, *run(token=None))
    yield Mistake("no token, and it hosts", ["cannot host at node0:29402", "--token-file"], 1,
                  *run(endpoint="node0:29402", token=None), at=0)
    yield Mistake("no such token file", ["no.token", "No such file"], 1, *run(token="no.token"))
    yield Mistake("token file that others can read", ["loose.token: chmod 600"], 2,
                  *run(token="loose.token"))
    yield Mistake("certificate of another host", ["certificate", "node0:29502"], 4,
                  *run(*tls("odd", "node1"), endpoint="node0:29502", token=None))
    yield Mistake("certificate that expired", ["certificate has expired: that of node0"], 4, *run(
        *tls("old", "node1"), endpoint="node0:29503", token=None), clock=True)


def of_jobs():
    """What the nodes of a job have to agree on."""
    yield Mistake("one node of two comes", ["1 of 2 nodes are here: node1"], 3, "run",
                  "--token-file", "good.token", "--nnodes", "2", "--rdzv-id", "j1", "--rdzv-conf",
                  "join_timeout=5", "--rdzv-endpoint", "node0:29500", "good.py",
                  last=["timed out after 5 s"])
    yield Mistake("one node of two comes, c10d", ["1 of 2 nodes are here: \"node1"], 3, "run",
                  "--token-file", "good.token", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id",
                  "j2", "--rdzv-conf", "join_timeout=5", "--rdzv-endpoint", "node0:29500", "good.py",
                  last=["timed out after 5 s: 1 of 2 nodes joined"])
    yield Mistake("one node of two comes, static", ["1 of 2 nodes are here"], 3,
                  "run", "--insecure", "--nnodes", "2", "--node-rank", "0", "--master-addr", "node0",
                  "--master-port", "29600", "--rdzv-conf", "timeout=5", "good.py", at=0,
                  last=["timed out after 5 s: 1 of 2 nodes"])
    yield Mistake("wrong id", ["the run \"job-a\" also waits for nodes", "--rdzv-id"], WAITS,
                  *run("--rdzv-id", "job-b"))
    yield Mistake("mismatched --nnodes", ["--nnodes 2:2, and this node gives 3:3"], 1, *run("--rdzv-id", "job-a", nnodes="3"))
    yield Mistake("min > max", ["--nnodes 4:2", "at most the maximum"], 1, *run(nnodes="4:2"))
    yield Mistake("unknown backend", ["there is no rendezvous backend \"gossip\"", "c10d"], 1,
                  *run("--rdzv-backend", "gossip"))
    yield Mistake("backend with a typo", ["there is no rendezvous backend \"c10\"", "c10d"], 1,
                  *run("--rdzv-backend", "c10"))
    yield Mistake("unknown option", ["--rdzv-endpont"], 2, "run", "--rdzv-endpont", "node0:29500",
                  "good.py")
    yield Mistake("no script", ["the script to run is missing"], 2, "run", "--nnodes", "1")
    yield Mistake("busy port", ["node0:29500", ("in use", "is taken")], 6, "serve", "--listen",
                  "node0:29500", "--token-file", "good.token", at=0)
    yield Mistake("busy port, is_host", ["node0:29500 cannot be bound"], 1,
                  *run("--rdzv-conf", "is_host=1"), at=0)


def of_scripts():
    """What is wrong with the workers."""
    yield Mistake("script that is not there", ["nowhere.py", "No such file"], 1,
                  *alone(script="nowhere.py"))
    yield Mistake("module that is not there", ["No module named no_such_module"], 1,
                  *alone("-m", script="no_such_module"))
    yield Mistake("interpreter that is not there", ["/nowhere/python3", "No such file"], 1, *alone(),
                  env={"PYTHON_EXEC": "/nowhere/python3"})
    yield Mistake("syntax error", ["syntax.py\", line 2", "SyntaxError"], 1, *alone(script="syntax.py"))
    yield Mistake("import error", ["ModuleNotFoundError", "no_such_package_at_all"], 1,
                  *alone(script="imports.py"))
    yield Mistake("exception", ["the loss is NaN"], 1, *alone(script="raises.py"))
    yield Mistake("out of memory", ["out of memory: the kernel killed it", "300 MiB"], 1, *alone(script="eats.py"),
                  memory=300 << 20)
    yield Mistake("full disk", ["No space left on device"], 1,
                  *alone("--log-dir", "full", "--redirects", "1", script="loud.py"))
    yield Mistake("full disk, standard error as well", ["the disk of the log files is full"], 1,
                  *alone("--log-dir", "full", "--redirects", "3", script="loud.py"))
    yield Mistake("full disk, tee", ["stdout.log: No space left on device"], 0,
                  *alone("--log-dir", "full", "--tee", "3", script="loud.py"))


def prepare(rig):
    """Tokens, certificates, scripts, and what is served on node0."""
    a, b, c = rig.hosts
    for host in rig.hosts:
        for name, text in SCRIPTS.items():
            with open(os.path.join(host.path, name), "w") as file:
                file.write(text)
    def make(*argv):
        a.must_run(MUSTER, "keygen", *argv)
    make("token", "good.token")
    make("token", "wrong.token")
    make("tls", "odd", "--host", "node1")
    make("tls", "old", "--host", "node0,node1", "--days", "2")
    a.must_run("sh", "-ec", "cp good.token loose.token; chmod 644 loose.token; "
               "cp odd/node1.pem odd/node0.pem; cp odd/node1.key odd/node0.key; "
               "cp -rp *.token odd old ../node1/; cp -p *.token ../node2/")
    for host in (a, b):
        host.must_run("sh", "-ec", "mkdir full; mount -t tmpfs -o size=64k none full; "
                      "head -c 100k /dev/zero >full/filler || true")
    for host in (b, c):
        host.must_run("ip", "neigh", "add", "10.78.0.99", "lladdr", "02:00:00:00:00:99", "dev", "eth0")
    c.must_run("sh", "-ec", "echo nameserver 10.78.0.99 >resolv.conf; "
               "mount --bind resolv.conf /etc/resolv.conf")
    b.clock.advance(days=3)
    for port, lock in ((29500, ["--token-file", "good.token"]), (29502, tls("odd", "node0")),
                       (29503, tls("old", "node0"))):
        a.start(MUSTER, "serve", "--listen", "node0:%d" % port, *lock).says("serving on")
    a.start(MUSTER, *run("--rdzv-id", "job-a", "--rdzv-conf", "join_timeout=600"))
    a.start(PYTHON, "silent.py")


def make_them(mistakes, rig):
    """All of them, so many at a time."""
    waiting, under_way = list(mistakes), []
    while waiting or under_way:
        while waiting and len(under_way) < AT_ONCE:
            under_way.append(waiting.pop(0))
            under_way[-1].start(rig)
        for mistake in [m for m in under_way if m.look()]:
            under_way.remove(mistake)
            mistake.judge()
        time.sleep(0.02)


def start_patient(rig):
    """Nodes that were told to keep trying, and whose mistakes are put right only in the end."""
    def job(name, *options):
        return rig.hosts[1].start(MUSTER, "run", "--keep-trying", "--rdzv-id", name, *options, "good.py")

    with open(os.path.join(rig.hosts[1].path, "later.token"), "wb") as file, \
            open(os.path.join(rig.hosts[1].path, "wrong.token"), "rb") as wrong:
        os.fchmod(file.fileno(), 0o600)
        file.write(wrong.read())
    token = ["--token-file", "good.token"]
    return [
        ("a name that comes up later", job("p1", "--rdzv-endpoint", "late-host:29500", *token)),
        ("a name that comes up later, c10d", job("p2", "--rdzv-endpoint", "late-host:29500", *token,
                                                 "--rdzv-backend", "c10d")),
        ("a token that is replaced", job("p3", "--rdzv-endpoint", "node0:29500", "--token-file",
                                         "later.token")),
    ]


def put_right(rig, patient):
    for name, process in patient:
        checks.ok(process.alive(), name + ": it is still waited for", process.output())
    with open(os.path.join(rig.path, "hosts"), "a") as file:
        file.write("10.78.0.1 late-host\n")
    path = rig.hosts[1].path
    with open(os.path.join(path, "good.token"), "rb") as good, \
            open(os.path.join(path, "later.token"), "wb") as later:
        later.write(good.read())
    for name, process in patient:
        checks.ok(process.wait() == 0, name + ": then the job runs", process.output())


def host_that_dies(rig):
    """Nodes that wait when the host of the rendezvous goes do not go on to count who was there."""
    for port, backend in ((29600, "muster"), (29601, "c10d")):
        words = run("--rdzv-backend", backend, nnodes="3", endpoint="node0:%d" % port)
        host, node = (rig.hosts[i].start(MUSTER, *words) for i in (0, 1))
        node.says("2 of 3 nodes are here")
        host.kill()
        before = len(node.output())
        try:
            wait_until(lambda: "Connection refused; `muster doctor" in node.output()[before:],
                       "a line that says why it waits")
            said = True
        except AssertionError:
            said = False
        checks.ok(said and "nodes are here" not in node.output()[before:],
                  "a host that dies while nodes wait, " + backend, node.output())
        node.kill()


def nodes_that_differ(rig):
    """With c10d, the state holds no numbers of nodes: who has as many as it wants can only guess."""
    nodes = []
    for i, nnodes in ((0, "2"), (1, "3")):
        nodes.append(rig.hosts[i].start(MUSTER, *run("--rdzv-backend", "c10d", nnodes=nnodes,
                                                     endpoint="node0:29602")))
        nodes[-1].says("%s nodes are here" % ("1 of 2" if i == 0 else "2 of 3"))
    nodes[0].says("check that all nodes have the same --nnodes", 30)
    checks.ok(True, "mismatched --nnodes, c10d")
    for node in nodes:
        node.kill()


def main():
    only = option("only", "")
    table = [m for part in (of_places, of_credentials, of_jobs, of_scripts) for m in part()
             if only in m.name]
    with Rig(3) as rig:
        prepare(rig)
        patient = start_patient(rig) if not only else []
        make_them(table, rig)
        put_right(rig, patient)
        if not only or "host that dies" in only:
            host_that_dies(rig)
        if not only or "mismatched" in only:
            nodes_that_differ(rig)
    print("\n%-34s %7s %5s  %s" % ("mistake", "after", "code", "what the user reads"))
    for mistake in table:
        print(mistake.row())
    late = [m for m in table if m.told_s is not None and m.told_s > SILENT_S]
    print("\n%d mistakes; all words came within %d s but for: %s" % (
        len(table), SILENT_S, ", ".join("%s (%.1f s)" % (m.name, m.told_s) for m in late) or "none"))
    checks.done()


if __name__ == "__main__":
    main()
