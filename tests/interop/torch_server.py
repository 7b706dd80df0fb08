#!/usr/bin/python3
"""PyTorch's own store server, alone in a process: the peer that tests and benchmarks run.

Prints its port in one line once it serves, and ends when standard input ends. --no-libuv takes the
server of PyTorch 2 that has a thread and poll(); others than --no-libuv are left to the caller.
"""
import datetime
import sys

import torch.distributed as dist


def main():
    kind = {"use_libuv": False} if "--no-libuv" in sys.argv else {}
    store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=300), False, **kind)
    print(store.port, flush=True)
    sys.stdin.read()
    del store


main()
