#!/usr/bin/python3
"""`muster run` on two nodes with a credential: each node is a network namespace with a link between
them, made by this test (it needs root; without, it is skipped).

An unchanged DDP script trains over both, its workers on their own loopback. Meanwhile PyTorch's
plain protocol from the other node is refused at every port that is open, and what goes over the
link is watched: none of the store's keys, no plain greeting. The token is in no argument, no
environment of a worker and no log. Then agents with a wrong token, with none, and with --insecure.

usage: run_sealed.py path/to/muster
"""
import os
import re
import secrets
import subprocess
import sys
import time

import run_ddp
from lib import HERE, MAGIC, SKIP, Checks, Scratch, die_with_parent, muster_path, wait_until

PATIENCE = 120  # importing torch takes seconds when the machine has other things to do
ENDPOINT = 29400
NODES = ["10.213.7.1", "10.213.7.2"]


class Node:
    """A network namespace, held by a process that sleeps in it."""

    def __init__(self, number):
        self.addr = NODES[number]
        self.link = "muster%d" % number
        self.holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 3600"],
                                       stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.holder.stdout.readline()

    def enter(self, *command):
        return ["nsenter", "-t", str(self.holder.pid), "-n"] + list(command)

    def call(self, *command):
        subprocess.run(self.enter(*command), check=True)

    def kill(self):
        self.holder.kill()
        self.holder.wait()


class Network:
    def __enter__(self):
        self.nodes = [Node(0), Node(1)]
        a, b = self.nodes
        a.call("ip", "link", "add", a.link, "type", "veth", "peer", "name", b.link, "netns",
               str(b.holder.pid))
        for node in self.nodes:
            node.call("ip", "addr", "add", node.addr + "/24", "dev", node.link)
            node.call("ip", "link", "set", node.link, "up")
            node.call("ip", "link", "set", "lo", "up")
        return self.nodes

    def __exit__(self, *_):
        for node in self.nodes:
            node.kill()


class Ears:
    """All that goes over the link, in a process of its own in a node."""

    PROGRAM = """
import socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
s.bind((sys.argv[1], 0))
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
print(flush=True)
with open(sys.argv[2], "wb", 0) as file:
    while True:
        file.write(s.recv(65536))
"""

    def __init__(self, node, path):
        self.path = path
        self.process = subprocess.Popen(
            node.enter(sys.executable, "-c", self.PROGRAM, node.link, path),
            stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.process.stdout.readline()

    def heard(self):
        self.process.kill()
        self.process.wait()
        with open(self.path, "rb") as file:
            return file.read()


class Agent(run_ddp.Agent):
    """An agent in a node."""

    def __init__(self, node, muster, scratch, *arguments):
        super().__init__(
            node.enter("env", "GLOO_SOCKET_IFNAME=" + node.link, muster, "run", "--nnodes", "2",
                       "--nproc-per-node", "2", "--rdzv-endpoint", "%s:%d" % (NODES[0], ENDPOINT),
                       "--local-addr", node.addr, *arguments), scratch)

    def family(self):
        """The agent and its workers."""
        pids = [self.process.pid]
        for pid in pids:
            try:
                with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
                    pids += [int(word) for word in file.read().split()]
            except FileNotFoundError:
                pass
        return pids


def listeners(agent):
    """Its ports that are open beyond loopback."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % agent.process.pid):
        try:
            inodes.add(os.readlink("/proc/%d/fd/%s" % (agent.process.pid, fd)))
        except FileNotFoundError:
            pass
    ports = set()
    for name in ("tcp", "tcp6"):
        with open("/proc/%d/net/%s" % (agent.process.pid, name)) as file:
            for words in (line.split() for line in file):
                if words[3] == "0A" and "socket:[%s]" % words[9] in inodes and \
                        not words[1].startswith(("0100007F:", "0" * 24 + "01000000:")):
                    ports.add(int(words[1].split(":")[1], 16))
    return sorted(ports)


KNOCK = """
import socket, sys
sys.path.insert(0, sys.argv[3])
from lib import MAGIC, text
for request in (b"\\0" + text("/intruder") + text("1") + b"\\2" + text("/intruder"),  # generation 1
                b"\\0" + MAGIC + b"\\x0d\\1\\2\\3\\4",  # generation 2
                b"\\4" + (0).to_bytes(8, "little")):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
    s.settimeout(10)
    try:
        s.sendall(request)
        got = s.recv(100)
    except ConnectionError:
        got = b""
    except socket.timeout:
        got = b"silence"
    print(got)
"""


def knock(node, host, port):
    """What a stranger at this node is told."""
    return subprocess.run(node.enter(sys.executable, "-c", KNOCK, host, str(port), HERE),
                          stdout=subprocess.PIPE, text=True, timeout=60).stdout.split("\n")[:-1]


def train(checks, nodes, muster, scratch, token):
    token_file = os.path.join(scratch, "job.token")
    stop = os.path.join(scratch, "stop")
    ears = Ears(nodes[1], os.path.join(scratch, "heard"))
    arguments = ["--token-file", token_file, os.path.join(HERE, "ddp_train.py"), "--steps",
                 "100000", "--pause", "0.02", "--until", stop]
    agents = [Agent(node, muster, scratch, *arguments) for node in nodes]
    try:
        wait_until(lambda: sum(agent.said().count("of a world of 4") for agent in agents) > 8,
                   "steps of four workers", PATIENCE)
        look_around(checks, nodes, agents, token)
        open(stop, "w").close()
        run_ddp.finish(checks, agents, "over the link")
        ends = re.findall(r"end rank=(\d+) world=4", "".join(agent.said() for agent in agents))
        checks.equal(sorted(ends), ["0", "1", "2", "3"], "four workers train to the end")
    except AssertionError as error:
        checks.ok(False, str(error), "\n".join(agent.said()[-3000:] for agent in agents))
    finally:
        for agent in agents:
            agent.kill()
    heard = ears.heard()
    checks.ok(len(heard) > 10000, "the link was listened to", len(heard))
    for what, secret in (("the token", token.encode()), ("a plain greeting", b"MUSTER\r\n"),
                         ("a call", b"muster::"), ("a key of the workers", b"default_pg"),
                         ("a key of the agents", b"MASTER_ADDR")):
        checks.ok(secret not in heard, what + " does not go over the link")
    checks.ok(all(token not in agent.said() for agent in agents), "no log has the token")


def look_around(checks, nodes, agents, token):
    """While they train."""
    masters = set()
    for agent in agents:
        family = agent.family()
        checks.ok(len(family) >= 3, "an agent has its workers", family)
        for pid in family:
            for name in ("environ", "cmdline"):
                with open("/proc/%d/%s" % (pid, name), "rb") as file:
                    found = file.read()
                if token.encode() in found:
                    checks.ok(False, "the token is in /proc/%d/%s" % (pid, name))
                masters.update(re.findall(rb"\0(MASTER_ADDR=[^\0]*)", found))
    checks.equal(masters, {b"MASTER_ADDR=127.0.0.1"}, "workers go to their own loopback")
    open_here, open_there = (listeners(agent) for agent in agents)
    checks.ok(ENDPOINT in open_here and len(open_here + open_there) == 3,
              "the endpoint, the place where the second node could host the rendezvous and the "
              "workers' store are open to other nodes, and nothing else",
              (open_here, open_there))
    for node, stranger, ports in ((0, 1, open_here), (1, 0, open_there)):
        for port in ports:
            checks.equal(knock(nodes[stranger], NODES[node], port), ["b''", "b''", "b''"],
                         "a stranger's plain requests get no answer from port %d" % port)
    steps = agents[0].said().count("of a world of 4")
    wait_until(lambda: agents[0].said().count("of a world of 4") > steps + 3,
               "steps after the strangers", PATIENCE)
    checks.ok(True, "and the workers go on")


def refusals(checks, nodes, muster, scratch):
    script = ["--no-python", "/bin/sh", "-c", "echo here $MASTER_ADDR"]
    agent = Agent(nodes[0], muster, scratch, *script)
    [code] = run_ddp.wait_for([agent], 30)
    checks.ok(code not in (0, None) and "--token-file" in agent.said() and
              "--insecure" in agent.said(),
              "without a credential nobody hosts beyond loopback, and is told what to do",
              (code, agent.said()))
    wrong = os.path.join(scratch, "wrong.token")
    write_token(wrong)
    good = Agent(nodes[0], muster, scratch, "--token-file", os.path.join(scratch, "job.token"),
                 *script)
    try:
        for what, arguments in (("a wrong token", ["--token-file", wrong]), ("no token", [])):
            begun = time.monotonic()
            bad = Agent(nodes[1], muster, scratch, *arguments, *script)
            [code] = run_ddp.wait_for([bad], 40)
            checks.ok(code not in (0, None) and time.monotonic() - begun < 30,
                      "an agent with %s is told so, and ends" % what, (code, bad.said()))
            checks.note(bad.said().strip().split("\n")[-1][:200])
    finally:
        good.kill()
    agents = [Agent(node, muster, scratch, "--insecure", *script) for node in nodes]
    for agent in agents:
        [code] = run_ddp.wait_for([agent], 60)
        checks.ok(code == 0 and "here %s" % NODES[0] in agent.said() or
                  "here %s" % NODES[1] in agent.said(),
                  "--insecure: as under torchrun", (code, agent.said()))


def backends(checks, nodes, muster, scratch):
    """Workers of each kind of rendezvous meet in their store, each at its own node's loopback."""
    script = ["--no-python", "/bin/sh", "-c",
              'k="%s kv --store tcp://$MASTER_ADDR:$MASTER_PORT"; $k set at/$RANK $MASTER_ADDR && '
              '$k wait at/0 at/1 at/2 at/3 && $k barrier end 4 && echo met at $MASTER_ADDR' % muster]
    certificates = os.path.join(scratch, "certificates")
    subprocess.run([muster, "keygen", "tls", certificates, "--host", ",".join(NODES)], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    token = ["--token-file", os.path.join(scratch, "job.token")]

    def certificate(number):
        name = os.path.join(certificates, NODES[number])
        return ["--tls-cert", name + ".pem", "--tls-key", name + ".key", "--tls-ca",
                os.path.join(certificates, "ca.pem")]

    for what, more in (("c10d", [token + ["--rdzv-backend", "c10d"]] * 2),
                       ("static", [token + ["--rdzv-backend", "static", "--node-rank", str(i)]
                                   for i in range(2)]),
                       ("certificates", [certificate(i) for i in range(2)])):
        agents = [Agent(node, muster, scratch, *more[i], *script) for i, node in enumerate(nodes)]
        for agent in agents:
            [code] = run_ddp.wait_for([agent], 90)
            checks.ok(code == 0 and agent.said().count("met at 127.0.0.1") == 2,
                      "%s: workers meet through gateways" % what, (code, agent.said()[-2000:]))


def write_token(path):
    token = secrets.token_urlsafe(32)
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(token + "\n")
    return token


def main():
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "ip", "link"], stdout=-3,
                                           stderr=-3).returncode != 0:
        print("skipped: network namespaces need root and ip")
        sys.exit(SKIP)
    checks = Checks()
    muster = muster_path()
    with Scratch() as scratch, Network() as nodes:
        token = write_token(os.path.join(scratch, "job.token"))
        refusals(checks, nodes, muster, scratch)
        backends(checks, nodes, muster, scratch)
        train(checks, nodes, muster, scratch, token)
    checks.done()


main()
