#!/usr/bin/python3
"""PyTorch's own store server, alone in a process: the peer that tests and benchmarks run.

Prints its port in one line once it serves, and ends when standard input ends.
"""
import datetime
import sys

import torch.distributed as dist


def main():
    store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=300), False)
    print(store.port, flush=True)
    sys.stdin.read()
    del store


main()
