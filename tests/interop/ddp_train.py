#!/usr/bin/python3
"""A training script as users have them: DistributedDataParallel over gloo, a tiny model, a
checkpoint. It knows nothing of who launches it.

usage: ddp_train.py --steps N [--pause SECONDS] [--checkpoint FILE] [--until FILE]
"""
import argparse
import faulthandler
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0, help="of each step")
    parser.add_argument("--checkpoint", help="where to go on from, and to save every step")
    parser.add_argument("--until", help="stop early when this file is there")
    return parser.parse_args()


def load(path, model, optimizer):
    if path is None or not os.path.exists(path):
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
               path + ".part")
    os.rename(path + ".part", path)


def should_stop(args, stop):
    """Rank 0 looks, everybody hears."""
    found = args.until is not None and dist.get_rank() == 0 and os.path.exists(args.until)
    stop[0] = int(found)
    dist.broadcast(stop, 0)
    return stop.item() != 0


def main():
    args = parse()
    # Far beyond what training takes here: a worker that hangs says where.
    faulthandler.dump_traceback_later(75)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    inputs = torch.randn(48, 8)
    labels = torch.tanh(inputs.sum(1, keepdim=True))
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = load(args.checkpoint, model, optimizer)
    print("begin rank=%d world=%d step=%d" % (rank, world, step), flush=True)
    ddp = DistributedDataParallel(model)
    # One for all steps, and longer than the process group lives. A tensor that Python has dropped
    # may be freed by a thread of gloo, which needs Python's lock for it; the main thread, which has
    # the lock while it takes the group down, waits for that thread.
    stop = torch.zeros(1, dtype=torch.int64)
    while step < args.steps and not should_stop(args, stop):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(ddp(inputs[rank::world]), labels[rank::world])
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            if args.checkpoint is not None:
                save(args.checkpoint, model, optimizer, step)
            print("step %d of a world of %d" % (step, world), flush=True)
        time.sleep(args.pause)
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(inputs), labels).item()
    dist.barrier()
    print("end rank=%d world=%d step=%d loss=%s" % (rank, world, step, loss.hex()), flush=True)
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
