#!/usr/bin/python3
"""A PyTorch program as torchrun starts it: DistributedDataParallel on gloo, a checkpoint, nothing of
muster. Start it with `muster run examples/ddp.py`, or with torchrun.

usage: ddp.py [EPOCHS [CHECKPOINT]]
"""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(epochs=5, checkpoint=None):
    dist.init_process_group("gloo")  # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = 0
    if checkpoint and os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        first = saved["epoch"]
    torch.manual_seed(rank + 1)  # each worker has data of its own
    inputs = torch.randn(256, 8)
    targets = inputs.sum(dim=1, keepdim=True)
    for epoch in range(first, int(epochs)):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.4f}, {world} workers", flush=True)
            if checkpoint:
                torch.save({"model": model.module.state_dict(), "epoch": epoch + 1},
                           checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
    dist.destroy_process_group()


main(*sys.argv[1:])
