#!/usr/bin/env python3
"""A node of an elastic job: meets the others, works with them until the round is over, and meets
them again. Start it twice, in two terminals:

    python3 rendezvous.py
    python3 rendezvous.py

Whoever can bind the endpoint hosts the rendezvous. The endpoint and the number of nodes may be
given (`rendezvous.py node0:29400 2:4`); on several machines, each must have the job's token in the
file that MUSTER_TOKEN_FILE names (`muster keygen token FILE`).

The work here is to add up ranks in the round's store.
"""

import sys

import muster
from muster.rendezvous import Round


def work(round: Round) -> int:
    """What the nodes of a round do together."""
    round.store.add("sum", round.rank)
    round.store.barrier("added", round.world_size, timeout=60)
    total = round.store.add("sum", 0)
    # The host of the rendezvous goes when all have read.
    round.store.barrier("read", round.world_size, timeout=60)
    return total


def main(endpoint: str = "127.0.0.1:29400", nodes: str = "2") -> None:
    with muster.Rendezvous(endpoint, "example", nodes) as rdzv:
        for round in rdzv:
            host, port = round.bootstrap
            print(f"round {round.round}: rank {round.rank} of {round.world_size}")
            print(f"workers would meet at {host}:{port}")
            try:
                print(f"the ranks add up to {work(round)}", flush=True)
                return
            except muster.MusterError as error:
                # A node was lost, most likely. Say so, and try with those that are left.
                print(f"round {round.round} failed: {error}", file=sys.stderr)
                print(f"it is over: {rdzv.ended(1.0)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except muster.MusterError as problem:
        sys.exit(f"cannot meet the others: {problem}")
