#!/usr/bin/python3
"""accelerate under `muster run`, and `accelerate launch` with muster's rendezvous, as the page says.

    with_accelerate.py MUSTER [--short]"""
from peers_lib import Checks, SHORT
from launching import Reader, command, end

checks = Checks()
WORDS = ["worker 0 of 2, sum 2", "worker 1 of 2, sum 2"]


def test_plain():
    with Reader("accelerate_train.py") as reader:
        end(checks, "a script under muster run", [reader.start(command("peers plain"))], WORDS)


def test_launch():
    if SHORT:
        return
    first = command("peers launch 0")
    with Reader("accelerate_train.py") as reader:
        agents = [reader.start(first)]
        reader.wait_for_host()
        agents.append(reader.start(first.replace("--machine_rank 0", "--machine_rank 1")))
        end(checks, "accelerate launch with a token", agents, WORDS)


checks.run_tests(globals())
checks.done()
