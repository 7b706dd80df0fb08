#!/usr/bin/python3
"""A group of RPC workers that meets through PyTorch's own store, whose server wakes nobody that
waits for a key when compare_set makes it.

    rpc_group.py PROGRAM
"""
import subprocess
import sys

import lib

TIMED_OUT = -10004


def main():
    checks = lib.Checks()
    with lib.TorchServer() as server:
        done = subprocess.run([sys.argv[1], "tcp://%s:%d" % (lib.HOST, server.port)],
                              capture_output=True, timeout=100, check=False, text=True)
    said = {}
    for line in done.stdout.splitlines():
        word, status, text = (line + " ").split(" ", 2)
        said.setdefault(word, []).append((int(status), text))
    checks.equal(done.returncode, 0, "the program ends well")
    checks.equal([status for status, _ in said.get("join", [])], [0] * 3, "all three have joined")
    alone = said.get("alone", [(0, "")])[0]
    checks.equal(alone[0], TIMED_OUT, "one alone does not leave")
    checks.ok("w0 w1" in alone[1], "and it names who is missing", alone[1])
    checks.equal([status for status, _ in said.get("leave", [])], [0] * 3, "all three have left")
    checks.equal(said.get("keys", [(-1, "")])[0][0], 0, "nothing is left in the store")
    checks.done()


main()
