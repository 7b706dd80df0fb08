"""An averager of ours, for tests/peers/hivemind_average.py: as hivemind_member.py, without a daemon.

    muster_member.py LIBRARY CONFIG [INITIAL_PEER...]"""
import json
import os
import sys
import time

import numpy

LIBRARY, CONFIG, *INITIAL = sys.argv[1:]
CONFIG = json.loads(CONFIG)
os.environ["MUSTER_LIBRARY"] = LIBRARY
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "python"))
import muster.average  # noqa: E402


def values(seed):
    rng = numpy.random.RandomState(seed)
    return [rng.uniform(-1, 1, shape).astype(numpy.float32) for shape in CONFIG["shapes"]]


def told(result):
    return {"members": len(result.members), "local": result.parts_local, "parts": result.parts,
            "failed": {m.peer: m.failure for m in result.failed}, "led": result.led,
            "weights": [m.weight for m in result.members], "modes": [m.mode for m in result.members],
            "matchmaking": result.matchmaking, "reduce": result.reduce, "key": result.key,
            "sent": result.bytes_sent, "received": result.bytes_received}


def answer(averager, tensors, what, *args):
    if what == "set":
        for tensor, value in zip(tensors, values(args[0])):
            tensor[...] = value
        return {}
    if what == "step":
        try:
            return told(averager.step(args[0], timeout=args[1], gather=CONFIG.get("gather")))
        except muster.MusterError as error:
            result = getattr(error, "result", None)
            return {"error": "%s: %s" % (error.name, error), **(told(result) if result else {})}
    if what == "save":
        numpy.concatenate([t.reshape(-1) for t in tensors]).tofile(args[0])
        return {}
    raise ValueError(what)


def main():
    tensors = [numpy.zeros(shape, numpy.float32) for shape in CONFIG["shapes"]]
    options = {}
    if CONFIG.get("power"):
        options["power_rank"] = CONFIG["power"]
    if CONFIG.get("part_bytes"):
        options["part_bytes"] = CONFIG["part_bytes"]
    averager = muster.average.Averager(
        tensors, prefix=CONFIG["prefix"], dht=INITIAL, averager=CONFIG.get("averager"),
        encoding=CONFIG.get("encoding"), mode=CONFIG.get("mode") or "node", target_size=CONFIG.get("target") or 0,
        matchmaking=CONFIG.get("matchmaking", 3.0), request_timeout=1.5, group_bits=CONFIG.get("bits") or "",
        sender_timeout=CONFIG.get("chunk_timeout", 10.0), reducer_timeout=2 * CONFIG.get("chunk_timeout", 10.0),
        reduce_timeout=CONFIG.get("reduce_timeout", 30.0), **options)
    print(averager.address or "/p2p/" + averager.peer, flush=True)
    for line in sys.stdin:
        begun = time.monotonic()
        try:
            said = answer(averager, tensors, *json.loads(line))
        except Exception as error:
            said = {"error": repr(error)}
        said["seconds"] = time.monotonic() - begun
        print(json.dumps(said), flush=True)
    averager.close()


main()
