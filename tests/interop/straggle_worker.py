"""A rank that trains with DDP and gloo, for run_straggle.py.

usage: straggle_worker.py DIRECTORY HOW SLOW_RANK

Each step takes a tenth of a second, of which a fifth is computed, or longer on a machine with much
else to do. HOW is what makes SLOW_RANK slow: nothing, "sleep" (its data takes as long again), "hog"
(others have its CPU), or "late" (as sleep, but only until the file DIRECTORY/enough is there). All end
when DIRECTORY/end is there.
"""
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP = 0.1
COMPUTED = 0.02
HOGS = 4


def compute(seconds):
    """Uses so much CPU time, however long that takes."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(500))


def start_hogs():
    cpu = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]


def train(directory, how, slow_rank):
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    enough, end = os.path.join(directory, "enough"), os.path.join(directory, "end")
    step, rest = 0, STEP
    while True:
        slow = rank == slow_rank and (how == "sleep" or how == "late" and not os.path.exists(enough))
        began, more = time.monotonic(), max(STEP, rest) if slow else 0
        time.sleep(STEP - COMPUTED + more)
        compute(COMPUTED)
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        step += 1
        print("epoch 0 step %d loss 0.1" % step, flush=True)
        over = torch.tensor([1.0 if os.path.exists(end) else 0.0])
        dist.all_reduce(over)
        if over.item() > 0:
            return
        rest = time.monotonic() - began - more


def main():
    directory, how, slow_rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    hogs = start_hogs() if how == "hog" and dist.get_rank() == slow_rank else []
    try:
        train(directory, how, slow_rank)
    finally:
        for hog in hogs:
            hog.kill()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
