"""What the benchmarks share: servers under test, each on the server's core, and the report."""
import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SERVER_CORE, CLIENT_CORE = 0, 1
HOST = "127.0.0.1"
PATIENCE = 30


def die_with_parent():
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def on_server_core():
    die_with_parent()
    if os.cpu_count() > 1:
        os.sched_setaffinity(0, {SERVER_CORE})


def free_port():
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]


# --- servers ------------------------------------------------------------------------------------


class Server:
    """A process on the server's core. Subclasses say how it starts and how to ask it something."""

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self.process.pid

    def private_kib(self):
        """User-space memory: what only this process has written to."""
        total = 0
        with open("/proc/%d/smaps_rollup" % self.pid) as file:
            for line in file:
                if line.startswith("Private_Dirty:"):
                    total += int(line.split()[1])
        return total


class Muster(Server):
    name = "muster"
    proto = "torch1"
    binary = None

    def __init__(self, *args):
        self.scratch = tempfile.mkdtemp(prefix="muster-bench-")
        port_file = os.path.join(self.scratch, "port")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [self.binary, "serve", "--listen", HOST + ":0", "--port-file", port_file] + list(args),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=on_server_core)
        while True:
            try:
                with open(port_file) as file:
                    self.port = int(file.read().strip().rsplit(":", 1)[-1])
                break
            except (FileNotFoundError, ValueError):
                if self.process.poll() is not None:
                    sys.exit("bench: muster serve ended with %s" % self.process.returncode)
                if time.monotonic() - self.started > PATIENCE:
                    sys.exit("bench: muster serve did not write its port file")
                time.sleep(0.0002)
        self.served = time.monotonic()

    def stop(self):
        super().stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def ask(self):
        with socket.create_connection((HOST, self.port)) as s:
            s.sendall(b"\4" + bytes(8))
            assert s.recv(1) == b"\0"


class MusterNew(Muster):
    """The same server, asked in PyTorch's second generation."""

    name = "muster_gen2"
    proto = "torch2"


class Torch(Server):
    name = "torch"
    proto = "torch1"

    def __init__(self):
        self.process = subprocess.Popen(
            ["/usr/bin/python3", os.path.join(ROOT, "tests", "interop", "torch_server.py")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=on_server_core)
        line = self.process.stdout.readline()
        if not line.strip().isdigit():
            sys.exit("bench: PyTorch's server did not start (python3-torch is needed)")
        self.port = int(line)


class Redis(Server):
    name = "redis"
    proto = "resp"

    def __init__(self):
        self.port = free_port()
        self.scratch = tempfile.mkdtemp(prefix="muster-bench-")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", HOST, "--save", "",
             "--appendonly", "no",
             "--maxclients", "15000", "--dir", self.scratch],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=on_server_core)
        while True:
            try:
                self.ask()
                break
            except OSError:
                if time.monotonic() - self.started > PATIENCE:
                    sys.exit("bench: redis-server did not start")
                time.sleep(0.0002)
        self.served = time.monotonic()

    def stop(self):
        super().stop()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def ask(self):
        with socket.create_connection((HOST, self.port)) as s:
            s.sendall(b"PING\r\n")
            assert s.recv(7) == b"+PONG\r\n"


# --- the wire itself ----------------------------------------------------------------------------


def iperf(seconds):
    """GiB/s of one stream over loopback."""
    port = free_port()
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", HOST, "-p", str(port)],
                              stdout=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        for _ in range(200):
            done = subprocess.run(["iperf3", "-J", "-c", HOST, "-p", str(port), "-t",
                                   str(max(1, round(seconds)))], stdout=subprocess.PIPE, text=True,
                                  timeout=60)
            found = json.loads(done.stdout)
            if "error" not in found:
                return found["end"]["sum_received"]["bits_per_second"] / 8 / (1 << 30)
            time.sleep(0.02)
    finally:
        server.kill()
        server.wait()
    raise RuntimeError("iperf3: " + found["error"])


# --- the report ---------------------------------------------------------------------------------


class Report:
    def __init__(self):
        self.rows = []

    def line(self, name, value, unit):
        print("%s %s %s" % (name, ("%.3f" % value) if abs(value) < 100 else ("%.0f" % value),
                            unit), flush=True)

    def samples(self, name, values, unit):
        """Median and spread; returns the median."""
        median = statistics.median(values)
        self.line(name, median, unit)
        if len(values) > 1:
            self.line(name + ".min", min(values), unit)
            self.line(name + ".max", max(values), unit)
        return median

    def ratio(self, name, ratios, target=None, at_most=False):
        """The median of the ratios of pairs. Without a target it is there to be read beside one."""
        median = statistics.median(ratios)
        self.line(name, median, "ratio")
        self.verdict(name, median, target, at_most, "x",
                     "%.2f to %.2f" % (min(ratios), max(ratios)))
        return median

    def verdict(self, name, value, target, at_most, unit, note=""):
        if target is None:
            self.rows.append((name, value, "-", unit, "-", note))
            return
        met = value <= target if at_most else value >= target
        self.rows.append((name, value, ("<= " if at_most else ">= ") + "%g" % target, unit,
                          "yes" if met else "NO", note))

    def table(self):
        form = "%-44s %12s %10s %-6s %-4s %s"
        lines = [form % ("figure", "value", "target", "unit", "met", "spread")]
        for name, value, target, unit, met, note in self.rows:
            lines.append(form % (name, "%.2f" % value, target, unit, met, note))
        return "\n".join(lines)


def interleave(things, rounds):
    """Each thing once a round; every second round backwards."""
    for number in range(rounds):
        yield from (things if number % 2 == 0 else list(reversed(things)))


# --- rounds of a rendezvous ---------------------------------------------------------------------


def read_all(fd, count, deadline):
    """So many bytes, or None if they do not come in time."""
    got = b""
    while len(got) < count:
        if not select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]:
            return None
        got += os.read(fd, 65536)
    return got


def read_lines(fd, count, deadline):
    got = b""
    while got.count(b"\n") < count:
        if not select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]:
            return None
        got += os.read(fd, 65536)
    return got.decode().splitlines()


def forked_round(nodes, patience, run_node):
    """Seconds until the last of so many nodes of PyTorch's, each a process, had its rank; None if
    they never came that far. run_node(ready, start, done), three pipes: says that it is
    ready, waits for the start, and writes its rank and a line's end."""
    (ready_r, ready_w), (start_r, start_w), (done_r, done_w) = os.pipe(), os.pipe(), os.pipe()
    children = []
    try:
        for _ in range(nodes):
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                try:
                    run_node(ready_w, start_r, done_w)
                    select.select([], [], [], patience)  # its keep-alives go on
                finally:
                    os._exit(1)
            children.append(pid)
        if read_all(ready_r, nodes, time.monotonic() + patience) is None:
            raise RuntimeError("PyTorch's nodes did not connect")
        begun = time.monotonic()
        os.write(start_w, b"s" * nodes)
        lines = read_lines(done_r, nodes, begun + patience)
        took = time.monotonic() - begun
    finally:
        for pid in children:
            os.kill(pid, 9)
        for pid in children:
            os.waitpid(pid, 0)
        for fd in (ready_r, ready_w, start_r, start_w, done_r, done_w):
            os.close(fd)
    if lines is None:
        return None
    if sorted(int(line.split()[0]) for line in lines) != list(range(nodes)):
        raise RuntimeError("PyTorch's ranks are not 0 to n-1")
    return took


def our_round(binary, backend, nodes, patience, *more):
    """The figures of `muster bench rdzv`, by name."""
    done = subprocess.run([binary, "bench", "rdzv", "--nodes", str(nodes), "--backend", backend,
                           "--timeout", str(patience), *more],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=die_with_parent, timeout=2 * patience)
    if done.returncode != 0:
        raise RuntimeError("muster bench rdzv, %d nodes of %s: %s" % (nodes, backend, done.stderr))
    figures = {}
    for line in done.stdout.splitlines():
        name, value, _ = line.split()
        figures[name.split(".")[-1]] = float(value)
    return figures
