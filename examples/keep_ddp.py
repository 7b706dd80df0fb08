#!/usr/bin/python3
"""A PyTorch program that loses a step or two when a worker crashes, not minutes: DistributedDataParallel
on gloo, whose weights and optimizer the agent keeps in its memory. The lines of muster are marked.

    muster run --keep-memory auto --max-restarts 3 --nproc-per-node 2 examples/keep_ddp.py

usage: keep_ddp.py [STEPS [EVERY [SECONDS_A_STEP]]]
"""
import hashlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import muster.state  # 1


def digest(model):
    """What the weights are, in eight letters: the same on all ranks, or something is wrong."""
    words = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(words).hexdigest()[:8]


def main(steps=200, every=5, seconds=0.0):
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = {"model": model, "optimizer": optimizer}
    kept = muster.state.restore(state)  # 2: None if nothing was kept; then read your checkpoint
    first = kept.step if kept else 0
    print(f"rank {rank} of {world} begins at step {first} with weights {digest(model)}", flush=True)
    for step in range(first, int(steps)):
        torch.manual_seed(1000 * step + rank)  # each worker has data of its own
        inputs = torch.randn(256, 8).to(device)
        targets = inputs.sum(dim=1, keepdim=True).tanh()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if (step + 1) % int(every) == 0:
            muster.state.keep(state, step=step + 1, replicated=True)  # 3
            if rank == 0:
                print(f"step {step + 1} of {steps}: loss {loss.item():.4f}, weights {digest(model)}",
                      flush=True)
        time.sleep(float(seconds))
    print(f"rank {rank} ends at step {int(steps)} with weights {digest(model)}", flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
