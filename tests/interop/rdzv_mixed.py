"""Mixed fleets: PyTorch's own DynamicRendezvousHandler and `muster rdzv join` in one run, on
PyTorch's store, on muster's and in a file; and states that nobody should have written.

usage: rdzv_mixed.py [path of muster] [--only=NAME]
"""
import base64
import datetime
import json
import os
import pickle
import signal
import subprocess
import sys
import time

import torch.distributed as dist
import torch.distributed.elastic.rendezvous.dynamic_rendezvous as dynamic
from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler

from lib import (HOST, PATIENCE, Checks, Conn, Muster, Scratch, TorchServer, dialect,
                 die_with_parent, free_port, is_sanitized, muster_path, wait_until)
from rdzv_nodes import ForkedNode, Node, endpoint_of

# PyTorch's keep-alive, shortened on both sides: dead after three of them. A busy machine may keep one
# of PyTorch's nodes from its turn for three seconds.
BEAT_S = 2
PLAIN = "is_host=false,keep_alive_interval=%d,upscale_delay=0" % BEAT_S
CONFIG = "dialect=%s,%s" % (dialect(), PLAIN)
checks = Checks()
# PyTorch 2 tells the address of the workers' store in the first round of its first node only; who
# comes later waits for it for ever. With this it tells it in every round.
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


# --- PyTorch's node -----------------------------------------------------------------------------


def open_store(where):
    if isinstance(where, str):
        return dist.FileStore(where)
    return dist.TCPStore(HOST, where.port, is_master=False,
                         timeout=datetime.timedelta(seconds=PATIENCE))


class TorchNode(ForkedNode):
    """A handler of PyTorch's. It joins at once, looks after waiting nodes and a close as an agent
    does, and says what it saw."""

    def __init__(self, where, run_id, nnodes, last_call=30, rejoin=True, join_timeout=60):
        low, _, high = str(nnodes).partition(":")
        self.where, self.run_id = where, run_id
        self.low, self.high = int(low), int(high or low)
        self.last_call, self.rejoin, self.join_timeout = last_call, rejoin, join_timeout
        super().__init__()

    def open_backend(self):
        store = open_store(self.where)
        return C10dRendezvousBackend(store, self.run_id), store

    def live(self):
        backend, store = self.open_backend()
        settings = dynamic.RendezvousSettings(
            self.run_id, self.low, self.high,
            dynamic.RendezvousTimeout(join=datetime.timedelta(seconds=self.join_timeout),
                                      last_call=datetime.timedelta(seconds=self.last_call)),
            keep_alive_interval=datetime.timedelta(seconds=BEAT_S), keep_alive_max_attempt=3)
        holder = dynamic._BackendRendezvousStateHolder(backend, settings)
        node = dynamic.DynamicRendezvousHandler._node_desc_generator.generate()
        handler = dynamic.DynamicRendezvousHandler(node, settings, backend.name, store, holder)
        while True:
            round_store, rank, world = self.take(handler.next_rendezvous())
            state = holder.state
            ranks = sorted((rank, repr(node)) for node, rank in state.participants.items())
            round_store.set("torch-%d" % rank, "here")
            self.say("assigned", round=state.round, rank=rank, world_size=world,
                     members=[name for _, name in ranks], me=repr(node))
            if not self.watch(handler, holder, world):
                return

    @staticmethod
    def take(assigned):
        """PyTorch 2.4 and later give an object."""
        return assigned if isinstance(assigned, tuple) else \
            (assigned.store, assigned.rank, assigned.world_size)

    def watch(self, handler, holder, world):
        """True: into the next round."""
        left = world
        while True:
            if self.close_wanted:
                handler.set_closed()
            if handler.is_closed():
                self.say("closed")
                return False
            if handler.num_nodes_waiting() > 0:
                self.say("waiting")
                return self.rejoin
            if len(holder.state.participants) != left:
                left = len(holder.state.participants)
                self.say("left", members=[repr(node) for node in holder.state.participants])
            time.sleep(0.05)


class Mixed:
    """A run with nodes of both kinds; all of them go when the test does."""

    def __init__(self, where, run_id, nnodes, config="", base=CONFIG, **torch):
        self.where, self.run_id, self.nnodes, self.torch_options = where, run_id, nnodes, torch
        self.config = ",".join(item for item in (base, config) if item)
        self.nodes = []

    def torch(self, **more):
        self.nodes.append(TorchNode(self.where, self.run_id, self.nnodes,
                                    **dict(self.torch_options, **more)))
        return self.nodes[-1]

    def muster(self, *args, config="", **more):
        file = isinstance(self.where, str)
        config = ",".join(item for item in (self.config, "store_type=file" if file else "", config)
                          if item)
        node = Node(self.where if file else endpoint_of(self.where), self.run_id, self.nnodes,
                    *(args or ("--rejoin",)), config=config, backend="c10d", **more)
        node.name = "muster"
        self.nodes.append(node)
        return node

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes:
            node.__exit__()


def members_of(event):
    """Names by rank, as either kind of node says them."""
    return [m["name"] if isinstance(m, dict) else m for m in event["members"]]


def agree(events):
    """'' or what the nodes of one world disagree on."""
    if sorted(e["rank"] for e in events) != list(range(len(events))):
        return "ranks %r" % sorted(e["rank"] for e in events)
    for e in events:
        if e["world_size"] != len(events) or e["round"] != events[0]["round"]:
            return "worlds and rounds %r" % [(e["world_size"], e["round"]) for e in events]
        if members_of(e) != members_of(events[0]):
            return "members %r" % [members_of(e) for e in events]
        if "me" in e and members_of(e)[e["rank"]] != e["me"]:
            return "%s is not where its rank says" % e["me"]
    return ""


def assigned(*nodes):
    return [node.until("assigned") for node in nodes]


# --- one world ----------------------------------------------------------------------------------


def meet(where, what):
    with Mixed(where, "meet", 4) as run:
        nodes = [run.torch(), run.muster(), run.torch(), run.muster()]
        events = assigned(*nodes)
        checks.equal(agree(events), "", "2 + 2 nodes are in one world, %s" % what)
        return events


def test_two_and_two_on_pytorchs_store():
    with TorchServer() as server:
        meet(server, "on PyTorch's store")


def test_two_and_two_on_our_store():
    with Muster() as server:
        events = meet(server, "on our store")
        mine = next(e for e in events if "store" in e)
        torch = next(e for e in events if "me" in e)
        checks.equal(mine["store"], "tcp://%s?prefix=torch.rendezvous.meet.0"
                     % endpoint_of(server), "the round's store has PyTorch's prefix")
        done = subprocess.run([muster_path(), "kv", "--store", mine["store"], "--wait", "get",
                               "torch-%d" % torch["rank"]], capture_output=True, timeout=30)
        checks.equal(done.stdout, b"here\n", "what PyTorch's node set in it is found in ours")


def test_two_and_two_in_a_file():
    with Scratch() as path:
        meet(os.path.join(path, "store"), "in a file")


def first_state(server, run_id):
    key = "torch.rendezvous." + run_id
    if dialect() != "1.13":
        store = open_store(server)
        has, get = (lambda: store.check([key])), (lambda: store.get(key))
    else:
        conn = Conn(server.port)
        has, get = (lambda: conn.has("/" + key)), (lambda: conn.get("/" + key))
    # Shorter than any state: what stands there before the first.
    return base64.b64decode(wait_until(lambda: has() and len(get()) > 100 and get(),
                                       "the first state"))


def test_first_on_pytorchs_store_writes_its_dialect():
    with TorchServer() as server, Mixed(server, "first", 2, base=PLAIN) as run:
        mine = run.muster()
        text = first_state(server, "first")
        newer = dialect() != "1.13"
        checks.ok((b"fqdn" in text) != newer and (b"redundancy_list" in text) == newer,
                  "our node, first on a store of PyTorch's, writes its dialect", text[:300])
        checks.equal(agree(assigned(mine, run.torch())), "", "and PyTorch's joins it")
    with TorchServer() as server, Mixed(server, "told", 1, base=PLAIN) as run:
        run.muster(config="dialect=2")
        checks.ok(b"redundancy_list" in first_state(server, "told"), "dialect= has the last word")
    with Muster() as server, Mixed(server, "ours", 1, base=PLAIN) as run:
        run.muster()
        checks.ok(b"redundancy_list" in first_state(server, "ours"),
                  "on our own store it is the newest dialect")


def test_dialects_of_2_between_our_nodes():
    for written in ("2", "2-naive"):
        with Muster() as server, Mixed(server, "dialect", 2) as run:
            first = run.muster(config="dialect=" + written)
            text = first_state(server, "dialect")
            checks.ok(b"addr" in text and b"redundancy_list" in text
                      and (b"timezone" in text) == (written == "2"),
                      "the first node writes the dialect %s" % written)
            events = assigned(first, run.muster(config="dialect=1.13"))
            checks.equal(agree(events), "", "one that would write another follows it")


# --- coming and going ---------------------------------------------------------------------------


def test_killed_node_is_dropped_by_both_kinds():
    with Muster() as server, Mixed(server, "killed", "3:4") as run:
        torch, mine = run.torch(rejoin=False), run.muster("--quiet")
        other, gone = run.torch(rejoin=False), run.muster("--quiet")
        events = assigned(torch, mine, other, gone)
        gone.kill()
        lost = mine.until("ended")
        name = members_of(events[3])[events[3]["rank"]]
        checks.equal((lost["reason"], lost["name"]), ("lost", name),
                     "a killed node ends the round for ours, by name")
        checks.ok(name not in torch.until("left")["members"], "and PyTorch's drop it", name)
    with TorchServer() as server, Mixed(server, "killed", "3:4", last_call=1,
                                        config="last_call_timeout=1") as run:
        torch, mine = run.torch(rejoin=False), run.muster("--quiet")
        gone = run.torch(rejoin=False)
        events = assigned(torch, mine, gone)
        gone.kill()
        lost = mine.until("ended")
        checks.equal((lost["reason"], lost["name"]), ("lost", events[2]["me"]),
                     "a killed node of PyTorch's, too, on its own store")
        checks.ok(events[2]["me"] not in torch.until("left")["members"], "and the other drops it")


def test_late_node_brings_a_new_round_with_everybody():
    with Muster() as server, Mixed(server, "late", "3:4", last_call=1,
                                   config="last_call_timeout=1") as run:
        first = [run.torch(), run.muster(), run.torch()]
        checks.equal(agree(assigned(*first)), "", "three of at most four, after the last call")
        for kind in ("muster", "torch"):
            late = getattr(run, kind)()
            everybody = first + [late]
            events = assigned(*everybody)
            checks.equal(agree(events), "", "a late node of kind %s is let in by all" % kind)
            checks.ok(events[0]["round"] > 0, "in a new round", events[0]["round"])
            if kind == "muster":
                late.stop()
                # It leaves in order; PyTorch's do not mind, ours come back as late ones.
                events = [node.until("assigned") for node in (first[1],)]
                checks.equal(events[0]["world_size"], 3, "one that leaves is left out")
                for node in (first[0], first[2]):
                    node.until("assigned")


def test_last_call_when_more_could_come():
    with TorchServer() as server, Mixed(server, "call", "2:8", last_call=2,
                                        config="last_call_timeout=2") as run:
        started = time.monotonic()
        events = assigned(run.torch(), run.muster())
        checks.equal(agree(events), "", "two of at most eight")
        checks.ok(time.monotonic() - started >= 2, "after the last call")


def test_close_by_either_is_seen_by_the_other():
    with Muster() as server:
        with Mixed(server, "closed-by-torch", 2) as run:
            torch, mine = run.torch(), run.muster()
            assigned(torch, mine)
            torch.kill(signal.SIGUSR1)
            mine.until("closed")
            torch.until("closed")
            checks.ok(True, "a close by PyTorch's node is told to ours")
            late = run.muster("--quiet")
            code = late.wait()
            checks.ok(code != 0 and "closed" in json.dumps(late.said) + late.complaint,
                      "who comes then is told that it is closed", (code, late.said, late.complaint))
        with Mixed(server, "closed-by-us", 2) as run:
            torch, mine = run.torch(), run.muster()
            assigned(torch, mine)
            done = subprocess.run(
                [muster_path(), "rdzv", "close", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                 endpoint_of(server), "--rdzv-id", "closed-by-us"], capture_output=True,
                text=True, timeout=30)
            checks.equal(done.returncode, 0, "we close a run")
            torch.until("closed")
            mine.until("closed")
            checks.ok(True, "a close by us is told to PyTorch's node and ours")


# --- static -------------------------------------------------------------------------------------


class StaticTorch:
    """PyTorch's static rendezvous in a process of its own: it holds the interpreter while it
    waits. It says what it got, and its store stays until it is told to end."""

    def __init__(self, port, rank):
        self.result, said = os.pipe()
        over, self.over = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.over)
            die_with_parent()
            handler = create_rdzv_handler(RendezvousParameters(
                "static", "%s:%d" % (HOST, port), "stat", 2, 2, rank=rank, timeout=30))
            store, rank, world = TorchNode.take(handler.next_rendezvous())
            store.set("from-torch", "hello")
            os.write(said, json.dumps([rank, world, store.get("from-muster").decode()]).encode())
            os.read(over, 1)
            os._exit(0)
        os.close(said)
        os.close(over)

    def got(self):
        return json.loads(os.read(self.result, 1000))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.over)
        os.close(self.result)
        os.waitpid(self.pid, 0)


def meet_static(port, torch_rank):
    rank = 1 - torch_rank
    with StaticTorch(port, torch_rank) as torch, \
            Node("%s:%d" % (HOST, port), "stat", 2, config="rank=%d,timeout=30" % rank,
                 backend="static") as node:
        event = node.until("assigned")
        checks.equal((event["rank"], event["world_size"], event["store"]),
                     (rank, 2, "tcp://%s:%d?prefix=stat" % (HOST, port)),
                     "static: ours is rank %d" % rank)
        kv = [muster_path(), "kv", "--store", event["store"]]
        subprocess.run(kv + ["set", "from-muster", "hi"], timeout=30, check=True)
        checks.equal(torch.got(), [torch_rank, 2, "hi"], "PyTorch's is the other")
        done = subprocess.run(kv + ["--wait", "get", "from-torch"], capture_output=True, timeout=30)
        checks.equal(done.stdout, b"hello\n", "both use one store under the run's prefix")


def test_static_with_pytorch_as_either_rank():
    for torch_rank in (0, 1):
        meet_static(free_port(), torch_rank)


# --- what nobody should have written ------------------------------------------------------------


def peak_mb(pid):
    with open("/proc/%d/status" % pid) as file:
        for line in file:
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0


class JoinerOf:
    """A join that is expected to fail, and how much memory it took at the most."""

    def __init__(self, server, run_id):
        self.node = Node(endpoint_of(server), run_id, 1, config="is_host=false", backend="c10d")
        self.peak = 0
        while self.node.process.poll() is None:
            try:
                self.peak = max(self.peak, peak_mb(self.node.process.pid))
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.005)
        self.code = self.node.wait()
        self.failure = next((e for e in self.node.said if e["event"] == "failed"), None)

    def says_state(self):
        said = json.dumps(self.failure) + self.node.complaint
        return self.code != 0 and "state" in said and "corrupt" in said


def state_of(nodes):
    state = dynamic._RendezvousState()
    for node in nodes:
        state.participants[node] = 0
        state.last_heartbeats[node] = datetime.datetime.utcnow()
    return base64.b64encode(pickle.dumps(state))


def hostile(server, what):
    limit = 400 if is_sanitized() else 220
    huge = "".join(["A"] * (100 << 20)).encode()
    long_name = state_of([dynamic._NodeDesc("n" * (1 << 20), 1, 1)])
    with Conn(server.port) as conn:
        conn.set("/torch.rendezvous.huge", huge)
        conn.set_acked("/torch.rendezvous.long", long_name)
    for run_id, kind in (("huge", "a state of 100 MB"), ("long", "a name of 1 MB")):
        got = JoinerOf(server, run_id)
        checks.ok(got.says_state(), "%s is an error of kind state, %s" % (kind, what),
                  "%r %r %r" % (got.code, got.failure, got.node.complaint))
        checks.ok(got.peak < limit, "within %d MB (%s)" % (limit, what), got.peak)
    with Mixed(server, "other", 1) as run:
        checks.equal(run.muster().until("assigned")["world_size"], 1,
                     "other runs are not affected, %s" % what)


def test_hostile_states_on_pytorchs_store():
    if dialect() != "1.13":
        checks.note("a store of PyTorch 2 takes no value of 100 MB")
        return
    with TorchServer() as server:
        hostile(server, "on PyTorch's store")


def test_hostile_states_on_our_store():
    with Muster("--max-value", "200M") as server:
        hostile(server, "on our store")


def main():
    checks.run_tests(globals())
    checks.done()


if __name__ == "__main__":
    main()
