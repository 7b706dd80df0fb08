"""Hosts for tests: several on one machine, each with a network, a name and addresses of its own, on
links that lose, delay and break; and processes on them with an aged clock, little memory or few
descriptors.

    from rig import Rig, muster_path

    with Rig(3) as rig:
        a, b, c = rig.hosts
        server = a.start(muster_path(), "serve", "--listen", "0.0.0.0:29500", clock=True)
        code, out, err = b.run(muster_path(), "kv", "--store", "tcp://node0:29500", "get", "key")
        server.clock.advance(days=400)
        a.link.set(loss=0.2, delay_ms=200)
        rig.partition([a, b], [c])

Host number i is called node<i> on all of them and has the addresses 10.78.0.<i+1> and fd78::<i+1>
(node<i>-v6) on its eth0. It is a process that sleeps in namespaces of its own (network, name,
mounts); wire.c is the network between them. Its files are in host.path, which is also where its
processes start, and which holds their TMPDIR and HOME.

The first Rig of a program puts the program into a pid namespace: when it ends, by whatever means,
nothing that it started goes on. There must be no other thread then. Who is not root gets a user
namespace as well. What the system does not allow ends the program as skipped, in words.
"""
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "interop"))
import world  # noqa: E402
from lib import PATIENCE, Checks, muster_path, option, wait_until  # noqa: E402
from world import NEWNET, NEWNS, NEWPID, NEWTIME, NEWUTS, call, skip, write  # noqa: E402

__all__ = ["HERE", "Checks", "Host", "Process", "Rig", "muster_path", "option", "skip",
           "wait_until"]

def built(name):
    """What was built of this folder, beside build/muster."""
    return os.path.join(os.path.dirname(muster_path()), "tests", "hosts", name)


# --- processes ----------------------------------------------------------------------------------


class Clock:
    """The clocks of a host, for its processes that were started with clock=True: the wall clock,
    and the clocks that count from the start of the machine, by which timers run."""

    def __init__(self, path):
        self.path = path
        self.ahead_s = self.timers_ahead_s = 0.0
        self.advance()

    def advance(self, days=0, hours=0, minutes=0, seconds=0, timers=False):
        """Moves the wall clock under the running processes; with timers=True only the others. These
        are for programs that sleep in a loop of events and are woken by the next one."""
        step = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
        if timers:
            self.timers_ahead_s += step
        else:
            self.ahead_s += step
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(fd, struct.pack("qq", round(self.ahead_s * 1e9),
                                  round(self.timers_ahead_s * 1e9)), 0)
        os.close(fd)

    def environment(self):
        return {"LD_PRELOAD": built("clock.so"), "MUSTER_TEST_CLOCK": self.path,
                "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"}


class Process:
    """A program that runs on a host. Its output, of both kinds, is in a file."""

    def __init__(self, host, popen, log, group):
        self.host = host
        self.popen = popen
        self.log = log
        self.group = group
        self.clock = host.clock

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def output(self):
        with open(self.log, "rb") as file:
            return file.read().decode(errors="replace")

    def says(self, text, patience=None):
        """Waits until the output has this text."""
        def said():
            return text in self.output() or (not self.alive() and "ended")

        try:
            got = wait_until(said, "%r in the output" % text, patience, 0.02)
        except AssertionError as error:
            raise AssertionError("%s: %s" % (error, self.output())) from None
        if got == "ended" and text not in self.output():
            raise AssertionError("it ended with %s: %s" % (self.popen.returncode, self.output()))
        return self

    def wait(self, patience=None):
        """Its exit code, as subprocess has it."""
        return self.popen.wait(PATIENCE if patience is None else patience)

    def signal(self, number):
        if self.alive():
            self.popen.send_signal(number)

    def stop(self, patience=None):
        """SIGTERM; returns the exit code, or None for one that had to be killed."""
        self.signal(signal.SIGTERM)
        try:
            return self.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self):
        self.signal(signal.SIGKILL)
        self.popen.wait()

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)

    def rss(self):
        """Bytes of memory that it holds now."""
        with open("/proc/%d/statm" % self.pid) as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def fds(self):
        return len(os.listdir("/proc/%d/fd" % self.pid))

    def memory_peak(self):
        """The most that it and its children held, in bytes; for those with memory=."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            try:
                with open(os.path.join(self.group, name)) as file:
                    return int(file.read())
            except FileNotFoundError:
                pass
        return 0


class Link:
    """The cable of a host."""

    def __init__(self, host):
        self.host = host

    def set(self, direction="both", **rules):
        """loss, corrupt, reorder: shares; delay_ms, jitter_ms; rate: bytes a second; repair=1: what
        is damaged passes for whole; shut=1: no TCP connection opens. Direction: "in", "out" or "both". What is not named stays."""
        words = ["%s=%g" % (name.replace("_ms", ""), value) for name, value in rules.items()]
        self.host.rig.command("link", self.host.number, direction, *words)

    def cut(self, direction="both"):
        """Nobody is told: packets go nowhere."""
        self.set(direction, cut=1)

    def heal(self):
        """No rule any more, and plugged in."""
        self.set(loss=0, corrupt=0, reorder=0, delay_ms=0, jitter_ms=0, rate=0, cut=0, repair=0, shut=0)
        self.plug()

    def unplug(self):
        """The interface is down: the host is told that the network is unreachable."""
        self.host.must_run("ip", "link", "set", "eth0", "down")

    def plug(self):
        self.host.must_run("ip", "link", "set", "eth0", "up")

    def counts(self):
        """Packets: sent, delivered to this host, lost and damaged on the way to it."""
        return dict(zip(("sent", "delivered", "lost", "damaged"), map(
            int, self.host.rig.command("count", self.host.number).split())))


class Router:
    """The network of a rig whose cables are the kernel's: nothing goes wrong on them, and no process
    has to carry every packet. IPv4 only."""

    def __init__(self):
        self.anchor = subprocess.Popen(
            ["unshare", "--net", "sh", "-ec",
             "ip addr add 10.78.0.254/32 dev lo; ip link set lo up; "
             "echo 1 >/proc/sys/net/ipv4/ip_forward; echo ready; exec sleep infinity"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        line = self.anchor.stdout.readline()
        if line != b"ready\n":
            skip("this system lets us make no router (%s)" % line.decode().strip())

    def run(self, script, *words):
        subprocess.run(["nsenter", "-t", str(self.anchor.pid), "-n", "sh", "-ec", script, "sh",
                        *map(str, words)], check=True, stdin=subprocess.DEVNULL)

    def plug(self, host):
        """It answers for all others when a host asks who has an address."""
        self.run('ip link add "h$1" type veth peer name eth0 netns "$2"; ip link set "h$1" up; '
                 'echo 1 >"/proc/sys/net/ipv4/conf/h$1/proxy_arp"; '
                 'echo 0 >"/proc/sys/net/ipv4/neigh/h$1/proxy_delay"', host.number, host.anchor.pid)
        self.lead(host, [host.address])

    def lead(self, host, addresses):
        self.run('link="h$1"; shift; for a; do ip route add "$a/32" dev "$link"; done', host.number,
                 *addresses)

    def end(self):
        self.anchor.kill()
        self.anchor.wait()
        self.anchor.stdout.close()


class Host:
    def __init__(self, rig, number):
        self.rig = rig
        self.number = number
        self.name = "node%d" % number
        self.address = "10.78.0.%d" % (number + 1)
        self.address6 = "fd78::%x" % (number + 1)
        self.path = os.path.join(rig.path, self.name)
        self.processes = []
        os.makedirs(os.path.join(self.path, "tmp"))
        self.clock = Clock(os.path.join(self.path, ".clock"))
        self.link = Link(self)
        script = ('hostname "$1"; mount --bind "$2" /etc/hosts; mount -t tmpfs none /dev/shm; '
                  'ip link set lo up; echo ready; exec sleep infinity')
        self.anchor = subprocess.Popen(
            ["unshare", "--net", "--uts", "--mount", "sh", "-ec", script, "sh", self.name,
             os.path.join(rig.path, "hosts")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.places = None

    def await_anchor(self):
        line = self.anchor.stdout.readline()
        if line != b"ready\n":
            skip("this system lets us make no hosts (%s)" % line.decode().strip())
        self.network = os.readlink("/proc/%d/ns/net" % self.anchor.pid)
        self.places = [(os.open("/proc/%d/ns/%s" % (self.anchor.pid, kind), os.O_RDONLY), flag)
                       for kind, flag in (("net", NEWNET), ("uts", NEWUTS), ("mnt", NEWNS))]

    def packets_sent(self):
        """On its cable."""
        with open("/proc/%d/net/dev" % self.anchor.pid) as file:
            return int(file.read().partition("eth0:")[2].split()[9])

    def configure(self, mtu):
        self.must_run("sh", "-ec", (
            "ip link set eth0 mtu %d txqueuelen 2000 up; ip addr add %s/24 dev eth0; "
            "if [ -d /proc/sys/net/ipv6 ]; then ip addr add %s/64 dev eth0 nodad; "
            "echo 1 >/proc/sys/net/ipv6/conf/eth0/keep_addr_on_down; fi") % (
                mtu, self.address, self.address6))

    def more_addresses(self, count):
        """Gives the host so many more addresses, and returns them."""
        addresses = ["10.78.0.%d" % byte for byte in self.rig.take_bytes(count)]
        if self.rig.router:
            self.rig.router.lead(self, addresses)
        for address in addresses if self.rig.wire else ():
            self.rig.command("address", self.number, address.rsplit(".", 1)[1])
        self.must_run("sh", "-ec", 'for a; do ip addr add "$a/24" dev eth0; done', "sh", *addresses)
        return addresses

    def start(self, *argv, env=None, clock=False, uptime_days=None, memory=None, files=None,
              pid1=False, cwd=None, stdin=subprocess.DEVNULL):
        """Starts a program on this host. clock: it has the host's clock, which can be moved.
        uptime_days: the machine has been up for so long, as it sees it. memory: it is killed above
        so many bytes (a control group). files: so many descriptors. pid1: it is the first process
        of a container, with a /proc of its own."""
        log = os.path.join(self.path, "log.%d" % len(self.processes))
        group = self.rig.memory_group(memory) if memory else None
        with open(log, "wb") as out:
            popen = self.spawn(argv, stdin, out, subprocess.STDOUT, env, clock, uptime_days, group,
                               files, pid1, cwd)
        process = Process(self, popen, log, group)
        self.processes.append(process)
        return process

    def run(self, *argv, input=None, patience=None, **options):
        """Runs a program to its end: (exit code, standard output, standard error). The options of
        start(). One that takes too long is killed, and its code is None."""
        options = dict(dict(env=None, clock=False, uptime_days=None, files=None, pid1=False,
                            cwd=None), **options)
        memory = options.pop("memory", None)
        popen = self.spawn(argv, subprocess.DEVNULL if input is None else subprocess.PIPE,
                           subprocess.PIPE, subprocess.PIPE,
                           group=self.rig.memory_group(memory) if memory else None, **options)
        code = None
        try:
            out, err = popen.communicate(input, PATIENCE if patience is None else patience)
            code = popen.returncode
        except subprocess.TimeoutExpired:
            popen.kill()
            out, err = popen.communicate()
        return code, out.decode(errors="replace"), err.decode(errors="replace")

    def must_run(self, *argv):
        code, out, err = self.run(*argv)
        assert code == 0, "%s: %s: %s" % (self.name, " ".join(argv), (out + err).strip())
        return out

    def spawn(self, argv, stdin, stdout, stderr, env, clock, uptime_days, group, files, pid1, cwd):
        def prepare():
            if group:
                write(os.path.join(group, "cgroup.procs"), "0")
            for place, flag in self.places:
                call("setns", place, flag)
            if pid1:
                call("unshare", NEWNS)
                call("mount", "none", "/", None, world.MS_REC | world.MS_PRIVATE, None)
                call("mount", "proc", "/proc", "proc", 0, None)
                call("mount", "none", "/dev/shm", "tmpfs", 0, None)
            if files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
            os.chdir(cwd or self.path)

        environment = dict(os.environ, TMPDIR=os.path.join(self.path, "tmp"), HOME=self.path,
                           no_proxy="*", NO_PROXY="*")
        environment.update(self.clock.environment() if clock else {})
        environment.update(env or {})
        with ForChildren(pid1, uptime_days):
            return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr,
                                    env=environment, preexec_fn=prepare)


class ForChildren:
    """Namespaces that only those get who are started inside this block: of pids, and of a machine
    that has been up for some days."""

    def __init__(self, pid1, uptime_days):
        self.pid1 = pid1
        self.uptime_days = uptime_days
        self.homes = []

    def __enter__(self):
        if self.pid1:
            self.homes.append((os.open("/proc/self/ns/pid", os.O_RDONLY), NEWPID))
            call("unshare", NEWPID)
        if self.uptime_days is not None:
            self.homes.append((os.open("/proc/self/ns/time", os.O_RDONLY), NEWTIME))
            try:
                call("unshare", NEWTIME)
            except OSError as error:
                skip("this system has no time namespaces (%s)" % error)
            for name, clock in (("monotonic", time.CLOCK_MONOTONIC),
                                ("boottime", time.CLOCK_BOOTTIME)):
                ahead = self.uptime_days * 86400 - time.clock_gettime(clock)
                write("/proc/self/timens_offsets", "%s %d 0\n" % (name, math.ceil(ahead)))

    def __exit__(self, *_):
        for home, flag in self.homes:
            call("setns", home, flag)
            os.close(home)


# --- the whole ----------------------------------------------------------------------------------


class Rig:
    """So many hosts on one network. seed: of what is random on the wire. wire=False: the cables are
    the kernel's, as fast as it is, and can be neither cut nor damaged."""

    rigs = 0

    def __init__(self, count, mtu=1500, seed=1, wire=True):
        world.enter()
        Rig.rigs += 1
        self.path = os.path.join(world.place, str(Rig.rigs))
        self.groups = 0
        self.next_byte = 100
        os.makedirs(self.path)
        names = ["127.0.0.1 localhost", "::1 localhost"]
        for i in range(count):
            names += ["10.78.0.%d node%d" % (i + 1, i), "fd78::%x node%d-v6" % (i + 1, i)]
        write(os.path.join(self.path, "hosts"), "\n".join(names) + "\n")
        self.wire = self.router = None
        self.hosts = [Host(self, i) for i in range(count)]
        try:
            for host in self.hosts:
                host.await_anchor()
            if wire:
                self.start_wire(seed)
            else:
                self.router = Router()
                for host in self.hosts:
                    self.router.plug(host)
            for host in self.hosts:
                host.configure(mtu)
        except BaseException:
            self.__exit__()
            raise

    def start_wire(self, seed):
        self.wire = subprocess.Popen(
            [built("wire"), str(seed)] + [str(host.anchor.pid) for host in self.hosts],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.wire.stdout.readline() != "ready\n":
            skip("this system lets us make no network (%s)" % self.wire.stderr.read().strip())

    def command(self, *words):
        """One command for wire.c; returns what it answers behind "ok"."""
        self.wire.stdin.write(" ".join(map(str, words)) + "\n")
        self.wire.stdin.flush()
        answer = self.wire.stdout.readline().strip()
        assert answer.startswith("ok"), "%s: %s" % (" ".join(map(str, words)), answer)
        return answer[2:].strip()

    def partition(self, *groups):
        """Hosts of different groups do not reach each other; nobody is told. Who is in no group
        reaches all."""
        for group in groups:
            for other in groups:
                for one in group if group is not other else ():
                    for two in other:
                        self.command("pair", one.number, two.number, 1)

    def heal(self):
        """All links are whole again, and all pairs."""
        self.command("clear")
        for host in self.hosts:
            host.link.plug()

    def advance(self, **how):
        """Moves the clocks of all hosts: see Clock."""
        for host in self.hosts:
            host.clock.advance(**how)

    def take_bytes(self, count):
        first, self.next_byte = self.next_byte, self.next_byte + count
        assert self.next_byte <= 255, "this network has no more addresses"
        return range(first, first + count)

    def memory_group(self, limit):
        """A control group whose processes may hold so many bytes."""
        found = world.memory_groups()
        if not found:
            skip("this system has no control groups for memory")
        root, version = found
        self.groups += 1
        path = os.path.join(root, os.path.basename(world.place), "%d.%d" % (Rig.rigs, self.groups))
        try:
            os.makedirs(path)
            if version == 2:
                for above in (root, os.path.dirname(path)):
                    write(above + "/cgroup.subtree_control", "+memory")
                write(path + "/memory.max", str(limit))
                write(path + "/memory.swap.max", "0")
            else:
                write(path + "/memory.limit_in_bytes", str(limit))
        except OSError as error:
            skip("this system lets us limit no memory (%s)" % error)
        return path

    def processes(self):
        """The pids of all that run on the hosts, the hosts' own apart."""
        networks = {host.network for host in self.hosts if host.places}
        anchors = {host.anchor.pid for host in self.hosts}
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink("/proc/%s/ns/net" % pid) in networks and int(pid) not in anchors:
                    found.append(int(pid))
            except OSError:
                pass  # it has ended
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        """Ends all that runs on the hosts, and the hosts."""
        def none_left():
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for host in self.hosts:
                for process in host.processes:
                    process.popen.poll()
            return not self.processes()

        wait_until(none_left, "the end of all processes on the hosts")
        for host in self.hosts:
            host.anchor.kill()
            host.anchor.wait()
            host.anchor.stdout.close()
            for place, _ in host.places or ():
                os.close(place)
        if self.router:
            self.router.end()
        if self.wire:
            self.wire.stdin.close()
            self.wire.wait()
            self.wire.stdout.close()
            self.wire.stderr.close()
        shutil.rmtree(self.path, ignore_errors=True)
