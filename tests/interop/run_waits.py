#!/usr/bin/python3
"""What `muster run` says while it waits for a round: within seconds, why it waits, and again as long as it does.

usage: run_waits.py path/to/muster [--only=TEXT]
"""
import subprocess

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
            agents["c10d"].wait_for(checks, 'no round of "waits" has formed yet',
                                    "PyTorch's rendezvous does not wait in silence either")
            agents["too few"].wait_for(checks, "still waiting after 13 s", "and it is said again")
        finally:
            for agent in agents.values():
                agent.end()


def main():
    checks = Checks()
    checks.run_tests(globals(), checks, muster_path())
    checks.done()


if __name__ == "__main__":
    main()
