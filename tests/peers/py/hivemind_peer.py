"""A peer of hivemind over a daemon of either kind, for tests/peers/hivemind_swarm.py.

    hivemind_peer.py [--listen=MULTIADDR] [--hidden] DAEMON KEYFILE VALUE [INITIAL_PEER...]

Prints its multiaddr, then answers requests on its input, each a line with an array of JSON, with a
line of JSON. It has a node of the DHT, an averager whose tensor begins as VALUE, and methods that
echo; `load` calls those of others until it is told to stop. `train` begins to train with hivemind's
optimizer, until it is told to stop; `join` only loads the state that it would begin with. --hidden: others
cannot dial it, and it looks for a relay."""
import asyncio
import contextlib
import json
import sys
import threading
import time
from typing import AsyncIterator

import hivemind
import torch
from hivemind.p2p import P2PContext, PeerID, ServicerBase, p2p_daemon
from hivemind.proto import test_pb2
from hivemind.utils import get_dht_time

FLAGS = dict((word[2:].split("=", 1) + [""])[:2] for word in sys.argv[1:] if word.startswith("--"))
BINARY, KEY, VALUE, *INITIAL = [word for word in sys.argv[1:] if not word.startswith("--")]
p2p_daemon.path = lambda *_: contextlib.nullcontext(BINARY)  # instead of the one in the package


class Echo(ServicerBase):
    async def rpc_echo(self, request: test_pb2.TestRequest, _context: P2PContext) -> test_pb2.TestResponse:
        return test_pb2.TestResponse(number=request.number)

    async def rpc_count(self, request: test_pb2.TestRequest, _context: P2PContext) -> AsyncIterator[test_pb2.TestResponse]:
        for i in range(request.number):
            yield test_pb2.TestResponse(number=i)


class Trainer:
    """One weight, whose gradient is another at each peer: that all peers have the same weight at the
    end of an epoch is the optimizer's doing."""

    def __init__(self, dht, gradient, target, steps=True):
        self.weight = torch.nn.Parameter(torch.zeros(1000))
        self.gradient, self.epochs, self.stopped = gradient, {}, threading.Event()
        self.optimizer = hivemind.Optimizer(
            dht=dht, run_id="train", params=[self.weight], optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            target_batch_size=target, batch_size_per_step=1, matchmaking_time=4.0, averaging_timeout=60.0,
            tracker_opts=dict(min_refresh_period=0.2, default_refresh_period=0.5), verbose=False)
        self.thread = threading.Thread(target=self.train if steps else self.optimizer.load_state_from_peers, daemon=True)
        self.thread.start()

    def train(self):
        while not self.stopped.wait(0.25):
            (self.weight * self.gradient).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.epochs.setdefault(self.optimizer.local_epoch, float(self.weight.mean()))

    def loaded(self):
        """What a trainer that makes no steps has got from others."""
        self.thread.join(90)
        if self.thread.is_alive():
            raise TimeoutError("no state came")
        momentum = self.optimizer.state_dict()["state"][0]["momentum_buffer"]
        return {"epoch": self.optimizer.local_epoch, "weight": float(self.weight[0]), "momentum": float(momentum[0])}

    def stop(self):
        self.stopped.set()
        self.thread.join(60)
        self.optimizer.shutdown()


class Peer:
    def __init__(self):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        hidden = dict(force_reachability="private", use_auto_relay=True) if "hidden" in FLAGS else {}
        self.dht = hivemind.DHT(INITIAL, start=True, identity_path=KEY, check_if_identity_free=False,
                                host_maddrs=[FLAGS.get("listen", "/ip4/127.0.0.1/tcp/0")], **hidden)
        self.averager = hivemind.averaging.DecentralizedAverager(
            [torch.full((100_000,), float(VALUE))], self.dht, prefix="test", target_group_size=8, min_group_size=2,
            min_matchmaking_time=3.0, request_timeout=2.0, allow_state_sharing=True, start=True)
        self.p2p = self.run(self.dht.replicate_p2p())
        self.run(Echo().add_p2p_handlers(self.p2p))
        self.targets, self.calls, self.failures, self.busy = [], 0, [], {}
        self.loading = self.trainer = None

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(120)

    async def call(self, target):
        stub = Echo.get_stub(self.p2p, PeerID.from_base58(target))
        self.busy[target] = self.busy.get(target, 0) + 1
        try:
            number = self.calls
            answer = await asyncio.wait_for(stub.rpc_echo(test_pb2.TestRequest(number=number)), 30)
            if answer.number != number:
                raise ValueError("the answer was %d" % answer.number)
            got = [item.number async for item in await stub.rpc_count(test_pb2.TestRequest(number=5))]
            if got != list(range(5)):
                raise ValueError("the stream had %r" % got)
        except Exception as error:  # whatever it is, it is a call that failed
            self.failures.append({"at": time.time(), "theirs": "hivemind_cli" in BINARY, "callee": target,
                                  "said": "peer %s: %r" % (VALUE, error)})
        finally:
            self.calls += 2
            self.busy[target] -= 1

    async def load(self):
        while True:
            for target in list(self.targets):
                if target in self.targets:
                    await self.call(target)
            await asyncio.sleep(0.01)

    async def settle(self, gone):
        while self.busy.get(gone):
            await asyncio.sleep(0.01)

    def answer(self, what, *args):
        if what == "store":
            subkey = dict(subkey=args[2]) if args[2:] else {}
            return {"ok": bool(self.dht.store(args[0], value=args[1], expiration_time=get_dht_time() + 600, **subkey))}
        if what == "get":
            value = (self.dht.get(args[0], latest=True) or [None])[0]
            whole = isinstance(value, dict) and all(hasattr(entry, "expiration_time") for entry in value.values())
            return {"value": {key: entry.value for key, entry in value.items()} if whole else value}
        if what == "load":
            self.targets = [t for t in args if t != str(self.dht.peer_id)]
            if self.loading is None:
                self.loading = asyncio.run_coroutine_threadsafe(self.load(), self.loop)
            return {}
        if what == "addresses":
            return {"addresses": [str(address) for address in self.dht.get_visible_maddrs(latest=True)]}
        if what == "call":
            before = len(self.failures)
            self.run(self.call(args[0]))
            failed, self.failures = self.failures[before:], self.failures[:before]
            return {"ok": not failed, "said": failed}
        if what == "spare":
            # Whoever leaves is not called any more, and calls that are under way end.
            self.targets = [t for t in self.targets if t not in args]
            for gone in args:
                self.run(self.settle(gone))
            return {}
        if what == "counts":
            return {"calls": self.calls, "failures": self.failures}
        if what == "average":
            control = self.averager.step(wait=False, timeout=float(args[0]))
            try:
                group = control.result(float(args[0]))
            except Exception as error:
                return {"error": repr(error)}
            with self.averager.get_tensors() as tensors:
                return {"group": len(group) if group else 0, "value": float(tensors[0].mean()),
                        "spread": float(tensors[0].max() - tensors[0].min())}
        if what == "value":
            with self.averager.get_tensors() as tensors:
                tensors[0].fill_(float(args[0]))
            return {}
        if what == "state":
            got = self.averager.load_state_from_peers(timeout=float(args[0]))
            return {"value": float(got[1][0].mean()) if got else None}
        if what == "train":
            self.trainer = Trainer(self.dht, float(args[0]), int(args[1]))
            return {}
        if what == "join":
            self.trainer = Trainer(self.dht, 0.0, 10**6, steps=False)
            return self.trainer.loaded()
        if what == "epochs":
            return {"epochs": self.trainer.epochs}
        if what == "leave":
            if self.trainer is not None:
                self.trainer.stop()
            if self.loading is not None:
                self.loading.cancel()
            self.averager.shutdown()
            self.dht.shutdown()
            return {"calls": self.calls, "failures": self.failures}
        raise ValueError(what)


def main():
    peer = Peer()
    print(peer.dht.get_visible_maddrs()[0], flush=True)
    for line in sys.stdin:
        begun = time.monotonic()
        try:
            said = peer.answer(*json.loads(line))
        except Exception as error:
            said = {"error": repr(error)}
        said["seconds"] = time.monotonic() - begun
        print(json.dumps(said), flush=True)
        if json.loads(line)[0] == "leave":
            break


main()
