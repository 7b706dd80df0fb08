#!/usr/bin/python3
"""Averaging in mixed groups: averagers of hivemind, as it comes from PyPI, and ours.

    hivemind_average.py MUSTER [--short] [--only=TEXT] [--rounds=3]

The library is beside MUSTER. Each member is a process: tests/peers/py/hivemind_member.py, or
muster_member.py. After each step the values of all members are compared with the average, computed
here."""
import concurrent.futures
import itertools
import json
import os
import sys
import tempfile

import numpy

import peers_lib
import lib
import p2pd_lib

checks = peers_lib.Checks()
ROUNDS = lib.option("rounds", 1 if peers_lib.SHORT else 3)
PYTHON = peers_lib.program("hivemind", "python")
LIBRARY = os.path.join(os.path.dirname(os.path.abspath(lib.muster_path())), "libmuster.so.0")
SHAPES = [[70001], [], [3, 5], [0], [400, 400]]
TOLERANCE = {"NONE": 1e-5, "FLOAT16": 3e-3, "MEANSTD_16BIT": 3e-3, "QUANTILE_8BIT": 4e-2, "UNIFORM_8BIT": 4e-2,
             "BLOCKWISE_8BIT": 4e-2}
TRIES = 4  # matchmaking is a race against clocks: a group may be too small
seeds = itertools.count(1)


def values(seed, shapes):
    rng = numpy.random.RandomState(seed)
    return numpy.concatenate([rng.uniform(-1, 1, shape).astype(numpy.float32).reshape(-1) for shape in shapes])


class Group:
    """Members of one prefix. A kind is "theirs" (hivemind, on its own daemon), "theirs/ours" (on ours) or
    "ours", with a mode behind a colon, and a weight behind a star: "ours:client*2"."""

    def __init__(self, folder, kinds, **config):
        self.folder, self.members, self.weights, self.kinds = folder, [], [], kinds
        self.shapes = config.setdefault("shapes", SHAPES)
        self.encoding = config.get("encoding", "NONE")
        self.log = open(os.path.join(folder, "log"), "ab")
        config = dict({"prefix": "avg%d" % next(seeds), "target": len(kinds), "members": len(kinds)}, **config)
        for kind in kinds:
            kind, _, weight = kind.partition("*")
            kind, _, mode = kind.partition(":")
            self.weights.append(0.0 if mode == "aux" else float(weight or 1))
            initial = [m.address for m in self.members if "/tcp/" in m.address][:1]
            if kind == "ours":
                argv = [sys.executable, os.path.join(peers_lib.HERE, "py", "muster_member.py"), LIBRARY]
            else:
                daemon = OURS[0] if kind == "theirs/ours" else THEIRS
                argv = [PYTHON, os.path.join(peers_lib.HERE, "py", "hivemind_member.py"), daemon]
            self.members.append(peers_lib.Peer([*argv, json.dumps(dict(config, mode=mode or None)), *initial],
                                               stderr=self.log))

    def all(self, *requests):
        """One request for each, at once."""
        with concurrent.futures.ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(lambda pair: pair[0].ask(*pair[1]), zip(self.members, requests)))

    def round(self, timeout=30.0):
        """Sets new values, and steps. Returns what all said, the average, and what each has."""
        begin = [next(seeds) for _ in self.members]
        self.all(*(("set", seed) for seed in begin))
        said = self.all(*(("step", weight, timeout) for weight in self.weights))
        paths = [os.path.join(self.folder, "values%d" % i) for i in range(len(self.members))]
        self.all(*(("save", path) for path in paths))
        mine = [values(seed, self.shapes) for seed in begin]
        total = sum(self.weights)
        mean = sum(w * v.astype(numpy.float64) for w, v in zip(self.weights, mine)) / total if total else None
        return said, mean, mine, [numpy.fromfile(path, numpy.float32) for path in paths]

    def full_round(self, what):
        """All of them in one group, which holds the average at the end."""
        for _ in range(TRIES):
            said, mean, mine, got = self.round()
            if all(s.get("members") == len(self.members) for s in said):
                break
        checks.ok(all(s.get("members") == len(self.members) for s in said), what + ": all are in one group", said)
        worst, off = 0.0, {}
        for i, (value, own) in enumerate(zip(got, mine)):
            want = own if mean is None else mean
            far = numpy.abs(value - want) if len(value) == len(want) else numpy.full(1, 9.0)
            if self.encoding == "QUANTILE_8BIT":  # its first and last of 256 buckets are wide, among hivemind's own too
                checks.ok(far.max() < 0.5, "%s: %s is not far off (%.2f)" % (what, self.kinds[i], far.max()))
                far = numpy.sort(far)[:len(far) * 99 // 100]
            worst = max(worst, float(far.max()))
            if far.max() > TOLERANCE[self.encoding]:
                wrong = numpy.flatnonzero(far > TOLERANCE[self.encoding])
                off[self.kinds[i]] = [len(wrong), int(wrong[0]), int(wrong[-1]), bool((value == own)[wrong].all())]
        checks.ok(worst <= TOLERANCE[self.encoding], "%s: all hold the average (off by %.1e)" % (what, worst), (off, said))
        checks.ok(all(s.get("local", 0) == 0 and not s.get("failed") for s in said), what + ": nothing is local", said)
        return said

    def end(self):
        for member in self.members:
            member.process.stdin.close()
        for member in self.members:
            try:
                member.process.wait(timeout=10)
            except Exception:
                member.process.kill()
                member.process.wait()
            member.process.stdout.close()
        self.log.close()


OURS = []
THEIRS = peers_lib.hivemind_daemon()


def codecs(folder):
    for encoding in ["NONE"] if peers_lib.SHORT else ["NONE", "FLOAT16", "MEANSTD_16BIT", "QUANTILE_8BIT",
                                                      "UNIFORM_8BIT"]:
        # hivemind cannot quantise a tensor without values.
        shapes = SHAPES if encoding == "NONE" else [shape for shape in SHAPES if shape != [0]]
        group = Group(folder, ["theirs", "theirs/ours", "ours", "ours*2.5"], encoding=encoding, part_bytes=50000,
                      shapes=shapes)
        for n in range(ROUNDS):
            said = group.full_round("two and two, %s, round %d" % (encoding, n))
        print("  took %.2f s for matchmaking, %.2f s to average" % (said[2].get("matchmaking", 0),
                                                                    said[2].get("reduce", 0)), flush=True)
        group.end()


def modes(folder):
    for kinds in (["theirs", "theirs:client", "ours", "ours:client*3"], ["theirs", "theirs:aux", "ours:aux", "ours*2"],
                  ["ours", "theirs:client*2"], ["theirs", "ours:client"], ["theirs*0", "ours", "ours*0", "theirs"]):
        group = Group(folder, kinds)
        for n in range(ROUNDS):
            group.full_round("%s, round %d" % (" ".join(kinds), n))
        group.end()


def classes(folder):
    for averager, gather in ("GradientAverager", None), ("TrainingStateAverager", 0):
        group = Group(folder, ["theirs*1", "theirs*1", "ours*1", "ours*1"], averager=averager, gather=gather,
                      shapes=[[300, 20], [7]])
        for n in range(ROUNDS):
            group.full_round("a %s, round %d" % (averager, n))
        group.end()


def without_target(folder):
    group = Group(folder, ["theirs", "ours", "ours"], target=None)
    for n in range(ROUNDS):
        group.full_round("a group that begins when its time has come, round %d" % n)
    group.end()


def main():
    only = lib.option("only", "")
    with tempfile.TemporaryDirectory() as folder:
        OURS.append(p2pd_lib.link_binary(folder))
        for test in [codecs] if peers_lib.SHORT else [codecs, modes, classes, without_target]:
            if only in test.__name__:
                test(folder)
    checks.done()


main()
