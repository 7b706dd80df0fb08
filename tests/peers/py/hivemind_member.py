"""An averager of hivemind over a daemon of either kind, for tests/peers/hivemind_average.py.

    hivemind_member.py DAEMON CONFIG [INITIAL_PEER...]

CONFIG is JSON. Prints its multiaddr, then answers requests on its input, each a line with an array of
JSON, with a line of JSON. Its values are drawn from a seed, as those of the other members are."""
import contextlib
import json
import sys
import time

import hivemind
import numpy
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.power_sgd_averager import PowerSGDGradientAverager
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.p2p import p2p_daemon

BINARY, CONFIG, *INITIAL = sys.argv[1:]
CONFIG = json.loads(CONFIG)
p2p_daemon.path = lambda *_: contextlib.nullcontext(BINARY)  # instead of the one in the package

CODECS = {
    "NONE": hivemind.compression.NoCompression, "FLOAT16": hivemind.compression.Float16Compression,
    "MEANSTD_16BIT": hivemind.compression.ScaledFloat16Compression,
    "QUANTILE_8BIT": hivemind.compression.Quantile8BitQuantization,
    "UNIFORM_8BIT": hivemind.compression.Uniform8BitQuantization,
}


def values(seed, shapes):
    """The same in every process, with any version of NumPy."""
    rng = numpy.random.RandomState(seed)
    return [rng.uniform(-1, 1, shape).astype(numpy.float32) for shape in shapes]


class Plain:
    def __init__(self, dht, shared):
        self.shapes = CONFIG["shapes"]
        self.averager = DecentralizedAverager([torch.zeros(tuple(s)) for s in self.shapes], dht, **shared)

    def set(self, seed):
        with self.averager.get_tensors() as tensors:
            for tensor, value in zip(tensors, values(seed, self.shapes)):
                tensor.copy_(torch.from_numpy(value))

    def step(self, weight, timeout):
        weighed = {} if CONFIG.get("mode") == "aux" else {"weight": weight}
        return self.averager.step(wait=False, timeout=timeout, allow_retries=False, **weighed).result(timeout + 30)

    def get(self):
        with self.averager.get_tensors() as tensors:
            return [t.numpy().copy() for t in tensors]


class Gradients(Plain):
    def __init__(self, dht, shared):
        self.shapes = CONFIG["shapes"]
        self.params = [torch.nn.Parameter(torch.zeros(tuple(s))) for s in self.shapes]
        self.averager = self.make(self.params, dht=dht, **shared)

    make = GradientAverager

    def set(self, seed):
        for param, value in zip(self.params, values(seed, self.shapes)):
            param.grad = torch.from_numpy(value)

    def step(self, weight, timeout):
        self.averager.accumulate_grads_(batch_size=int(weight))
        group = self.averager.step(weight=weight, timeout=timeout, allow_retries=False, wait=True, reset_accumulators=True)
        with self.averager.use_averaged_gradients():
            self.result = [p.grad.numpy().copy() for p in self.params]
        return group

    def get(self):
        return self.result


class Power(Gradients):
    @staticmethod
    def make(params, **shared):
        return PowerSGDGradientAverager(params, averager_rank=CONFIG["power"], **shared)


class States(Plain):
    def __init__(self, dht, shared):
        self.shapes = CONFIG["shapes"]
        self.params = [torch.nn.Parameter(torch.zeros(tuple(s))) for s in self.shapes]
        self.averager = TrainingStateAverager(
            dht=dht, params=self.params, optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1), **shared)

    def set(self, seed):
        with torch.no_grad():
            for param, value in zip(self.params, values(seed, self.shapes)):
                param.copy_(torch.from_numpy(value))

    def step(self, weight, timeout):
        self.averager.step(averaging_round=True, averaging_opts={"weight": weight, "timeout": timeout,
                                                                 "allow_retries": False})
        return range(CONFIG["members"])  # it does not say who took part

    def get(self):
        return [p.detach().numpy().copy() for p in self.params]


def make():
    dht = hivemind.DHT(INITIAL, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    shared = dict(prefix=CONFIG["prefix"], target_group_size=CONFIG.get("target"), min_group_size=2,
                  min_matchmaking_time=CONFIG.get("matchmaking", 3.0), request_timeout=1.5,
                  compression=CODECS[CONFIG.get("encoding", "NONE")](), start=True,
                  next_chunk_timeout=CONFIG.get("chunk_timeout", 10.0),
                  allreduce_timeout=CONFIG.get("reduce_timeout", 30.0))
    if CONFIG.get("part_bytes"):
        shared["part_size_bytes"] = CONFIG["part_bytes"]
    if CONFIG.get("bits"):
        shared["initial_group_bits"] = CONFIG["bits"]
    if CONFIG.get("mode") == "client":
        shared["client_mode"] = True
    if CONFIG.get("mode") == "aux":
        shared["auxiliary"] = True
    kind = {"GradientAverager": Gradients, "PowerSGDGradientAverager": Power, "TrainingStateAverager": States}.get(CONFIG.get("averager"), Plain)
    return dht, kind(dht, shared)


def answer(member, what, *args):
    if what == "set":
        member.set(args[0])
        return {}
    if what == "step":
        group = member.step(*args)
        return {"members": len(group) if group else 0}
    if what == "save":
        numpy.concatenate([v.reshape(-1) for v in member.get()]).tofile(args[0])
        return {}
    raise ValueError(what)


def main():
    dht, member = make()
    print(dht.get_visible_maddrs()[0], flush=True)
    for line in sys.stdin:
        begun = time.monotonic()
        try:
            said = answer(member, *json.loads(line))
        except Exception as error:
            said = {"error": repr(error)}
        said["seconds"] = time.monotonic() - begun
        print(json.dumps(said), flush=True)
    member.averager.shutdown()
    dht.shutdown()


main()
