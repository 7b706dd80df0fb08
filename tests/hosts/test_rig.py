#!/usr/bin/python3
"""The rig does what it says: links lose, delay, damage and break as told, clocks and limits hold,
names resolve, and nothing is left behind.

usage: test_rig.py [build/muster] [--only=TEXT]
"""
import os
import signal
import subprocess
import sys
import time

from rig import Checks, Rig, wait_until

checks = Checks()
PYTHON = sys.executable

# Answers every datagram with itself, and takes what comes over TCP and says how much it was and
# what its sum is.
PEER = """
import hashlib, socket, threading
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
udp.bind(("::", 7000))
tcp = socket.create_server(("0.0.0.0", 7000))
def echo():
    while True:
        data, peer = udp.recvfrom(65536)
        udp.sendto(data, peer)
threading.Thread(target=echo, daemon=True).start()
print("ready", flush=True)
while True:
    conn, _ = tcp.accept()
    sum, length = hashlib.sha256(), 0
    for data in iter(lambda: conn.recv(1 << 20), b""):
        sum.update(data)
        length += len(data)
    conn.sendall(("%d %s" % (length, sum.hexdigest())).encode())
    conn.close()
"""

# Datagrams one after the other, paced; prints how many came back, whether in order, and the median
# of the times that they took in ms.
ECHOES = """
import select, socket, sys, time
target, count, patience = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
s = socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
s.connect((target, 7000))
sent, took, order = {}, [], []
def take(seconds):
    while select.select([s], [], [], seconds)[0]:
        number = int(s.recv(100).split()[0])
        took.append(time.monotonic() - sent[number])
        order.append(number)
        if len(order) == count:
            break
for i in range(count):
    sent[i] = time.monotonic()
    s.send(b"%d " % i + b"x" * 40)
    take(0.0005)
if len(order) < count:
    take(patience)
took.sort()
print(len(order), int(order == sorted(order)), took[len(took) // 2] * 1000 if took else 0)
"""

SEND = """
import hashlib, os, socket, sys
data = os.urandom(int(sys.argv[2]))
s = socket.create_connection((sys.argv[1], 7000), 20)
s.sendall(data)
s.shutdown(socket.SHUT_WR)
got = s.recv(1000).decode()
print("whole" if got == "%d %s" % (len(data), hashlib.sha256(data).hexdigest()) else "damaged")
"""


def start_peer(host):
    return host.start(PYTHON, "-c", PEER).says("ready")


def echoes(host, target, count, patience=2.0):
    out = host.must_run(PYTHON, "-c", ECHOES, target, str(count), str(patience))
    count, ordered, median = out.split()
    return int(count), ordered == "1", float(median)


def send(host, target, size):
    return host.run(PYTHON, "-c", SEND, target, str(size))[1].strip()


def opens(host, target):
    """Whether it can open a connection there."""
    program = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 1)"
    return host.run(PYTHON, "-c", program, target)[0] == 0


def test_names_and_addresses():
    with Rig(3) as rig:
        a, b, c = rig.hosts
        for host in rig.hosts:
            start_peer(host)
        checks.equal(b.must_run("hostname").strip(), "node1", "a host has its name")
        checks.equal(b.must_run("hostname", "-i").strip(), "10.78.0.2", "and its name its address")
        checks.equal(echoes(c, "node0", 20)[0], 20, "another host is reached by name")
        checks.equal(echoes(a, "fd78::3", 20)[0], 20, "and by an address of version 6")
        checks.equal(echoes(a, "localhost", 20)[0], 20, "loopback is its own")
        extra = b.more_addresses(50)
        checks.equal((len(extra), send(a, extra[-1], 9)), (50, "whole"), "a host can have 50 more")
        start = time.monotonic()
        checks.equal(send(a, "node1", 64 << 20), "whole", "64 MiB arrive whole")
        checks.note("%.0f MiB/s" % (64 / (time.monotonic() - start)))


def test_links():
    with Rig(2) as rig:
        a, b = rig.hosts
        start_peer(a)
        a.link.set("in", loss=0.2)
        count = echoes(b, "node0", 1000, 0.5)[0]
        checks.ok(700 < count < 900, "a loss of 20 % loses about 200 of 1000", count)
        a.link.heal()
        checks.equal(echoes(b, "node0", 200)[:2], (200, True), "healed, it loses none")
        a.link.set(delay_ms=50)
        median = echoes(b, "node0", 50)[2]
        checks.ok(100 <= median, "50 ms each way delay an answer by 100", median)
        a.link.set(delay_ms=0)
        a.link.set("out", reorder=0.2)
        checks.equal(echoes(b, "node0", 500)[:2], (500, False), "reordering loses none")
        a.link.heal()
        a.link.set(rate=2e6)
        start = time.monotonic()
        checks.equal(send(b, "node0", 2 << 20), "whole", "a slow link delivers")
        checks.ok(time.monotonic() - start > 0.8, "and is slow", time.monotonic() - start)
        a.link.heal()
        a.link.set("in", corrupt=0.05)
        checks.equal(send(b, "node0", 4 << 20), "whole", "damage is mended by TCP's checksums")
        checks.ok(a.link.counts()["damaged"] > 10, "there was damage", a.link.counts())
        a.link.set("in", corrupt=0.05, repair=1)
        checks.equal(send(b, "node0", 4 << 20), "damaged", "unless it comes with a good checksum")


def test_cuts():
    with Rig(3) as rig:
        a, b, c = rig.hosts
        for host in rig.hosts:
            start_peer(host)
        a.link.cut("in")
        before = b.link.counts()["delivered"]
        echoes(a, "node1", 10, 0.2)
        # At least: the end of an earlier connection may be among them.
        heard = b.link.counts()["delivered"] - before
        checks.ok(heard >= 10, "cut inwards, it still sends", heard)
        checks.equal(echoes(b, "node0", 10, 0.2)[0], 0, "and hears nothing")
        a.link.heal()
        a.link.set("in", shut=1)
        checks.ok(not opens(b, "node0") and opens(a, "node1"), "shut inwards, it still opens connections")
        a.link.heal()
        checks.ok(opens(b, "node0"), "and healed, others do")
        a.link.cut("out")
        before = a.link.counts()["delivered"]
        checks.equal(echoes(b, "node0", 10, 0.2)[0], 0, "cut outwards, it does not answer")
        heard = a.link.counts()["delivered"] - before
        checks.ok(heard >= 10, "but hears", heard)
        a.link.heal()
        rig.partition([a, b], [c])
        got = [echoes(x, y, 5, 0.2)[0] for x, y in ((a, "node1"), (a, "node2"), (c, "node1"))]
        checks.equal(got, [5, 0, 0], "a partition parts the groups, and only these")
        rig.heal()
        checks.equal(echoes(c, "node1", 5, 0.5)[0], 5, "and is healed")
        a.link.unplug()
        err = a.run(PYTHON, "-c", "import socket; socket.create_connection(('node1', 7000), 5)")[2]
        checks.ok("Network is unreachable" in err, "unplugged, the network is unreachable", err)
        a.link.plug()
        checks.equal((echoes(a, "node1", 5)[0], echoes(a, "fd78::2", 5)[0]), (5, 5),
                     "plugged in again, it has its addresses again")


def test_clocks():
    show = ("import select, time\nwhile True:\n print(time.time(), time.monotonic(), flush=True)\n"
            " select.select([], [], [], 0.02)")
    with Rig(1) as rig:
        host = rig.hosts[0]
        process = host.start(PYTHON, "-c", show, clock=True, uptime_days=24.8)

        def last():
            return [float(word) for word in process.output().splitlines()[-2].split()]

        wait_until(lambda: process.output().count("\n") > 2, "the first times")
        wall, uptime = last()
        checks.ok(abs(wall - time.time()) < 60, "a clock begins with the machine's", wall)
        checks.ok(0 <= uptime - 24.8 * 86400 < 60, "a machine can have been up for long", uptime)
        process.clock.advance(days=400)
        wait_until(lambda: last()[0] > wall + 400 * 86400 - 60, "400 days under a running process")
        checks.ok(last()[1] - uptime < 60, "the time since the start goes on as ever", last())
        rig.advance(days=2, timers=True)
        wait_until(lambda: last()[1] > uptime + 2 * 86400 - 60, "two days of the other clocks")
        checks.ok(last()[0] - wall < 401 * 86400, "which leave the wall clock alone", last())
        checks.ok(abs(float(host.must_run(PYTHON, "-c", "import time; print(time.time())")) -
                      time.time()) < 60, "those without clock= have the machine's time")


def test_limits():
    with Rig(1) as rig:
        host = rig.hosts[0]
        code, _, _ = host.run(PYTHON, "-c", "x = b'x' * (200 << 20)", memory=64 << 20)
        checks.equal(code, -signal.SIGKILL, "who takes more memory than it has is killed")
        process = host.start(PYTHON, "-c", "x = b'x' * (20 << 20); input()", memory=64 << 20,
                             stdin=subprocess.PIPE)
        wait_until(lambda: process.memory_peak() > 20 << 20, "20 MiB")
        checks.ok(process.alive() and process.rss() < 64 << 20, "who takes less is not")
        code, _, err = host.run(PYTHON, "-c", "x = [open('/dev/null') for _ in range(64)]",
                                files=32)
        checks.ok(code != 0 and "Too many open files" in err, "descriptors are limited", err)
        out = host.must_run("sh", "-c", "echo $PPID")
        checks.ok(int(out) > 1, "a process has a parent", out)
        _, out, _ = host.run("sh", "-c", "echo $$; ls /proc | grep -c '^[0-9]'; hostname",
                             pid1=True)
        checks.equal(out.split()[0::2], ["1", "node0"], "pid1= is the first process, on its host")
        checks.ok(int(out.split()[1]) < 6, "and sees nobody else in /proc", out)
        process.pause()
        wait_until(lambda: open("/proc/%d/stat" % process.pid).read().split()[2] == "T", "a pause")
        process.resume()
        process.popen.stdin.close()
        checks.ok(process.wait() is not None, "a process that was paused goes on")


def test_nothing_is_left():
    if "--leave" in sys.argv:
        return
    with Rig(1) as rig:
        host = rig.hosts[0]
        host.start("setsid", "sh", "-c", "trap '' TERM; sleep 1000 & wait")
        wait_until(lambda: len(rig.processes()) >= 2, "a process that will not go")
    checks.equal(rig.processes(), [], "the end of a rig ends all on its hosts")
    checks.ok(not os.path.exists(rig.path), "and its files go")
    # Another test, which is killed in the middle: as seen from outside of its world.
    mark = "left-by-%d" % os.getpid()
    other = subprocess.Popen([PYTHON, __file__, "--leave", mark] + sys.argv[1:],
                             stdout=subprocess.PIPE, text=True)
    folder = other.stdout.readline().strip()
    marked = ["pgrep", "-f", "^sleep 10000[0-9] .*" + mark]
    checks.ok(os.path.isdir(folder), "the other test runs", folder)
    other.kill()
    other.wait()
    wait_until(lambda: subprocess.run(marked, stdout=subprocess.DEVNULL,
                                      check=False).returncode == 1,
               "kill -9 of a test ends its processes")
    other.stdout.close()
    again = subprocess.Popen([PYTHON, __file__, "--leave", mark] + sys.argv[1:],
                             stdout=subprocess.PIPE, text=True)
    second = again.stdout.readline().strip()
    checks.ok(not os.path.exists(folder), "and its files go with the next", folder)
    again.terminate()
    checks.equal(again.wait(20), 128 + signal.SIGTERM, "a test that is terminated ends")
    again.stdout.close()
    checks.ok(not os.path.exists(second), "and leaves no files", second)


def leave(mark):
    """Starts something, says where its files are, and waits to be killed."""
    rig = Rig(1)
    rig.hosts[0].start("setsid", "bash", "-c", "exec -a 'sleep 100001 %s' sleep 100001" % mark,
                       memory=64 << 20)
    print(os.path.dirname(rig.path), flush=True)
    signal.pause()


if __name__ == "__main__":
    if "--leave" in sys.argv:
        leave(sys.argv[sys.argv.index("--leave") + 1])
    checks.run_tests(globals())
    checks.done()
