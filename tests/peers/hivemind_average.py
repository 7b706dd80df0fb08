#!/usr/bin/python3
"""Averaging in mixed groups: averagers of hivemind, as it comes from PyPI, and ours.

    hivemind_average.py MUSTER [--short] [--only=TEXT] [--rounds=3] [--kills=4] [--seed=1]

The library is beside MUSTER. Each member is a process: tests/peers/py/hivemind_member.py, or
muster_member.py. After each step the values of all members are compared with the average, computed
here."""
import concurrent.futures
import itertools
import json
import os
import random
import sys
import tempfile
import threading

import numpy

import peers_lib
import lib
import p2pd_lib

checks = peers_lib.Checks()
ROUNDS = lib.option("rounds", 1 if peers_lib.SHORT else 3)
PYTHON = peers_lib.program("hivemind", "python")
KILLS = lib.option("kills", 1 if peers_lib.SHORT else 4)
SEED = lib.option("seed", 1)
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

    def __init__(self, folder, kinds, bits=None, **config):
        self.folder, self.members, self.weights, self.kinds = folder, [], [], kinds
        self.shapes = config.setdefault("shapes", SHAPES)
        self.encoding = config.get("encoding", "NONE")
        self.log = open(os.path.join(folder, "log"), "ab")
        config = dict({"prefix": "avg%d" % next(seeds), "target": len(kinds), "members": len(kinds)}, **config)
        self.config, self.bits = config, bits
        for i, kind in enumerate(kinds):
            weight, mode = kind.partition("*")[2], kind.partition("*")[0].partition(":")[2]
            self.weights.append(0.0 if mode == "aux" else float(weight or 1))
            self.members.append(self.start(i))

    def start(self, i):
        """The process of a member, which joins through the others."""
        kind, _, mode = self.kinds[i].partition("*")[0].partition(":")
        initial = [m.address for m in self.members if "/tcp/" in m.address and m.process.poll() is None][:1]
        if kind == "ours":
            argv = [sys.executable, os.path.join(peers_lib.HERE, "py", "muster_member.py"), LIBRARY]
        else:
            daemon = OURS[0] if kind == "theirs/ours" else THEIRS
            argv = [PYTHON, os.path.join(peers_lib.HERE, "py", "hivemind_member.py"), daemon]
        config = dict(self.config, mode=mode or None, bits=self.bits[i] if self.bits else None)
        return peers_lib.Peer([*argv, json.dumps(config), *initial], stderr=self.log, start_new_session=True)

    def kill(self, i):
        """With what it has started, by its id."""
        peers_lib.kill_all(self.members[i].process)
        self.members[i].process.stdin.close()
        self.members[i].process.stdout.close()

    def all(self, *requests):
        """One request for each, at once."""
        with concurrent.futures.ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(lambda pair: pair[0].ask(*pair[1]), zip(self.members, requests)))

    def round(self, timeout=30.0, begin=None):
        """Sets new values, and steps. Returns what all said, the average, and what each has."""
        begin = begin or [next(seeds) for _ in self.members]
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


def power(folder):
    """PowerSGD: all hold the same, of that rank; what it does not carry comes with the next rounds."""
    shapes = [[16, 24], [7], [8, 4, 3, 3]]
    group = Group(folder, ["theirs", "theirs/ours", "ours", "ours"], averager="PowerSGDGradientAverager", power=2,
                  shapes=shapes)
    begin, total, far = [next(seeds) for _ in group.members], 0, []
    for n in range(12):
        said, mean, _, got = group.round(begin=begin)
        if not all(s.get("members") == 4 for s in said):
            continue
        spread = max(float(numpy.abs(it - got[0]).max()) for it in got)
        whole = max(float(numpy.abs(it - mean)[384:391].max()) for it in got)
        checks.ok(spread < 1e-3 and whole < 1e-5, "PowerSGD, round %d: all hold the same (off by %.1e)" % (n, spread),
                  (said, [float(numpy.abs(it - got[0]).max()) for it in got], whole))
        sizes = numpy.linalg.svd(got[0][:384].reshape(16, 24), compute_uv=False)
        checks.ok(sizes[2] < 1e-4 * sizes[0], "PowerSGD, round %d: of rank 2" % n, sizes[:4])
        total = total + got[0]
        far.append(float(numpy.linalg.norm(total / (len(far) + 1) - mean)))
    checks.ok(len(far) > 6 and far[-1] < far[0] / 2, "PowerSGD: nothing is lost over the rounds", far)
    group.end()


def grid(folder):
    """Groups of two that mix: after two steps, each of four holds the average of all."""
    group = Group(folder, ["theirs", "ours", "ours", "theirs/ours"], bits=["0", "0", "1", "1"], target=2)
    begin = [next(seeds) for _ in group.members]
    group.all(*(("set", seed) for seed in begin))
    for n in range(2):
        said = group.all(*(("step", weight, 60.0) for weight in group.weights))
        checks.ok(all(s.get("members") == 2 for s in said), "groups that mix, step %d: groups of two" % n, said)
    paths = [os.path.join(folder, "values%d" % i) for i in range(4)]
    group.all(*(("save", path) for path in paths))
    mean = sum(values(seed, SHAPES).astype(numpy.float64) for seed in begin) / 4
    off = [float(numpy.abs(numpy.fromfile(path, numpy.float32) - mean).max()) for path in paths]
    checks.ok(max(off) < 1e-5, "groups that mix: all hold the average of all", off)
    group.end()


def killed(folder):
    """One of four is killed at any time in a step: the others end, with values that lie between those that all had."""
    rng = random.Random(SEED)
    group = Group(folder, ["theirs", "theirs/ours", "ours", "ours"], chunk_timeout=3.0, reduce_timeout=12.0,
                  part_bytes=20000)
    for n in range(KILLS):
        # The first has the DHT's only address that the others know.
        victim, after = rng.randrange(1, 4), rng.choice([rng.uniform(0, 1), rng.uniform(0, 6)])
        begin = [next(seeds) for _ in group.members]
        mine = [values(seed, SHAPES) for seed in begin]
        group.all(*(("set", seed) for seed in begin))
        timer = threading.Timer(after, peers_lib.kill_all, [group.members[victim].process])
        timer.start()
        said = group.all(*(("step", weight, 30.0) for weight in group.weights))
        timer.join()
        group.kill(victim)
        what = "%s is killed after %.1f s" % (group.kinds[victim], after)
        alive = [i for i in range(4) if i != victim]
        checks.ok(all("seconds" in said[i] for i in alive), what + ": the others end", said)
        low, high = numpy.min(mine, axis=0) - 1e-4, numpy.max(mine, axis=0) + 1e-4
        for i in alive:
            path = os.path.join(folder, "values%d" % i)
            group.members[i].ask("save", path)
            got = numpy.fromfile(path, numpy.float32)
            checks.ok(len(got) == len(low) and bool(((got >= low) & (got <= high)).all()),
                      what + ": %s holds averages, or its own" % group.kinds[i], said)
        group.members[victim] = group.start(victim)
        group.full_round(what + ", and another comes")
    group.end()


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
        for test in [codecs, power] if peers_lib.SHORT else [codecs, modes, classes, without_target, power, grid, killed]:
            if only in test.__name__:
                test(folder)
    checks.done()


main()
