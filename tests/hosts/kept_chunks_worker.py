"""A worker that keeps 16 MiB at a pace, of which a part within one chunk changes with each step.

    kept_chunks_worker.py STOP
"""
import os
import sys
import time

from muster import state, worker


def main():
    rank = worker.rank()
    data = state.Array("I64", (2 << 20,))
    view = data.data.cast("q")
    tree = {"data": data}
    found = state.restore(tree)
    step = found.step if found else 0
    print(f"begins: round {worker.round()} rank {rank} step {step} common 0 mine {rank}", flush=True)
    with worker.store() as store:
        while True:
            step += 1
            view[1000 + rank] = step
            since = time.perf_counter()
            if not state.keep(tree, step=step):
                sys.exit("nothing was kept")
            print("took: %.3f ms" % ((time.perf_counter() - since) * 1e3), flush=True)
            if rank == 0:
                store.set(f"stop/{step}", b"stop" if os.path.exists(sys.argv[1]) else b"go")
            store.barrier(f"step/{step}", worker.world_size())
            if rank == 0:
                print(f"kept: round {worker.round()} step {step}", flush=True)
            if store.get(f"stop/{step}") == b"stop":
                break
            time.sleep(float(os.environ["KEPT_PAUSE"]))
        store.barrier("end", worker.world_size())
    print(f"ends: rank {rank} step {step} common 0", flush=True)


main()
