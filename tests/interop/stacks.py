#!/usr/bin/python3
"""`muster stacks` on real interpreters: its frames are those that Python itself sees, it harms nobody,
and it survives targets that change under its eyes.

    stacks.py [MUSTER] [--python=COMMAND]... [--looks=N] [--only=NAME]

Without --python it looks at /usr/bin/python3. A COMMAND may have words before the interpreter
("env PYTHONHOME=/x/usr /x/lib/ld.so --library-path /x/lib /x/usr/bin/python3.14"); it must become that
process and not start another one. --looks says how often a busy program is looked at (300).
"""
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

from lib import HERE, Checks, die_with_parent, muster_path, option, wait_until

TARGET = os.path.join(HERE, "stacks_target.py")
PYTHONS = [a.split("=", 1)[1] for a in sys.argv[1:] if a.startswith("--python=")] or ["/usr/bin/python3"]
LOOKS = option("looks", 300)
INNER, KEPT, FILE_MAX, NAME_MAX = 96, 128, 1023, 255
checks = Checks()


def stacks(*pids):
    """(exit code, [report], what it says on standard error)"""
    done = subprocess.run([muster_path(), "stacks", "--json", "--pid", ",".join(map(str, pids))],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


class Target:
    """A Python program that can be asked what it sees itself."""

    def __init__(self, python, mode):
        self.process = subprocess.Popen(shlex.split(python) + [TARGET, mode], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent,
                                        env=dict(os.environ, PYTHONIOENCODING="utf-8"))
        self.hello = json.loads(self.process.stdout.readline())
        self.pid = self.process.pid

    def ask(self, what):
        self.process.stdin.write(what.encode() + b"\n")
        self.process.stdin.flush()
        return {int(tid): frames for tid, frames in json.loads(self.process.stdout.readline()).items()}

    def alive(self):
        return self.process.poll() is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def utf8_cut(text, most, tail):
    data = text.encode("utf-8", "replace")
    return (data[-most:] if tail else data[:most]).decode("utf-8", "ignore")


def as_muster_says(frames):
    """What is kept of a stack, and how many frames are left out."""
    kept = frames if len(frames) <= KEPT else frames[:INNER] + frames[INNER - KEPT:]
    return ([[utf8_cut(name, NAME_MAX, False), utf8_cut(file, FILE_MAX, True), line] for name, file, line in kept],
            len(frames) - len(kept))


def as_read(thread):
    return [[f["function"], f["file"], f["line"]] for f in thread["frames"]], thread["omitted"]


# --- equal to what Python sees -------------------------------------------------------------------


def compare(target, python):
    """How many threads were blocked and equal."""
    before = target.ask("frames")
    code, reports, err = stacks(target.pid)
    after = target.ask("frames")
    checks.ok(code == 0 and len(reports) == 1, python + ": the stacks are read", (code, err))
    report = reports[0]
    threads = {t["tid"]: t for t in report["threads"]}
    equal = 0
    for tid, frames in sorted(before.items()):
        if tid == target.hello["referee"] or after.get(tid) != frames:
            continue
        where = "%s %s: a thread in %s" % (python, report["version"], frames[-1][0] if len(frames) < 4 else frames[-4][0])
        if tid not in threads:
            checks.ok(False, where + " is found", sorted(threads))
        elif as_read(threads[tid]) != as_muster_says(frames) or threads[tid]["torn"]:
            checks.ok(False, where + " has the frames that Python sees", (as_read(threads[tid]), as_muster_says(frames)))
        else:
            equal += 1
    checks.ok(report["threads"][0]["main"] and report["threads"][0]["tid"] == target.pid,
              python + ": the main thread comes first", report["threads"][0])
    checks.ok(all(not t["main"] for t in report["threads"][1:]), python + ": there is one main thread")
    checks.ok(all(t["state"] == "S" and t.get("gil") is not True for t in report["threads"]
                  if t["tid"] != target.hello["referee"]), python + ": those that wait sleep without the GIL",
              [(t["tid"], t["state"], t.get("gil")) for t in report["threads"]])
    return equal


REST = {"in_lock", "wait", "in_socket", "in_sleep", "select"}


def switches(pid):
    """What each thread of a process is doing now, and how often it has been taken off a processor."""
    seen = {}
    for tid in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/status" % (pid, tid), encoding="utf-8") as f:
            words = dict(line.rstrip("\n").split(":\t", 1) for line in f if ":\t" in line)
        seen[tid] = words["State"], words["voluntary_ctxt_switches"], words["nonvoluntary_ctxt_switches"]
    return seen


def settled(target):
    """Whether all threads are where they will stay. The frames alone do not tell: one that was interrupted
    in the last line before it waits is in the right function, and wants the GIL."""
    seen = target.ask("frames")
    seen.pop(target.hello["referee"])
    once = switches(target.pid)
    return (len(seen) == 13 and all(frames[0][0].split(".")[-1] in REST for frames in seen.values())
            and all(state.startswith("S") for state, _, _ in once.values()) and switches(target.pid) == once)


def test_frames_of_blocked_threads():
    for python in PYTHONS:
        with Target(python, "blocked") as target:
            wait_until(lambda t=target: settled(t), "all threads wait")
            checks.equal([compare(target, python) for _ in range(5)], [13] * 5, python + ": all 13 blocked threads are equal")


FAULT = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def test_frames_of_faulthandler():
    """The interpreter's own dump, which is made without its help as well."""
    for python in PYTHONS:
        with Target(python, "blocked") as target:
            wait_until(lambda t=target: settled(t), "all threads wait")
            report = stacks(target.pid)[1][0]
            target.ask("fault")
            target.process.kill()
            text = target.process.communicate()[1].decode("utf-8", "replace")
            dumped = []
            for part in text.split("\n\n"):
                lines = [FAULT.match(line) for line in part.splitlines()]
                dumped.append([(m[3], int(m[2]) if m[2] != "???" else 0) for m in lines if m][:INNER])
            for t in report["threads"]:
                if t["tid"] == target.hello["referee"]:
                    continue
                mine = [(f["function"].split(".")[-1], f["line"]) for f in t["frames"]][:INNER]
                # It writes what is not ASCII with backslashes, and cuts long names.
                mine = [(n.encode("ascii", "backslashreplace").decode(), line) for n, line in mine]
                there = any([(n.split(".")[-1], line) for n, line in d] == mine for d in dumped)
                checks.ok(there, "%s: faulthandler has thread %s" % (python, mine[-4:][:1]), (mine, dumped))


# --- while it runs -------------------------------------------------------------------------------


def known_names():
    with open(TARGET, encoding="utf-8") as f:
        text = f.read()
    lines = text.count("\n")
    names = set(re.findall(r"def (\w+)\(", text)) | {"<module>", "<lambda>"}
    return names, lines


def wrong_frames(report, names, lines):
    """Frames of the target's file that cannot be."""
    return [f for t in report["threads"] for f in t["frames"]
            if f["file"] == TARGET and (f["function"].split(".")[-1] not in names or not 0 <= f["line"] <= lines)]


def test_busy_at_random_moments():
    names, lines = known_names()
    for python in PYTHONS:
        with Target(python, "busy") as target:
            looks = torn = threads = empty = 0
            wrong = []
            while looks < LOOKS:
                code, reports, err = stacks(*[target.pid] * min(500, LOOKS - looks))
                checks.ok(code == 0, python + ": a busy program is read", (code, err)) if code != 0 else None
                looks += len(reports)
                for r in reports:
                    threads += len(r["threads"])
                    torn += sum(t["torn"] for t in r["threads"])
                    empty += not any(t["frames"] for t in r["threads"])
                    wrong += wrong_frames(r, names, lines)
            checks.ok(target.alive(), python + ": the program still runs after %d looks" % looks)
            checks.equal(wrong, [], python + ": every frame is one of the program's")
            checks.ok(empty == 0, python + ": every look saw frames", empty)
            checks.note("%s: %d looks, %d threads, %d of them torn" % (python, looks, threads, torn))


def test_gil_held_in_c():
    for python in PYTHONS:
        with Target(python, "holding") as target:
            def held(t=target):
                threads = stacks(t.pid)[1][0]["threads"]
                return (threads[0].get("gil") is True and threads[0]["state"] == "R"
                        and any(f["function"] == "holding" for f in threads[0]["frames"]))

            wait_until(held, python + ": the main thread runs, in holding(), with the GIL")
            checks.ok(True, python + ": the thread that holds the GIL in C is known")


def test_hostile_memory():
    """Processes that have garbled their own memory cost a look as any other, and bring nobody down."""
    for python in PYTHONS:
        with Target(python, "hostile") as target:
            seen = {}
            for pid in target.hello["children"]:
                code, reports, err = stacks(pid)
                seen[code] = seen.get(code, 0) + 1
                if code not in (0, 1) or len(reports) > 1:
                    checks.ok(False, python + ": a hostile process is read or refused", (code, err))
            checks.ok(seen.get(0, 0) > 0, python + ": %d hostile processes were read or refused" % sum(seen.values()), seen)
            target.process.stdin.close()
            target.process.wait()
            target.process.stdin = None


def test_more_than_is_read():
    """200 threads of 3,000 frames: the first have all of theirs, and the note says that others have not."""
    with Target(PYTHONS[0], "many") as target:
        began = time.monotonic()
        code, reports, err = stacks(target.pid)
        took = time.monotonic() - began
        checks.ok(code == 0 and "more frames than are read at once" in reports[0]["note"], "the note says so",
                  (code, err, reports and reports[0]["note"]))
        checks.ok(reports[0]["threads"][0]["frames"] and not reports[0]["threads"][0]["torn"], "the main thread is whole")
        checks.note("%d threads, %d of them whole, in %.2f s" % (
            len(reports[0]["threads"]), sum(not t["torn"] for t in reports[0]["threads"]), took))


def test_more_threads_than_are_kept():
    """The interpreter lists the newest threads first: the main thread is the last of its list."""
    for python in PYTHONS:
        with Target(python, "crowd") as target:
            code, reports, err = stacks(target.pid)
            first = (reports or [{"threads": [{"frames": [], "main": None}]}])[0]["threads"][0]
            checks.ok(code == 0 and first["main"] and "crowd" in [f["function"] for f in first["frames"]],
                      python + ": the main thread's frames are there", (code, first, err))


def test_forked_child():
    """A child has one thread, with the frames of the one that forked it."""
    for python in PYTHONS:
        with Target(python, "forked") as target:
            def waits(t=target):
                report = stacks(t.hello["child"])[1][0]
                return (len(report["threads"]) == 1 and report["threads"][0]["main"]
                        and [f["function"] for f in report["threads"][0]["frames"]] == ["in_sleep", "forked", "<module>"])

            wait_until(waits, python + ": the child's thread is found")
            checks.ok(True, python + ": a forked child is read")
            target.process.stdin.close()
            target.process.wait()
            target.process.stdin = None


def test_namespace_of_its_own():
    """A process that has other numbers for itself and its threads, as in a container."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run(unshare + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        checks.skip("this system lets us make no namespaces")
        return
    code = ("import threading, time, sys\ndef waits(): time.sleep(1000)\n"
            "threading.Thread(target=waits, daemon=True).start()\nprint(1, flush=True)\nwaits()")
    with subprocess.Popen(unshare + shlex.split(PYTHONS[0]) + ["-c", code], stdout=subprocess.PIPE,
                          preexec_fn=die_with_parent) as outer:
        outer.stdout.readline()
        with open("/proc/%d/task/%d/children" % (outer.pid, outer.pid)) as f:
            inner = int(f.read().split()[0])

        def matched():
            threads = stacks(inner)[1][0]["threads"]
            return (len(threads) == 2 and threads[0]["tid"] == inner and threads[0]["main"]
                    and all(t["tid"] >= inner and t["frames"][0]["function"] == "waits" for t in threads))

        wait_until(matched, "its threads are matched")
        checks.ok(True, "threads of another namespace are matched")
        outer.kill()


def test_targets_that_change():
    for python in PYTHONS:
        with Target(python, "changing") as target:
            seen = {0: 0, 1: 0}
            for _ in range(max(50, LOOKS // 10)):
                child = int(target.process.stdout.readline())
                code, _, err = stacks(child, target.pid)
                seen[code] = seen.get(code, 0) + 1
                if code not in (0, 1):
                    checks.ok(False, python + ": a process that changes is read or is gone", (code, err))
            checks.ok(target.alive(), python + ": the parent still runs", seen)


def test_stopped_process():
    """A process that SIGSTOP has stopped is read as any other, and stays stopped."""
    for python in PYTHONS:
        with Target(python, "blocked") as target:
            wait_until(lambda t=target: settled(t), "all threads wait")
            os.kill(target.pid, signal.SIGSTOP)
            wait_until(lambda t=target: stacks(t.pid)[1][0]["threads"][0]["state"] == "T", "it is stopped")
            code, reports, _ = stacks(target.pid)
            checks.ok(code == 0 and reports[0]["threads"][0]["frames"], python + ": a stopped process is read")
            checks.equal(reports[0]["threads"][0]["state"], "T", python + ": it stays stopped")


# --- what cannot be read -------------------------------------------------------------------------


def test_not_python():
    with contextlib.ExitStack() as stack:
        child = stack.enter_context(subprocess.Popen(["sleep", "1000"], preexec_fn=die_with_parent))
        stack.callback(child.kill)
        code, reports, _ = stacks(child.pid)
        checks.equal(code, 1, "a program that is not Python: exit code")
        checks.ok("does not run Python" in reports[0]["note"] and "sleep" in reports[0]["note"],
                  "the note says that it is not Python", reports[0]["note"])
        checks.ok(not reports[0]["python"] and reports[0]["threads"][0]["tid"] == child.pid,
                  "its thread is shown all the same", reports[0])


def test_gone():
    child = subprocess.Popen(["true"])
    child.wait()
    code, reports, err = stacks(child.pid)
    checks.ok(code == 1 and reports == [] and "there is no process %d" % child.pid in err, "a process that is gone", err)


def test_not_permitted():
    """A process of another user, as a user without rights."""
    if os.getuid() != 0:
        checks.skip("only root can become another user")
        return
    with Target(PYTHONS[0], "busy") as target:
        done = subprocess.run([muster_path(), "stacks", "--json", "--pid", str(target.pid)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, user=65534, group=65534, extra_groups=[])
        if done.returncode not in (0, 1):
            checks.skip("another user cannot run %s" % muster_path())
            return
        report = json.loads(done.stdout)
        checks.equal(done.returncode, 1, "without permission: exit code")
        checks.ok("SYS_PTRACE" in report["note"] and "another user" in report["note"],
                  "the note says what to do about it", report["note"])
        checks.ok(report["threads"] and not report["threads"][0]["frames"], "the threads are shown", report)


def test_usage():
    for words in (["--pid", "x"], ["--pid", "0"], ["--pid", "1", "more"]):
        done = subprocess.run([muster_path(), "stacks", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        checks.equal(done.returncode, 2, "muster stacks %s is wrong usage" % " ".join(words))


def test_text_for_people():
    with Target(PYTHONS[0], "blocked") as target:
        wait_until(lambda: settled(target), "all threads wait")
        text = subprocess.run([muster_path(), "stacks", "--pid", str(target.pid)], stdout=subprocess.PIPE,
                              timeout=60).stdout.decode()
        for part in ("process %d, Python 3." % target.pid, "  thread %d (" % target.pid, ", main: sleeping in ",
                     "in_sleep at %s:" % TARGET, "... ", " more frames\n", "größe at <exécuté>:4\n"):
            checks.ok(part in text, "the text has " + repr(part), text[:2000])


checks.run_tests(globals())
checks.done()
