#!/usr/bin/python3
"""Mutates real conversations against live servers, inside TLS and Noise as well.

usage: fuzz_live.py MUSTER STORM [--seconds=S] [--targets=NAME,...] [--seed=N] [--client=MUSTER]
                    [--keep=DIRECTORY] [--replay=FILE]

Each target is one server, or one for each credential, for S seconds (tests/live/targets.py has the
list). An honest client talks to it all the time. A target fails when a server dies or is told of by
a sanitizer, when its memory or descriptors grow from one lap to the next, when it does not end in
order, and when the honest client is refused, answered wrongly or not in time. Then the cases before
that are in a file under --keep, as few of them as show it again; --replay says them once more.

All of it happens in a network of its own.
"""
import os
import random
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
import lib  # noqa: E402

SECONDS = lib.option("seconds", 1800.0)
SEED = lib.option("seed", random.SystemRandom().getrandbits(32))
KEEP = lib.option("keep", "fuzz-live-found")
GROWTH = 48 << 20  # bytes that a server may be larger after the last lap than after the first
SPARE = 8          # descriptors, likewise
STRANGER = "10.78.0.1"  # of the network of our own, as targets.FAR
GONE = 3           # how a storm ends that finds nobody any more
SETTLE = 30.0      # seconds for connections and sessions to end


class Honest(threading.Thread):
    """Asks, and keeps how long it took; stops at the first wrong answer."""

    def __init__(self, ask, prompt):
        super().__init__(daemon=True)
        self.ask, self.prompt = ask, prompt
        self.took, self.trouble, self.over = [], None, threading.Event()

    def run(self):
        while not self.over.wait(0.03):
            before = time.monotonic()
            try:
                self.ask()
            except Exception as error:  # whatever it is, it is what an honest client met
                self.trouble = "the honest client: %r" % error
                return
            self.took.append(time.monotonic() - before)
            if self.took[-1] > self.prompt:
                self.trouble = "the honest client waited for %.1f s" % self.took[-1]
                return

    def stop(self):
        self.over.set()
        self.join(90)

    def text(self):
        took = sorted(self.took) or [0.0]
        return "honest client: %d times, ms p50 %.1f p99 %.1f max %.1f" % (
            len(self.took), *(1000 * took[int(q * (len(took) - 1))] for q in (0.5, 0.99, 1)))


class Storm:
    """The driver at one server."""

    def __init__(self, path, world, live, conversations, seed, seconds, replay=None):
        self.recent = os.path.join(world.scratch, live.name + ".cases")
        argv = ["nice", path, "--seed", str(seed), "--seconds", str(int(seconds)), "--out",
                self.recent, "--token", world.token, "--cert", world.cert, "--key", world.key,
                "--slots", str(live.slots), "--from", STRANGER]
        for way in live.ways:
            argv += ["--way", way]
        argv += ["--replay", replay] if replay else [conversations]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True,
                                        preexec_fn=lib.die_with_parent)
        self.numbers = {}

    def over(self):
        return self.process.poll() is not None

    def finish(self):
        """Ends it; what it counted."""
        if not self.over():
            self.process.terminate()
        words = self.process.communicate(timeout=60)[0].split()
        if self.process.returncode not in (0, GONE):
            raise AssertionError("storm ended with %d" % self.process.returncode)
        self.numbers = dict(zip(words[::2], map(int, words[1::2])))
        return self.numbers


def settle(live):
    """Until its descriptors are as few as at the beginning; (bytes, descriptors) then."""
    end = time.monotonic() + SETTLE
    while live.descriptors() > live.before + SPARE and time.monotonic() < end:
        time.sleep(0.1)
    live.clean()
    return live.memory(), live.descriptors()


def watch(lives, storms):
    """Until the storms are over; what went wrong, or None."""
    while not all(s.over() for s in storms):
        time.sleep(0.1)
        for live in lives:
            trouble = live.trouble() or live.client.trouble
            if trouble:
                return live, trouble
    return next(((live, live.trouble() or live.client.trouble) for live in lives
                 if live.trouble() or live.client.trouble), None)


def grown(first, last):
    if last[0] > first[0] + GROWTH:
        return "its memory grew from %d to %d MiB" % (first[0] >> 20, last[0] >> 20)
    if last[1] > first[1] + SPARE:
        return "its descriptors grew from %d to %d" % (first[1], last[1])
    return None


class Target:
    def __init__(self, name, start, programs):
        self.name, self.begin = name, start
        self.server, self.client, self.storm = programs

    def open(self, scratch):
        import targets
        self.world = targets.World(scratch, self.server, self.client)
        self.lives, said = self.begin(self.world)
        import record
        self.path = os.path.join(scratch, "conversations")
        self.count = record.write(self.path, said)
        for live in self.lives:
            live.honest()
            live.before = live.descriptors()
            live.client = Honest(live.honest, targets.PROMPT)
            live.client.start()

    def close(self):
        for live in self.lives:
            for one in [live] + getattr(live, "companions", []):
                one.kill()

    def lap(self, seed, seconds):
        storms = [Storm(self.storm, self.world, live, self.path, seed + i, seconds)
                  for i, live in enumerate(self.lives)]
        found = watch(self.lives, storms)
        for storm in storms:
            for key, value in storm.finish().items():
                self.numbers[key] = self.numbers.get(key, 0) + value
        if found:
            return self.lives.index(found[0]), found[1], storms[self.lives.index(found[0])].recent
        return None

    def run(self, seed):
        """(what went wrong or None, the file of cases or None)"""
        self.numbers, laps = {}, []
        for lap, share in enumerate((0.2, 0.8)):
            found = self.lap(seed + 1000 * lap, max(1, share * SECONDS))
            if found:
                return found
            laps.append([settle(live) for live in self.lives])
        for index, live in enumerate(self.lives):
            live.client.stop()
            trouble = live.client.trouble or grown(laps[0][index], laps[1][index]) or live.stop()
            if trouble:
                return index, trouble, None
        self.laps = laps
        return None

    def text(self):
        n = self.numbers
        text = "%s: clean, %d cases, %.0f a second, %d connections (of those sealed %d%% came " \
            "in; %d%% were answered), %d conversations" % (
                self.name, n["cases"], n["cases"] / max(n["ms"] / 1000 / len(self.lives), 0.1),
                n["connections"], 100 * n["ready"] // max(n["sealed"], 1),
                100 * n["answered"] // max(n["connections"], 1), self.count)
        for index, live in enumerate(self.lives):
            (m0, d0), (m1, d1) = self.laps[0][index], self.laps[1][index]
            text += "\n    %s: memory %d to %d MiB, descriptors %d to %d; %s" % (
                live.name, m0 >> 20, m1 >> 20, d0, d1, live.client.text())
        return text


def replay(target, path, index):
    """Whether the cases of the file show it again: what went wrong."""
    with lib.Scratch() as scratch:
        target.open(scratch)
        try:
            live = target.lives[index]
            storm = Storm(target.storm, target.world, live, None, 0, 0, replay=path)
            found = watch([live], [storm])
            storm.finish()
            time.sleep(0.2)
            live.client.stop()
            return (found and found[1]) or live.trouble() or live.client.trouble or live.stop()
        finally:
            target.close()


def narrow(target, path, index):
    """As few of the cases as still show it, by halves."""
    with open(path) as file:
        cases = ["case " + text for text in file.read().split("case ")[1:]]
    for _ in range(12):
        half = len(cases) // 2
        for part in (cases[half:], cases[:half]):
            if not part:
                continue
            with open(path + ".part", "w") as file:
                file.write("".join(part))
            if replay(target, path + ".part", index):
                cases = part
                break
        else:
            break
    with open(path, "w") as file:
        file.write("# target %s server %d\n" % (target.name, index) + "".join(cases))
    if os.path.exists(path + ".part"):
        os.unlink(path + ".part")
    return len(cases)


def keep(target, found, seed):
    """Writes down what a failure leaves, and says where."""
    index, trouble, cases = found
    folder = os.path.join(KEEP, "%s-%d" % (target.name, seed))
    os.makedirs(folder, exist_ok=True)
    live = target.lives[index]
    print("%s: FAILED, %s: %s" % (target.name, live.name, trouble), flush=True)
    shutil.copy(live.log_path, os.path.join(folder, "server.log"))
    shutil.copy(target.path, os.path.join(folder, "conversations"))
    if cases and os.path.exists(cases):
        shutil.copy(cases, os.path.join(folder, "cases"))
        count = narrow(target, os.path.join(folder, "cases"), index)
        print("    %d cases: --replay=%s" % (count, os.path.join(folder, "cases")), flush=True)
    print("    see %s" % folder, flush=True)


def fuzz(target):
    with lib.Scratch() as scratch:
        target.open(scratch)
        try:
            found = target.run(SEED)
            if not found:
                print(target.text(), flush=True)
                return True
            target.close()
            keep(target, found, SEED)
            return False
        finally:
            target.close()


def main():
    lib.beyond_loopback()
    import targets
    words = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    server, storm = map(os.path.abspath, words[:2])
    programs = (server, os.path.abspath(lib.option("client", server)), storm)
    names = [n for n in lib.option("targets", "").split(",") if n] or list(targets.TARGETS)
    again = lib.option("replay", "")
    if again:
        with open(again) as file:
            _, _, name, _, index = file.readline().split()
        found = replay(Target(name, targets.TARGETS[name], programs), os.path.abspath(again),
                       int(index))
        print("%s: %s" % (name, found or "nothing happens"))
        return 1 if found else 0
    print("seed %d, %g s each, %s" % (SEED, SECONDS, "sanitized" if lib.is_sanitized()
                                      else "without a sanitizer"), flush=True)
    bad = [n for n in names if not fuzz(Target(n, targets.TARGETS[n], programs))]
    print("%d targets clean, %d not%s" % (len(names) - len(bad), len(bad),
                                          ": " + " ".join(bad) if bad else ""), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
