#!/usr/bin/python3
"""Writes the seeds of fuzz_rdzv_state next to itself: the recorded states of tests/vectors, and what
they do not show: other protocols, shared nodes, both names of an address, many nodes."""
import base64
import datetime
import os
import pickle
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "corpus", "rdzv_state")
MODULE = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
START = datetime.datetime(2026, 11, 15, 9, 48, 56, 123456)


class _NodeDesc:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class _RendezvousState:
    def __init__(self, spares):
        self.round, self.complete, self.deadline, self.closed = 0, False, None, False
        self.participants, self.wait_list = {}, set()
        if spares:
            self.redundancy_list = set()
        self.last_heartbeats = {}


module = types.ModuleType(MODULE)
for cls in (_NodeDesc, _RendezvousState):
    cls.__module__ = MODULE
    setattr(module, cls.__name__, cls)
for i in range(MODULE.count(".") + 1):
    sys.modules.setdefault(MODULE.rsplit(".", i)[0], module)


def write(name, data):
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, name), "wb") as f:
        f.write(data)


def build(count, names=("addr",), spares=True, zone=None):
    state = _RendezvousState(spares)
    for i in range(count):
        node = _NodeDesc(**{name: "n%d" % i for name in names}, pid=i * 300 - 300, local_id=2**40 * i)
        (state.participants.__setitem__(node, i) if i % 3 == 0 else
         state.wait_list.add(node) if i % 3 == 1 or not spares else
         state.redundancy_list.add(node))
        state.last_heartbeats[node] = START.replace(tzinfo=zone)
    return state


for version in ("1.13", "2.11"):
    with open(os.path.join(HERE, "..", "vectors", "rdzv-state-%s.txt" % version)) as f:
        lines = f.read().splitlines()
    for at, line in enumerate(lines):
        if line.startswith("= "):
            name = line[2:].replace(",", "").replace(" ", "_")
            write("%s_%s" % (version, name), base64.b64decode(lines[at + 1]))
for protocol in (2, 3, 4, 5):
    write("protocol_%d" % protocol, pickle.dumps(build(4), protocol))
utc = datetime.timezone.utc
odd = datetime.timezone(datetime.timedelta(hours=-5), "odd")
write("both_names", pickle.dumps(build(2, ("addr", "fqdn"))))
write("fqdn", pickle.dumps(build(2, ("fqdn",), False)))
write("aware", pickle.dumps(build(7, zone=utc)))
write("zone", pickle.dumps(build(1, zone=odd)))
write("many", pickle.dumps(build(80, zone=utc)))
write("mixed", pickle.dumps(build(2, ("fqdn",), True, utc)))
write("system", b"cos\nsystem\n(S'true'\ntR.")
write("text", base64.b64encode(pickle.dumps(build(0))))
