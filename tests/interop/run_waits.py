#!/usr/bin/python3
"""What `muster run` says while it waits for a round: within seconds, why it waits, and again as long as it does.

usage: run_waits.py path/to/muster [--only=TEXT]
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios

from lib import Checks, Muster, Scratch, die_with_parent, free_port, muster_path, wait_until

# As long as the longest time in which it may say nothing, and some more for a loaded machine.
PATIENCE = 30


class Agent:
    def __init__(self, directory, muster, name, *options):
        self.log = open("%s/%s" % (directory, name), "w+")
        self.process = subprocess.Popen([muster, "run", "--rdzv-id=waits", *options, "--no-python", "true"],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        preexec_fn=die_with_parent)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def wait_for(self, checks, text, what):
        try:
            wait_until(lambda: text in self.said() or self.process.poll() is not None, what, PATIENCE)
        except AssertionError:
            pass
        return checks.ok(text in self.said() and self.process.poll() is None, what, self.said())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class OnTerminal(Agent):
    """An agent whose standard error is a terminal of 90 columns."""

    def __init__(self, directory, muster, name, *options):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 90, 0, 0))
        self.process = subprocess.Popen([muster, "run", *options, "--no-python", "true"],
                                        stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                                        preexec_fn=die_with_parent, env=dict(os.environ, TERM="xterm"))
        os.close(slave)
        self.log = open("%s/%s" % (directory, name), "w+")
        self.text = ""

    def shown(self, checks, text):
        def said():
            while select.select([self.master], [], [], 0)[0]:
                self.text += os.read(self.master, 65536).decode(errors="replace")
            return text in self.text

        try:
            wait_until(said, text, PATIENCE)
        except AssertionError:
            checks.ok(False, text, self.text)
        return self.text

    def end(self):
        super().end()
        os.close(self.master)


def test_a_silent_server_is_waited_for(checks, muster):
    """It may be stopped, or busy: that it does not answer is said, and when it does, the join goes on."""
    with Scratch() as directory, Muster(path=muster) as server:
        options = ["--nnodes=2", "--detect=0.6", "--rdzv-endpoint=127.0.0.1:%d" % server.port]
        server.process.send_signal(signal.SIGSTOP)
        agents = [Agent(directory, muster, name, *options) for name in ("a", "b")]
        try:
            for agent in agents:
                agent.wait_for(checks, "takes the connection, but does not answer", "silence is said")
                agent.wait_for(checks, "still waiting after 12 s", "and not taken for another server")
            server.process.send_signal(signal.SIGCONT)
            for agent in agents:
                checks.equal(agent.process.wait(PATIENCE), 0, "the join goes on when the server wakes")
                checks.ok("succeeded after " in agent.said(), "and the end says how long it took",
                          agent.said())
                checks.ok(all(re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d\d\d muster: ", line)
                              for line in agent.said().splitlines()), "each line has the time",
                          agent.said())
        finally:
            server.process.send_signal(signal.SIGCONT)
            for agent in agents:
                agent.end()


def test_waits(checks, muster):
    port = free_port()
    with Scratch() as directory, Muster(path=muster) as server:
        here = "127.0.0.1:%d" % server.port
        agents = {
            "nobody there": Agent(directory, muster, "a", "--nnodes=2", "--rdzv-conf=is_host=false",
                                  "--rdzv-endpoint=127.0.0.1:%d" % port),
            "unknown name": Agent(directory, muster, "b", "--nnodes=2",
                                  "--rdzv-endpoint=nosuch.invalid:%d" % port),
            "too few": Agent(directory, muster, "c", "--nnodes=2:3", "--rdzv-endpoint=" + here,
                             "--rdzv-conf=name=this-one"),
            "c10d": Agent(directory, muster, "d", "--nnodes=2", "--rdzv-backend=c10d",
                          "--rdzv-endpoint=" + here),
            "static": Agent(directory, muster, "e", "--nnodes=2", "--node-rank=0",
                            "--master-addr=127.0.0.1", "--master-port=%d" % free_port()),
            "terminal": OnTerminal(directory, muster, "f", "--nnodes=3", "--rdzv-conf=name=there",
                                   "--rdzv-id=terminal", "--rdzv-endpoint=" + here),
        }
        try:
            agents["nobody there"].wait_for(checks, "connecting to 127.0.0.1:%d" % port,
                                            "whom it dials is said at once")
            agents["nobody there"].wait_for(checks, "cannot connect to 127.0.0.1:%d: Connection refused"
                                            % port, "a host that is gone is named")
            agents["nobody there"].wait_for(checks, "muster doctor 127.0.0.1:%d" % port, "with what to try")
            agents["unknown name"].wait_for(checks, "nosuch.invalid:%d: the host name is unknown" % port,
                                            "a name that nobody knows is named")
            agents["too few"].wait_for(checks, "1 of at least 2 nodes are here: this-one",
                                       "nodes that are here are counted and named")
            agents["c10d"].wait_for(checks, "1 of 2 nodes are here: ",
                                    "PyTorch's rendezvous does not wait in silence either")
            agents["static"].wait_for(checks, "1 of 2 nodes are here", "nor does the static one")
            agents["too few"].wait_for(checks, "still waiting after 12 s, 58", "and it is said again")
            shown = agents["terminal"].shown(checks, "still waiting after 22 s")
            first, _, rest = shown.partition("still waiting after 12 s")
            checks.ok("muster doctor " + here in first, "on a terminal, a long line is whole once", shown)
            checks.ok("\r\x1b[K" in rest, "then it is rewritten in place", shown)
            checks.ok(all(len(line) < 90 for line in ("still waiting after 12 s" + rest)
                          .replace("\x1b[K", "").splitlines()), "and fits into it", shown)
        finally:
            for agent in agents.values():
                agent.end()


def main():
    checks = Checks()
    checks.run_tests(globals(), checks, muster_path())
    checks.done()


if __name__ == "__main__":
    main()
