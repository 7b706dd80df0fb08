#!/usr/bin/python3
"""Runs what docs/averaging.md tells its readers to run on several hosts: the commands, the script
as it stands, and peers behind a NAT that average through a relay.

    docs_average.py [MUSTER] [--only=TEXT]
"""
import json
import os
import re
import struct

from docs_site import MODULE, PATIENCE, PYTHON, Site, block, checks, commands, fill, unrun
from docs_swarm import dialled, hide_behind_nat
from rig import Rig, option, wait_until

PAGE = "docs/averaging.md"
# What the reader's script has around the page's lines: something to average, and a look at it.
BEFORE = """
import array, sys
model = [array.array("f", [float(sys.argv[1])] * 1000)]
"""
AFTER = """
print("held:", model[0][0], model[0][999], flush=True)
"""


def write_file(host, name, value):
    head = json.dumps({"w": {"dtype": "F32", "shape": [256], "data_offsets": [0, 1024]}})
    with open(os.path.join(host.path, name), "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head.encode() + struct.pack("<f", value) * 256)


def read_file(host, name):
    with open(os.path.join(host.path, name), "rb") as file:
        return struct.unpack("<256f", file.read()[-1024:])


def test_command():
    with Rig(3) as rig:
        site = Site(rig)
        a, b, c = rig.hosts
        first, second, watch = commands(PAGE, "hosts average")
        write_file(a, "a.safetensors", 1)
        write_file(b, "b.safetensors", 5)
        one = site.start(a, "exec " + first)
        address = dialled(one, a)
        watching = site.start(c, "exec " + fill(watch, {"MULTIADDR": address}))
        wait_until(lambda: re.search(r"run7\.0b: 1 looks for a group; in [\d.]+ s it is led by 12D3Koo\w+",
                                     watching.output()), "who looks: " + watching.output(), PATIENCE)
        checks.ok(True, "a third machine sees who looks for a group")
        site.run(b, fill(second, {"MULTIADDR": address}), "the second member, on another machine")
        checks.equal(one.wait(PATIENCE), 0, "the first ends as well")
        checks.equal([{*read_file(a, "a.safetensors")}, {*read_file(b, "b.safetensors")}], [{3.0}] * 2,
                     "both have the average")
        checks.ok(watching.popen.poll() is None, "who watches goes on", watching.output())
        watching.stop()
        process = site.start(b, "exec muster average --prefix run7 --bootstrap new --listen "
                             "/ip4/0.0.0.0/tcp/0 b.safetensors")
        checks.ok(process.wait(PATIENCE) != 0 and "--allow" in process.output() and
                  "--insecure" in process.output(), "without a list it is refused", process.output())


def script(site, host, number, text):
    site.write(host, "average.py", BEFORE + text + AFTER)
    return site.start(host, "exec %s average.py %d" % (PYTHON, number), MUSTER_INSECURE="1", **MODULE)


def check_ended(processes, held, what):
    for process in processes:
        code = process.wait(PATIENCE)
        checks.ok(code == 0 and "held: %s %s" % (held, held) in process.output(), what, (code, process.output()))


def test_script():
    with Rig(4) as rig:
        site = Site(rig)
        boot = dialled(site.serve(rig.hosts[0], "muster dht serve --listen /ip4/0.0.0.0/tcp/4001",
                                  "joined", "the first peer"), rig.hosts[0])
        there = re.search(r"/ip4/10\.0\.0\.1/\S+(?=\")", block(PAGE, "hosts averager").text())[0]
        # However late one begins here, the others wait for it.
        text = block(PAGE, "hosts averager").text().replace(there, boot).replace(
            "target_size=4", "target_size=4, min_size=4")
        members = [script(site, host, n, text) for n, host in enumerate(rig.hosts)]
        check_ended(members, 1.5, "the script of the page, at a member")
        checks.ok(all("4 members, 0 of 1 parts are still ours" in it.output() for it in members),
                  "and says so", [it.output() for it in members])


def check_relay(wire):
    """Two hosts that nobody can dial, and one that everybody can."""
    with Rig(4) as rig:
        site = Site(rig)
        a, b, c, d = rig.hosts
        boot = dialled(site.serve(a, "muster dht serve --listen /ip4/0.0.0.0/tcp/4001", "joined",
                                  "relay: the first peer"), a)
        text = block(PAGE, "hosts relayed").text().replace("BOOT", repr(boot)).replace("native", wire)
        members = []
        for n, host in enumerate((b, c, d)):
            if host is not d:
                hide_behind_nat(host)
            here = "10.99.0.1" if host is not d else host.address
            members.append(script(site, host, n, text.replace("0.0.0.0", here)))
        check_ended(members, 1.0, "relay: a member on the wire %s" % wire)


def test_relay_native():
    check_relay("native")


def test_relay_hivemind():
    check_relay("hivemind")


if __name__ == "__main__":
    checks.run_tests(globals())
    if not option("only", ""):
        checks.equal(list(unrun("docs_average")), [], "every command for several hosts was run")
    checks.done()
