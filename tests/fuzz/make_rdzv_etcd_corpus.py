#!/usr/bin/python3
"""Writes the seeds of fuzz_rdzv_etcd: states as PyTorch writes them, alone and one behind the other.
"""
import json
import os

KEY = "/torchelastic/p2p/run_x/rdzv/v_%d/rank_%d"
SETUP = json.dumps({"status": "setup"})


def joinable(version, count):
    return {"status": "joinable", "version": str(version), "participants": list(range(count))}


def frozen(version, count, confirmed):
    return dict(joinable(version, count), status="frozen",
                keep_alives=[KEY % (version, r) for r in confirmed])


def final(version, count, waiting=0):
    return dict(frozen(version, count, range(count)), status="final", num_workers_waiting=waiting)


STATES = {
    "setup": [SETUP],
    "joinable": [joinable(1, 0)],
    "joined": [joinable(12, 3)],
    "frozen": [frozen(1, 2, [])],
    "confirmed": [frozen(1, 3, [2, 0])],
    "final": [final(1, 2)],
    "waiting": [final(3, 4, 2)],
    "closed": [dict(final(1, 2), status="closed")],
    "closed-bare": [{"status": "closed"}],
    "unknown": [dict(joinable(1, 1), more={"a": [1, None, "\u00ff"]})],
    "other": [{"status": "thinking", "version": 3}],
    "spaced": ['{ "status" : "joinable" ,"version":"2","participants":[ 0 , 1 ] }'],
    "twice": ['{"status": "setup", "status": "final"}'],
    "number": ['{"status": "joinable", "version": 1, "participants": []}'],
    "zero": ['{"status": "joinable", "version": "01", "participants": []}'],
    "story": [joinable(1, 1), joinable(1, 1), frozen(1, 2, []), frozen(1, 2, []),
              final(1, 2), final(1, 2), final(1, 2, 1)],
    "late": [final(1, 2), final(1, 2), final(1, 2, 1), SETUP, joinable(2, 0), joinable(2, 0)],
    "call": [joinable(1, 1), joinable(1, 1), joinable(1, 2), joinable(1, 2), frozen(1, 3, [1])],
    "nonsense": ["[]", "{", '{"status": 7}', "null", ""],
}


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "rdzv_etcd")
    os.makedirs(here, exist_ok=True)
    for name, states in STATES.items():
        text = "\n".join(s if isinstance(s, str) else json.dumps(s) for s in states)
        with open(os.path.join(here, name), "w") as out:
            out.write(text)


if __name__ == "__main__":
    main()
