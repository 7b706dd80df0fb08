#!/usr/bin/python3
"""Lightning under `muster run`, as the page says.

    with_lightning.py MUSTER [--short]"""
from peers_lib import Checks
from launching import Reader, command, end

checks = Checks()


def test_plain():
    with Reader("lightning_train.py") as reader:
        end(checks, "a Trainer under muster run", [reader.start(command("peers plain"))],
            ["worker %d of 2, TorchElasticEnvironment" % rank for rank in range(2)])


checks.run_tests(globals())
checks.done()
