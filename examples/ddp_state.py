#!/usr/bin/python3
"""A PyTorch program that survives lost nodes without a checkpoint: DistributedDataParallel on gloo,
and three lines of muster, which are marked. A node that joins gets the weights from the others.

    muster run --nnodes 2:4 --rdzv-endpoint HOST:29400 --rdzv-id job7 examples/ddp_state.py

usage: ddp_state.py [STEPS [SECONDS_A_STEP]]
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


def main(steps=200, seconds=0.0):
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    state = muster.state.join({"model": model, "optimizer": optimizer})  # 2
    print(f"rank {rank} of {world} begins at step {state.step} with weights {digest(model)} "
          f"(from {state.source})", flush=True)
    for step in range(state.step, int(steps)):
        torch.manual_seed(1000 * step + rank)  # each worker has data of its own
        inputs = torch.randn(256, 8).to(device)
        targets = inputs.sum(dim=1, keepdim=True).tanh()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        state.update()  # 3
        if rank == 0 and step % 10 == 9:
            print(f"step {step + 1} of {steps}: loss {loss.item():.4f}, {world} workers, "
                  f"weights {digest(model)}", flush=True)
        time.sleep(float(seconds))
    print(f"rank {rank} ends at step {state.step} with weights {digest(model)}", flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
