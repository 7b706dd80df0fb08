"""Nodes of a rendezvous as child processes: `muster rdzv join --json`, and what they say."""
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

from lib import HOST, PATIENCE, die_with_parent, muster_path


class Node:
    """One `muster rdzv join`. Its lines are read as they come, each with the time it came at."""

    def __init__(self, endpoint, run_id, nnodes, *args, config="", name=None, backend="muster"):
        items = [item for item in (config, "name=" + name if name else "") if item]
        self.name = name
        self.argv = [muster_path(), "rdzv", "join", "--json", "--rdzv-backend", backend,
                     "--rdzv-endpoint", endpoint, "--rdzv-id", run_id, "--nnodes", str(nnodes)]
        self.argv += list(args)
        if items:
            self.argv += ["--rdzv-conf", ",".join(items)]
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        preexec_fn=die_with_parent)
        self.events = queue.Queue()
        self.said = []
        self.complaint = ""
        self.readers = [threading.Thread(target=self.read, daemon=True),
                        threading.Thread(target=self.read_errors, daemon=True)]
        for reader in self.readers:
            reader.start()

    def read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            event["at"] = time.monotonic()
            self.said.append(event)
            self.events.put(event)
        self.events.put(None)

    def read_errors(self):
        self.complaint = self.process.stderr.read().decode(errors="replace")

    def next(self, *kinds, patience=None):
        """The next event, which must be of one of these kinds if any are named."""
        try:
            event = self.events.get(timeout=PATIENCE if patience is None else patience)
        except queue.Empty:
            raise AssertionError("%s: nothing came where %s was awaited; said before: %r"
                                 % (self.name, " or ".join(kinds), self.said[-3:])) from None
        if event is None:
            self.process.wait(PATIENCE)
            raise AssertionError("%s ended with %r where %s was awaited: %s"
                                 % (self.name, self.process.returncode, " or ".join(kinds),
                                    self.complaint))
        if kinds and event["event"] not in kinds:
            raise AssertionError("%s said %r where %s was awaited" % (self.name, event,
                                                                      " or ".join(kinds)))
        return event

    def until(self, kind, patience=None):
        """Skips events until one of this kind comes."""
        while True:
            event = self.next(patience=patience)
            if event["event"] == kind:
                return event

    def signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def wait(self, patience=None):
        """Its exit code."""
        code = self.process.wait(PATIENCE if patience is None else patience)
        for reader in self.readers:
            reader.join(PATIENCE)
        return code

    def stop(self):
        """SIGTERM; its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()


class ForkedNode:
    """A node of PyTorch's in a process of its own, forked so that PyTorch is loaded once. What it
    does is in live(), of those who are one; what it saw it says with say()."""

    patience = PATIENCE

    def __init__(self):
        self.close_wanted = False
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            try:
                die_with_parent()
                signal.signal(signal.SIGUSR1, self.on_close_wanted)
                self.out = os.fdopen(writer, "w", buffering=1)
                self.live()
            except BaseException as error:  # whatever it is, the test wants to know
                self.say("error", what=type(error).__name__, text=str(error)[:200])
            os._exit(0)
        os.close(writer)
        self.events, self.said = queue.Queue(), []
        self.lines = os.fdopen(reader)
        threading.Thread(target=self.read, daemon=True).start()

    # In the child.

    def on_close_wanted(self, *_):
        self.close_wanted = True

    def say(self, event, **more):
        print(json.dumps(dict(more, event=event)), file=self.out, flush=True)

    # In the test.

    def read(self):
        for line in self.lines:
            event = json.loads(line)
            self.said.append(event)
            self.events.put(event)
        self.events.put(None)

    def until(self, kind, patience=None):
        while True:
            try:
                event = self.events.get(timeout=self.patience if patience is None else patience)
            except queue.Empty:
                event = None
            if event is None:
                raise AssertionError("PyTorch's node did not say %r; it said %r"
                                     % (kind, self.said[-4:]))
            if event["event"] == kind:
                return event

    def kill(self, number=signal.SIGKILL):
        os.kill(self.pid, number)

    def stop(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)

    def __exit__(self, *_):
        self.stop()


class Fleet:
    """Several nodes; all of them go when the test does."""

    def __init__(self, endpoint, run_id, nnodes, **options):
        self.endpoint = endpoint
        self.run_id = run_id
        self.nnodes = nnodes
        self.options = options
        self.nodes = {}

    def add(self, name, *args, **more):
        options = dict(self.options, **more)
        nnodes = options.pop("nnodes", self.nnodes)
        args += tuple(options.pop("args", ()))
        self.nodes[name] = Node(self.endpoint, self.run_id, nnodes, *args, name=name, **options)
        return self.nodes[name]

    def assigned(self, names=None):
        """Awaits an assignment of each; returns them by name."""
        return {name: self.nodes[name].until("assigned") for name in names or self.nodes}

    def world(self, names=None):
        """Awaits the round that all of these are in, and nobody else; returns their assignments by
        name. On a busy machine some begin without the last, who is let in after them: all must
        join again by themselves."""
        names = list(names or self.nodes)
        got = self.assigned(names)
        while True:
            last = max(a["round"] for a in got.values())
            behind = [name for name in names if got[name]["round"] < last]
            if not behind and any(a["world_size"] != len(names) for a in got.values()):
                behind = names
            if not behind:
                return got
            for name in behind:
                got[name] = self.nodes[name].until("assigned")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in self.nodes.values():
            node.__exit__()


def endpoint_of(server):
    return "%s:%d" % (HOST, server.port)


def agree(assignments):
    """Whether these are of one world: '' or what is wrong."""
    values = list(assignments.values())
    world = len(values)
    if sorted(a["rank"] for a in values) != list(range(world)):
        return "ranks %r" % sorted(a["rank"] for a in values)
    for key in ("round", "world_size", "members", "store"):
        if any(a[key] != values[0][key] for a in values):
            return "%s differs: %r" % (key, [a[key] for a in values])
    if values[0]["world_size"] != world:
        return "a world of %r for %d nodes" % (values[0]["world_size"], world)
    for name, a in assignments.items():
        if a["members"] and a["members"][a["rank"]]["name"] != name:
            return "%s is not where its rank says: %r" % (name, a["members"])
    return ""
