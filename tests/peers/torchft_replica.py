"""A replica of a job of torchft's: its Manager and lighthouse, muster's store and checkpoint transport.

    torchft_replica.py NAME LIGHTHOUSE STORE_PORT STEPS"""
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

import muster.torch

name, lighthouse, port, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
state = {"weight": torch.zeros(1000)}


def load(given):
    state["weight"].copy_(given["weight"])


transport = muster.torch.CheckpointTransport(listen="127.0.0.1:0")
# torchft keeps the address of its manager in the store of a group, and finds it there again.
store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=60)), min_replica_size=1, load_state_dict=load,
    state_dict=lambda: {"weight": state["weight"].clone()}, use_async_quorum=False,
    replica_id=name, store_addr="127.0.0.1", store_port=port, rank=0, world_size=1,
    lighthouse_addr=lighthouse, hostname="127.0.0.1", checkpoint_transport=transport)
print("up", flush=True)
together = 0  # steps with another replica; when that has left, this one is done as well
alone = False
while together < steps and not (together > 0 and alone):
    manager.start_quorum()
    gradient = torch.ones(1000)
    manager.allreduce(gradient).wait()
    if manager.should_commit():
        state["weight"] += gradient
        alone = manager.num_participants() == 1
        together += not alone
        print("step %d with %d" % (manager.current_step(), manager.num_participants()), flush=True)
print("weight %g after %d steps" % (state["weight"][0].item(), manager.current_step()), flush=True)
manager.shutdown(wait=False)
