"""Mixed fleets in etcd: PyTorch's own EtcdRendezvousHandler and `muster rdzv join --rdzv-backend
etcd` in one run, on a real etcd with its v2 API. Each scenario is a process of its own, all at once:
most of their time is waiting for keep-alive keys to end.

usage: rdzv_etcd_old.py [path of muster] [--only=NAME]
"""
import json
import os
import signal
import sys
import threading
import time

import etcd
import torch.distributed.elastic.rendezvous.etcd_rendezvous as torch_etcd
from torch.distributed.elastic.rendezvous.api import (RendezvousClosedError, RendezvousParameters,
                                                      RendezvousTimeoutError)

import etcd_lib
import lib
from lib import PATIENCE, option
from rdzv_nodes import ForkedNode, Node

PREFIX = "/torchelastic/p2p"
LEASE_S = 10
LONG = max(PATIENCE, 4 * LEASE_S)


class TorchNode(ForkedNode):
    """A handler of PyTorch's. It joins at once, looks after waiting nodes and a close as an agent
    does, and says what it saw."""

    patience = LONG

    def __init__(self, endpoint, run_id, nnodes, last_call=1, timeout=60, rejoin=True, **config):
        low, _, high = str(nnodes).partition(":")
        self.params = dict(backend="etcd", endpoint=endpoint, run_id=run_id, min_nodes=int(low),
                           max_nodes=int(high or low), timeout=timeout,
                           last_call_timeout=last_call, **config)
        self.rejoin = rejoin
        super().__init__()

    def live(self):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        handler = torch_etcd.create_rdzv_handler(RendezvousParameters(**self.params))
        while True:
            try:
                store, rank, world = handler.next_rendezvous()
            except RendezvousClosedError:
                self.say("closed", late=True)
                return
            except RendezvousTimeoutError:
                self.say("timeout")
                return
            _, state = handler._rdzv_impl.get_rdzv_state()
            store.set("torch-%d" % rank, "here")
            self.say("assigned", round=int(state["version"]), rank=rank, world_size=world)
            if not self.watch(handler):
                return

    def watch(self, handler):
        """True: into the next round."""
        while True:
            if self.close_wanted:
                handler.set_closed()
            if handler.is_closed():
                self.say("closed")
                return False
            if handler.num_nodes_waiting() > 0:
                self.say("waiting")
                return self.rejoin
            time.sleep(0.1)


class World:
    """One scenario: its own run in the server they share."""

    def __init__(self, server, name):
        self.server, self.run_id = server, name
        self.endpoint = server.authority()
        self.checks = lib.Checks()
        self.nodes = []
        self.client = etcd.Client(host=lib.HOST, port=server.ports[0])

    def torch(self, nnodes, **options):
        self.nodes.append(TorchNode(self.endpoint, self.run_id, nnodes, **options))
        return self.nodes[-1]

    def ours(self, nnodes, *args, config="last_call_timeout=1,timeout=60"):
        self.nodes.append(Node(self.endpoint, self.run_id, nnodes, "--rejoin", *args,
                               backend="etcd", config=config))
        return self.nodes[-1]

    def status(self):
        """What `muster rdzv status` says: its exit code, and the run as it prints it."""
        code, out, err = lib.run_muster("rdzv", "status", "--rdzv-backend", "etcd",
                                        "--rdzv-endpoint", self.endpoint, "--rdzv-id", self.run_id,
                                        "--json")
        return code, json.loads(out) if out else err

    def path(self, tail):
        return "%s/run_%s/rdzv/%s" % (PREFIX, self.run_id, tail)

    def state(self):
        return json.loads(self.client.get(self.path("active_version")).value)

    def assigned(self, nodes, world, what):
        """All of them come to one round of that size, each with a rank of its own. On a slow machine
        some may be in a smaller one before, and go on when the others come."""
        found = [node.until("assigned", LONG) for node in nodes]
        while len({f["round"] for f in found}) > 1 or found[0]["world_size"] < world:
            behind = min(range(len(found)), key=lambda i: found[i]["round"])
            found[behind] = nodes[behind].until("assigned", LONG)
        self.checks.equal({f["world_size"] for f in found}, {world}, what + ": one world")
        self.checks.equal(sorted(f["rank"] for f in found), list(range(world)),
                          what + ": a rank for each")
        return found

    def close(self):
        for node in self.nodes:
            node.stop()


# --- scenarios ----------------------------------------------------------------------------------


def meet(w):
    """Two of each kind, and what each finds of the other in the round's store."""
    nodes = [w.torch("4"), w.ours("4"), w.torch("4"), w.ours("4")]
    found = w.assigned(nodes, 4, "four nodes, two of each kind")
    url = found[1]["store"]
    for torch_node in (0, 2):
        rank = found[torch_node]["rank"]
        w.checks.equal(etcd_lib.kv(url, "get", "--wait", "torch-%d" % rank)[1], b"here\n",
                       "we read what PyTorch's node wrote into the round's store")
    etcd_lib.kv(url, "set", "ours", "there")
    store = torch_etcd.EtcdStore(w.client, w.path("v_%d/kv" % found[0]["round"]))
    w.checks.equal(store.get("ours"), b"there", "PyTorch reads what we wrote")
    state = w.state()
    w.checks.equal(state["status"], "final", "the state is final")
    w.checks.equal(state["participants"], [0, 1, 2, 3], "all are participants")
    w.checks.equal(sorted(state["keep_alives"]), [w.path("v_1/rank_%d" % r) for r in range(4)],
                   "all have confirmed")
    w.checks.equal(list(state), ["status", "version", "participants", "keep_alives",
                                 "num_workers_waiting"], "members stand as PyTorch has them")
    text = w.client.get(w.path("active_version")).value
    w.checks.equal(text, json.dumps(state), "and its text is what Python would write")
    run = w.client.get("%s/run_%s" % (PREFIX, w.run_id))
    w.checks.ok(7000 < run.ttl <= 7200, "the run's directory lives for two hours", run.ttl)
    leases = [n for n in w.client.get(w.path("v_1")).children if "rank_" in n.key]
    w.checks.ok(len(leases) == 4 and all(0 < n.ttl <= LEASE_S for n in leases),
                "each has a keep-alive key of ten seconds", [n.ttl for n in leases])
    code, run = w.status()
    w.checks.equal((code, run["state"], run["round"], run["running"], run["text"]),
                   (0, "running", 1, 4, ""), "rdzv status tells how the run stands")
    w.checks.equal([(m["rank"], m["place"]) for m in run["members"]],
                   [(r, "running") for r in range(4)], "and who is in it")

    def is_silent():  # Its owner may put the key again.
        try:
            w.client.delete(w.path("v_1/rank_2"))
        except etcd.EtcdKeyNotFound:
            pass
        return "rank 2" in w.status()[1]["text"]

    lib.wait_until(is_silent, "rdzv status to say who is silent")


def last_call(w):
    """The node that reaches the minimum calls last: ours, then PyTorch's."""
    first = w.torch("2:3", last_call=30)
    lib.wait_until(lambda: try_state(w).get("participants") == [0], "PyTorch's node to be first",
                   LONG)
    second = w.ours("2:3", config="last_call_timeout=30,timeout=60")
    lib.wait_until(lambda: try_state(w).get("participants") == [0, 1], "ours to be second", LONG)
    ttl = w.client.get(w.path("active_version")).ttl
    w.checks.ok(ttl is not None and 0 < ttl <= 10, "the state lives on by our last call", ttl)
    time.sleep(LEASE_S + 2)
    w.checks.equal(try_state(w).get("status"), "joinable", "longer than its time")
    third = w.torch("2:3", last_call=30)
    w.assigned([first, second, third], 3, "a third within our last call")


def last_call_torch(w):
    first = w.ours("2:3", config="last_call_timeout=30,timeout=60")
    lib.wait_until(lambda: try_state(w).get("participants") == [0], "ours to be first", LONG)
    second = w.torch("2:3", last_call=2)
    w.assigned([first, second], 2, "PyTorch's last call ends with two")


def late(w):
    """A late-comer of each kind is let in by the other."""
    torch_node, own = w.torch("2:4"), w.ours("2:4")
    w.assigned([torch_node, own], 2, "two of two to four")
    third = w.ours("2:4")
    torch_node.until("waiting")
    w.assigned([torch_node, own, third], 3, "ours comes late")
    fourth = w.torch("2:4")
    own.until("waiting", LONG)
    w.assigned([torch_node, own, third, fourth], 4, "PyTorch's comes late")


def dead(w):
    """A member of PyTorch's dies; the waiting node finds its keep-alive key missing."""
    torch_node, own, other = w.torch("2:3"), w.ours("2:3"), w.torch("2:3")
    w.assigned([torch_node, own, other], 3, "three of two to three")
    other.kill()
    lost = own.until("lost", LONG)
    w.checks.ok("rank" in lost, "ours notices whose key has ended", lost)
    w.assigned([torch_node, own], 2, "the two that are left")
    own.kill()
    late_comer = w.torch("2:3")
    w.assigned([torch_node, late_comer], 2, "ours has died, and PyTorch's two went on")


def close_torch(w):
    nodes = [w.torch("2"), w.ours("2")]
    w.assigned(nodes, 2, "two")
    nodes[0].kill(signal.SIGUSR1)
    w.checks.ok(nodes[1].until("closed", LONG), "ours hears that PyTorch's has closed the run")
    late_comer = Node(w.endpoint, w.run_id, "2", backend="etcd")
    w.nodes.append(late_comer)
    w.checks.ok(late_comer.until("closed", LONG), "and cannot join any more")


def close_ours(w):
    nodes = [w.torch("2"), w.ours("2")]
    w.assigned(nodes, 2, "two")
    code, _, err = run_close(w)
    w.checks.equal(code, 0, "muster rdzv close " + err)
    w.checks.ok(nodes[0].until("closed"), "PyTorch's hears that we have closed the run")
    w.checks.equal(w.status()[1]["state"], "closed", "rdzv status says so, too")
    w.checks.ok(nodes[1].until("closed", LONG), "and so does ours")
    w.checks.ok(w.torch("2").until("closed"), "PyTorch's cannot join any more")


def close_nothing(w):
    """A run that never began is closed all the same, and PyTorch takes our word."""
    code, err = w.status()
    w.checks.ok(code == 7 and "no run" in err, "rdzv status of a run that is not there", err)
    code, _, err = run_close(w)
    w.checks.equal(code, 0, "a run that never began is closed " + err)
    w.checks.ok(w.torch("1").until("closed"), "PyTorch's finds it closed")


def alone(w):
    """Too few of either kind."""
    node = w.ours("2", config="timeout=3")
    failed = node.until("failed", LONG)
    w.checks.equal(failed["error"], "MUSTER_ERDZV_TIMEOUT", "nobody else comes")
    w.checks.ok("1 of at least 2" in failed["text"], "and it says who is missing", failed["text"])


def extra(w):
    """Extra data, both ways."""
    nodes = [w.torch("2"), w.ours("2")]
    version = w.assigned(nodes, 2, "two")[0]["round"]
    impl = torch_etcd.EtcdRendezvous(w.client, PREFIX, w.run_id, 2, 2, 60, 1)
    run = ("rdzv", "extra", "--rdzv-backend", "etcd", "--rdzv-endpoint", w.endpoint, "--rdzv-id",
           w.run_id)
    w.checks.equal(lib.run_muster(*run, "first", "ours")[:2], (0, b"ours\n"), "we store")
    w.checks.equal(impl.load_extra_data(str(version), "first"), "ours", "PyTorch loads it")
    later = threading.Timer(1, lambda: impl.store_extra_data(str(version), "second", "its \u00e9"))
    later.start()
    w.checks.equal(lib.run_muster(*run, "second")[:2], (0, "its \u00e9\n".encode()),
                   "we wait for what PyTorch stores")
    w.checks.equal(lib.run_muster(*run, "first", "again")[0], 0, "and store once more")
    w.checks.equal((impl.load_extra_data(str(version), "first"),
                    impl.load_extra_data(str(version), "second")), ("again", "its \u00e9"),
                   "PyTorch finds both")
    code, _, err = lib.run_muster(*run, "third", "--timeout", "1")
    w.checks.ok(code == 3, "what nobody stores is waited for in vain", (code, err))
    code, _, err = lib.run_muster(*run[:-1], "no-such-run", "first")
    w.checks.ok(code == 7, "a run that is not there", (code, err))


def url_form(w):
    """The URL of PyTorch's documentation, and a prefix of one's own."""
    url = ("etcd://%s/%s?min_workers=2&max_workers=2&timeout=60&last_call_timeout=1"
           "&etcd_prefix=/own/place&protocol=http" % (w.endpoint, w.run_id))
    own = Node(url, "another", "1", "--rejoin", backend="etcd")
    w.nodes.append(own)
    torch_node = w.torch("2", etcd_prefix="/own/place")
    w.assigned([own, torch_node], 2, "a URL")
    state = json.loads(w.client.get("/own/place/run_%s/rdzv/active_version" % w.run_id).value)
    w.checks.equal(state["status"], "final", "under its own prefix")


def refusals(w):
    """Each its own words."""
    def join(endpoint, config=""):
        code, _, err = lib.run_muster("rdzv", "join", "--rdzv-backend", "etcd", "--rdzv-endpoint",
                                      endpoint, "--rdzv-id", "x", "--rdzv-conf",
                                      config or "timeout=5")
        return code, err
    for config, words in (("protocol=HTTPS", "http or https"), ("nonsense=1", "nonsense"),
                          ("timeout=-1", "timeout"), ("dialect=3", "1.13 or 2"),
                          ("min_workers=3,max_workers=2", "3 to 2 nodes"),
                          ("password_file=/none/here,user=x", "password_file")):
        code, err = join(w.endpoint, config)
        w.checks.ok(code != 0 and words in err, "%s is refused in words" % config, err)
    with etcd_lib.Etcd(v2=False) as modern:
        code, err = join(modern.authority())
        w.checks.ok(code != 0 and all(words in err for words in (
            "v2 API", "--enable-v2", "3.6", "--rdzv-backend etcd-v3")),
                    "an etcd without v2 is told as such", err)
    code, err = join("%s:%d" % (lib.HOST, lib.free_port()))
    w.checks.ok(code != 0, "nobody listens", err)


def try_state(w):
    try:
        return w.state()
    except etcd.EtcdKeyNotFound:
        return {}


def run_close(w):
    return lib.run_muster("rdzv", "close", "--rdzv-backend", "etcd", "--rdzv-endpoint", w.endpoint,
                          "--rdzv-id", w.run_id)


SCENARIOS = [meet, last_call, last_call_torch, late, dead, close_torch, close_ours, close_nothing,
             alone, extra, url_form, refusals]


def run_one(server, scenario):
    world = World(server, scenario.__name__)
    try:
        scenario(world)
    finally:
        world.close()
    for what in world.checks.failed:
        print("failed: %s: %s" % (scenario.__name__, what), flush=True)
    return 1 if world.checks.failed else 0


def main():
    only = option("only", "")
    failed = []
    etcd_lib.need_v2()
    with etcd_lib.Etcd() as server:
        children = {}
        for scenario in SCENARIOS:
            if only not in ("", scenario.__name__):
                continue
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                try:
                    code = run_one(server, scenario)
                except BaseException as error:  # the others go on
                    print("FAIL %s: %r" % (scenario.__name__, error))
                    code = 1
                sys.stdout.flush()
                os._exit(code)
            children[pid] = scenario.__name__
        while children:
            pid, status = os.wait()
            if pid in children:
                name = children.pop(pid)
                if status != 0:
                    failed.append(name)
    if failed:
        print("failed: " + ", ".join(sorted(failed)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
