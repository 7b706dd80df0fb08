#!/usr/bin/env python3
"""Distributed checkpoints from peers, and torchft's transport, with PyTorch 2.x.

usage: torch2_checkpoint.py

Needs a PyTorch 2.x with the package muster beside it; what needs torchft is skipped without it. Not
part of `make test`, which has PyTorch 1.13.
"""

import datetime
import sys
import threading

import torch
import torch.distributed.checkpoint as dcp

import muster.torch


def model(fill):
    net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2))
    for parameter in net.parameters():
        torch.nn.init.constant_(parameter, fill)
    return net


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def check(condition, what):
    print(("ok   " if condition else "FAIL ") + what, flush=True)
    if not condition:
        sys.exit(1)


def test_reader():
    net = model(3.0)
    state = {"model": net.state_dict(), "step": 7, "rates": {"lr": 0.5}, "name": "run"}
    with muster.torch.share_checkpoint(state, prefix="dcp", listen="127.0.0.1:0") as shared:
        other = model(0.0)
        into = {"model": other.state_dict(), "step": 0, "rates": {"lr": 0.0}, "name": ""}
        with torch.no_grad():
            net[0].weight.fill_(9.0)  # what is shared is a copy
        reader = muster.torch.PeerReader("dcp", donors=[shared.address])
        dcp.load(into, storage_reader=reader)
        other.load_state_dict(into["model"])
        check(same(other, model(3.0)), "tensors of a checkpoint")
        check(
            (into["step"], into["rates"], into["name"]) == (7, {"lr": 0.5}, "run"), "and the rest"
        )
        dcp.load(into, checkpoint_id="dcp", storage_reader=reader)
        check(into["step"] == 7, "the id of a checkpoint is the prefix")
        try:
            dcp.load({"model": torch.nn.Linear(3, 3).state_dict()}, storage_reader=reader)
            check(False, "another model is refused")
        except BaseException as error:  # noqa: BLE001 - what PyTorch raises is no Exception
            check("weight" in str(error) or "bias" in str(error), "another model is refused")


def test_torchft():
    try:
        import torchft  # noqa: F401
    except ImportError as error:
        print(f"skip torchft is not here: {error}")
        return
    here = muster.torch.CheckpointTransport(listen="127.0.0.1:0")
    there = muster.torch.CheckpointTransport(listen="127.0.0.1:0")
    second = datetime.timedelta(seconds=20)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(there.recv_checkpoint(0, here.metadata(), 5, second))
    )
    thread.start()  # it asks before there is something
    here.send_checkpoint([1], 5, {"user": model(2.0).state_dict(), "torchft": {"step": 5}}, second)
    here.disallow_checkpoint()
    thread.join(30)
    check(len(got) == 1, "a replica gets the state")
    other = model(0.0)
    other.load_state_dict(got[0]["user"])
    check(same(other, model(2.0)) and got[0]["torchft"]["step"] == 5, "all of it")
    here.send_checkpoint([1], 6, {"user": {}, "torchft": {"step": 6}}, second)
    try:
        there.recv_checkpoint(0, here.metadata(), 5, datetime.timedelta(seconds=0.5))
        check(False, "an old step is gone")
    except muster.errors.NotFound:
        check(True, "an old step is gone")
    here.shutdown()
    there.shutdown()


if __name__ == "__main__":
    test_reader()
    test_torchft()
