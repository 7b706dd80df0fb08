#!/usr/bin/python3
"""Where the agents of `muster run` listen: at the address that --rdzv-endpoint and --local-addr name, and at
no other of the host's. In a network of its own, with two addresses and nobody else in it.

usage: run_bind.py path/to/muster [--only=TEXT]
"""
import os
import socket
import subprocess

from lib import Checks, Scratch, beyond_loopback, die_with_parent, free_port, muster_path, wait_until

# Reaches the workers' store as a worker of PyTorch's would, without a credential.
WORKER = """
unset MUSTER_TOKEN_FILE
"$1" kv --store "tcp://$MASTER_ADDR:$MASTER_PORT" set k$RANK 1 || exit 1
echo up >>up
while [ ! -e stop ]; do sleep 0.05; done
"""


def listeners():
    """The addresses of all sockets in this network that listen, by port; "*" is every address."""
    found = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with open("/proc/net/" + name) as file:
            for line in list(file)[1:]:
                local, state = line.split()[1], line.split()[3]
                if state != "0A":
                    continue
                host, port = local.split(":")
                words = bytes.fromhex(host)
                raw = b"".join(words[i:i + 4][::-1] for i in range(0, len(words), 4))
                text = "*" if not any(raw) else socket.inet_ntop(family, raw)
                found.setdefault(int(port, 16), set()).add(text)
    return found


def can_connect(host, port):
    try:
        socket.create_connection((host, port), 5).close()
        return True
    except ConnectionRefusedError:
        return False


class Run:
    """Two agents with a worker each that run until told otherwise; `names` is what /etc/hosts says."""

    def __init__(self, directory, muster, options, names=""):
        self.directory = directory
        token = os.path.join(directory, "token")
        subprocess.run([muster, "keygen", "token", token], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(directory, "hosts"), "w") as file:
            file.write("127.0.0.1 localhost\n" + names)
        command = ["unshare", "--mount", "sh", "-c", 'mount --bind hosts /etc/hosts; exec "$@"', "sh",
                   muster, "run", "--token-file", token, "--nnodes=2", "--nproc-per-node=1",
                   "--events=events", "--rdzv-id=bind"]
        self.log = open(os.path.join(directory, "log"), "w+")
        self.agents = [subprocess.Popen(command + said + ["--no-python", "sh", "-c", WORKER, "sh", muster],
                                        cwd=directory, stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=self.log, preexec_fn=die_with_parent)
                       for said in options]

    def __enter__(self):
        wait_until(lambda: any(agent.poll() is not None for agent in self.agents) or
                   self.read("up").count("up") == 2, "the workers run")
        assert self.read("up").count("up") == 2, self.said()
        return self

    def __exit__(self, *_):
        with open(os.path.join(self.directory, "stop"), "w"):
            pass
        if [agent.wait(30) for agent in self.agents] != [0, 0]:
            raise AssertionError(self.said())

    def read(self, name):
        try:
            with open(os.path.join(self.directory, name)) as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def said(self):
        return self.read("log") + self.read("events")


def check_only_at(checks, what, run, port, here, there):
    found = listeners()
    wrong = {number: hosts for number, hosts in found.items() if not hosts <= {here, "127.0.0.1"}}
    checks.equal(wrong, {}, what + ": no listener is at another address")
    checks.ok(can_connect(here, port), what + ": the endpoint can be reached", run.said())
    checks.ok(not can_connect(there, port), what + ": but not at the host's other address")


def test_endpoint_by_number(checks, muster, here, there):
    for backend in ("muster", "c10d"):
        with Scratch() as directory:
            port = free_port()
            options = ["--rdzv-backend=" + backend, "--local-addr=" + here,
                       "--rdzv-endpoint=%s:%d" % (here, port)]
            with Run(directory, muster, [options, options]) as run:
                check_only_at(checks, backend, run, port, here, there)


def test_endpoint_by_name(checks, muster, here, there):
    with Scratch() as directory:
        port = free_port()
        options = ["--rdzv-endpoint=node0:%d" % port, "--local-addr=node0"]
        with Run(directory, muster, [options, options], here + " node0\n") as run:
            check_only_at(checks, "a name", run, port, here, there)


def test_name_that_is_loopback_here(checks, muster, here, there):
    """As Debian has it for a machine's own name: others know it by another address."""
    with Scratch() as directory:
        port = free_port()
        options = ["--rdzv-endpoint=node0:%d" % port, "--local-addr=node0"]
        with Run(directory, muster, [options, options], "127.0.1.1 node0\n") as run:
            checks.ok(can_connect(here, port) and can_connect(there, port),
                      "a name of loopback's: others reach it", run.said())
            checks.ok("all addresses" in run.said(), "a name of loopback's: and it is said why",
                      run.said())


def test_everywhere(checks, muster, here, there):
    with Scratch() as directory:
        port = free_port()
        with Run(directory, muster, [["--rdzv-endpoint=0.0.0.0:%d" % port, "--rdzv-conf=is_host=1",
                                      "--local-addr=" + here],
                                     ["--rdzv-endpoint=%s:%d" % (there, port),
                                      "--rdzv-conf=is_host=0", "--local-addr=" + here]]) as run:
            checks.ok(can_connect(here, port) and can_connect(there, port),
                      "0.0.0.0 with is_host: every address is served", run.said())


def main():
    here, there = beyond_loopback()
    checks = Checks()
    if there is None:
        checks.skip("no network of our own can be made")
        checks.done()
    checks.run_tests(globals(), checks, muster_path(), here, there)
    checks.done()


if __name__ == "__main__":
    main()
