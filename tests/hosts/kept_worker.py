"""A worker that keeps its shard every step, in step with the others. What it has follows from all
steps before: `common` is the same on all ranks, `mine` is its own, and `filler` shows what is torn.

    kept_worker.py STOP
"""
import os
import sys
import time
import zlib

from muster import state, worker


def mix(*what):
    return zlib.crc32(repr(what).encode())


def main():
    rank, began = worker.rank(), (worker.round(), worker.run_id())
    filler = state.Array("I64", (50000 + 1000 * rank,))
    view = filler.data.cast("q")
    tree = {"filler": filler, "common": 0, "mine": mix(rank)}
    found = state.restore(tree)
    step = found.step if found else 0
    if set(view) != {mix(tree["mine"], step) if found else 0}:
        sys.exit(f"rank {rank} was given something torn at step {step}")
    print(f"begins: round {worker.round()} rank {rank} step {step} common {tree['common']} mine {tree['mine']}",
          flush=True)
    with worker.store() as store:
        while True:
            step += 1
            tree["common"] = mix(tree["common"], step, began)
            tree["mine"] = mix(tree["mine"], tree["common"])
            view[:] = memoryview(b"".join([mix(tree["mine"], step).to_bytes(8, "little")]) * len(view)).cast("q")
            if not state.keep(tree, step=step, wait=step % 2 == 0):
                sys.exit("nothing was kept")
            if step % 2:
                state.keep_wait()
            # Nobody is more than a save ahead. The first one says when all may go.
            if rank == 0:
                store.set(f"stop/{step}", b"stop" if os.path.exists(sys.argv[1]) else b"go")
            store.barrier(f"step/{step}", worker.world_size())
            if store.get(f"stop/{step}") == b"stop":
                break
            if rank == 0 and step % 5 == 0:
                print(f"reached: round {worker.round()} step {step}", flush=True)
            if rank == 0 and "KEPT_PAUSE" in os.environ:
                print(f"kept: round {worker.round()} step {step}", flush=True)
            time.sleep(float(os.environ.get("KEPT_PAUSE", "0.01")))
        store.barrier("end", worker.world_size())
    print(f"ends: rank {rank} step {step} common {tree['common']}", flush=True)


main()
