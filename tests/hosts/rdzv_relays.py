#!/usr/bin/python3
"""A rendezvous by relays, with the job's token: a server, two gateways as relays, and nodes on hosts of their own
that reach the server by these. A relay is killed and another one is stopped for longer than the silence of a lost node, and no
node hears of it; a node that is killed is heard of.

    rdzv_relays.py [MUSTER] [--only=TEXT]
"""
import json
import time

from drill import make_token
from rig import Checks, Rig, muster_path, wait_until

MUSTER = muster_path()
PATIENCE = 60
NODES = 3
DEAD = 12  # seconds: no node may be starved for so long by what else runs here
SILENT = DEAD + 4
checks = Checks()


class Site:
    """node0 has the server, node1 and node2 are relays, the others have a node each."""

    def __init__(self, rig):
        self.token = make_token(rig)["node0"]
        server, *relays = rig.hosts[:3]
        self.server = server.start(MUSTER, "serve", "--listen", "0.0.0.0:29500", *self.token)
        self.relays = [host.start(MUSTER, "serve", "--listen", "0.0.0.0:29500", "--backing",
                                  "tcp://node0:29500", *self.token) for host in relays]
        # The last one knows no relay.
        self.nodes = [self.join(host, i) for i, host in enumerate(rig.hosts[3:])]

    def join(self, host, i):
        conf = "is_host=false,name=n%d,join_timeout=50,last_call_timeout=5,dead=%d%s" % (
            i, DEAD, ",via=node1:29500,node2:29500" if i < NODES - 1 else "")
        return host.start(MUSTER, "rdzv", "join", "--json", "--rejoin", "--verbose", "--rdzv-id", "job",
                          "--rdzv-endpoint", "node0:29500", "--nnodes", "%d:%d" % (NODES - 1, NODES), "--rdzv-conf", conf,
                          "--local-addr", host.name, *self.token)

    def events(self, i):
        lines = [line for line in self.nodes[i].output().splitlines() if line.startswith('{"event"')]
        return [json.loads(line) for line in lines]

    def await_world(self, world, nodes):
        def there():
            last = [[e for e in self.events(i) if e["event"] == "assigned"][-1:] for i in nodes]
            return all(e and e[0]["world_size"] == world for e in last)

        wait_until(there, "a world of %d" % world, PATIENCE, 0.05)

    def heard(self):
        return [[e["event"] for e in self.events(i)] for i in range(NODES)]


def test_relays_are_lost():
    with Rig(3 + NODES) as rig:
        site = Site(rig)
        site.await_world(NODES, range(NODES))
        before = site.heard()
        checks.ok(all("by way of node1:29500" in node.output() for node in site.nodes[:-1]),
                  "nodes go by the first relay", site.nodes[0].output())
        site.relays[0].kill()
        time.sleep(SILENT)
        checks.equal(site.heard(), before, "a relay that is killed is no loss of a node")
        site.relays[1].pause()
        time.sleep(SILENT)
        checks.ok(site.heard() == before, "nor is one that is stopped",
                  "\n".join(node.output() for node in site.nodes))
        checks.ok(all("leaving that relay" in node.output() for node in site.nodes[:-1]),
                  "which they have left", site.nodes[0].output())
        site.relays[1].resume()
        site.nodes[-1].kill()
        site.await_world(NODES - 1, range(NODES - 1))
        checks.ok(all("lost" in heard for heard in site.heard()[:-1]), "a node that is killed is heard of",
                  site.heard())
        checks.ok(site.server.alive(), "the server goes on")


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
