#!/usr/bin/python3
"""Local SGD: the workers train apart for some steps, then average their weights. Between machines
that are far from each other this sends a fraction of what averaging every gradient would.

    muster run --nnodes 2:4 --rdzv-endpoint HOST:29400 --rdzv-id job7 examples/local_sgd.py

After each average all workers have the same weights, and these are what is kept: a worker that is
started again, or joins, begins there. The steps since then are lost, which is the price.

usage: local_sgd.py [ROUNDS [STEPS_APART]]
"""
import sys

import torch
import torch.distributed as dist

import muster.state


def average(model, world):
    """All workers' weights become their mean."""
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter /= world


def main(rounds=20, apart=10):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    # Each worker has an optimizer of its own, with what it has learned of its own data: it is not
    # part of the state.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = muster.state.join({"model": model})
    for turn in state.steps(int(rounds)):
        for step in range(int(apart)):
            torch.manual_seed(100_000 * rank + 1000 * turn + step)  # data of its own
            inputs = torch.randn(64, 8)
            targets = inputs.sum(dim=1, keepdim=True).tanh()
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
        average(model, world)
        if rank == 0:
            print(f"round {turn + 1} of {rounds}: loss {loss.item():.4f}, {world} workers",
                  flush=True)
    dist.destroy_process_group()


main(*sys.argv[1:])
