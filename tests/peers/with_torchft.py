#!/usr/bin/python3
"""torchft: its lighthouse and Manager with our stores, and our transport for its checkpoints.

    with_torchft.py MUSTER [--short]

A replica trains, a second one comes later and takes the state from the first. Each has a store of its
own, as in torchft's jobs; the lighthouse knows neither."""
import os
import re
import subprocess
import sys
import tempfile

from torchft.coordination import LighthouseServer

from peers_lib import Checks, HERE
from programs import run_program
from torch2 import MODULE
from lib import Muster, PATIENCE, die_with_parent, muster_path

checks = Checks()


def replica(name, lighthouse, store, log):
    return subprocess.Popen(
        [sys.executable, os.path.join(HERE, "torchft_replica.py"), name, lighthouse, str(store.port),
         "20"], stdout=subprocess.PIPE, stderr=log, text=True,
        env=dict(os.environ, **MODULE), preexec_fn=die_with_parent)


def test_replicas():
    lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000)
    where = "http://127.0.0.1:" + lighthouse.address().rsplit(":", 1)[1]
    with Muster() as one_store, Muster() as other_store, tempfile.TemporaryFile("w+") as log:
        one = replica("one", where, one_store, log)
        first = []
        for line in one.stdout:  # up to its end, if it dies
            first.append(line)
            if line == "step 3 with 1\n":
                break
        checks.equal(first[-2:], ["step 2 with 1\n", "step 3 with 1\n"], "a replica alone makes steps")
        other = replica("other", where, other_store, log)
        said = [process.communicate(timeout=4 * PATIENCE)[0] for process in (one, other)]
        lighthouse.shutdown()
        log.seek(0)
        complaints = log.read()[-2000:]
    checks.ok([one.returncode, other.returncode] == [0, 0], "both end well",
              (one.returncode, other.returncode, complaints))
    for name, text in zip(("the first", "the second"), said):
        checks.ok("with 2" in text, "%s has made steps with the other" % name, text[-400:])
        found = re.search(r"weight (\d+) after (\d+) steps", text)
        checks.ok(found and found[1] == found[2],
                  "%s has the weights of all steps, its own and those before it came" % name,
                  text[-400:])


def test_transport():
    run_program(checks, "torchft, checkpoints from peers", "tests/python/torch2_checkpoint.py",
                environment=MODULE)


if __name__ == "__main__":
    assert muster_path()
    checks.run_tests(globals())
    checks.done()
