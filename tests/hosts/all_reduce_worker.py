"""A worker of PyTorch's launcher: it adds numbers up with the others, over gloo, and writes down when
that has worked and in which world. It fails when gloo does, and ends well when there is a file
`done`, all workers at the same step.

usage: all_reduce_worker.py FOLDER
"""
import os
import sys
import time

import torch
import torch.distributed as dist


def main(folder):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    world = torch.tensor([int.from_bytes(os.urandom(4), "little")])
    dist.broadcast(world, 0)
    path = os.path.join(folder, "stamps.%s.%d" % (os.uname().nodename, os.getpid()))
    with open(path, "w") as out:
        while True:
            done = os.path.exists(os.path.join(folder, "done"))
            total = torch.tensor([2 ** rank, int(done)])
            dist.all_reduce(total)
            if total[0] != 2 ** size - 1:
                raise ValueError("the sum is %d in a world of %d" % (total[0], size))
            print(repr(time.monotonic()), int(world), rank, size, file=out, flush=True)
            if total[1] > 0:
                break
            time.sleep(0.02)
    dist.barrier()


if __name__ == "__main__":
    main(sys.argv[1])
