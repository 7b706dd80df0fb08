#!/usr/bin/python3
"""States between peers of several hosts: who may load one, and whose word for it is taken.

    state_peers.py [MUSTER] [--only=NAME]

The addresses are not loopback's. A donor says who may come, or is refused; so is whoever pulls and
passes on.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile

import lib
from lib import Checks, beyond_loopback, die_with_parent, muster_path, run_muster

checks = Checks()
SCRATCH = tempfile.mkdtemp(prefix="muster-peers-")
ADDRESS = None  # set in main()
MODEL = None


def path(name):
    return os.path.join(SCRATCH, name)


def make(name, fill):
    """A safetensors file of one tensor."""
    head = b'{"w":{"dtype":"U8","shape":[3000000],"data_offsets":[0,3000000]}}'
    head += b" " * (-len(head) % 8)
    with open(path(name), "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head + fill * 3000000)
    return path(name)


def key(name):
    """A key file and the id of its peer."""
    file = path(name + ".key")
    if not os.path.exists(file):
        run_muster("peer", "id", "--identity", file, "--new")
    _, out, _ = run_muster("peer", "id", "--identity", file)
    return file, out.decode().splitlines()[0]


def content(name):
    """The last byte of what was pulled."""
    with open(path(name), "rb") as file:
        return file.read()[-1:]


def here(port=0):
    return "/ip4/%s/tcp/%d" % (ADDRESS, port)


class Serve:
    """`muster state serve`, of which stands in `said` what it said first, if it did."""

    def __init__(self, file, *options):
        self.process = subprocess.Popen(
            [muster_path(), "state", "serve", "--json"] + list(options) + [file],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=die_with_parent)
        line = self.process.stdout.readline()
        self.said = json.loads(line) if line else None
        self.address = self.said["address"] if line else None
        self.error = "" if line else self.process.stderr.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def pull(out, *words):
    code, _, err = run_muster("state", "pull", "-o", path(out), "--connect", "2", "--idle", "5",
                              "--timeout", "20", *words)
    return code, err


# --- who may come -------------------------------------------------------------------------------


def test_a_token_beside_an_identity_is_refused():
    run_muster("keygen", "token", path("job.token"))
    file, _ = key("donor")
    for flags in (["--identity", file], ["--bootstrap", "new"]):
        with Serve(MODEL, "--token-file", path("job.token"), "--listen", here(), *flags) as donor:
            checks.equal(donor.said, None, "serve %s with a token serves nobody" % flags[0])
            checks.ok("--allow PEER" in donor.error and "token" in donor.error,
                      "it says what to do", donor.error)
    code, err = pull("no.out", "--token-file", path("job.token"),
                     here(1) + "/p2p/" + key("donor")[1])
    checks.ok(code == 2 and "token" in err, "nor is a pull from peers protected by a token", err)


def test_beyond_loopback_it_is_said_who_may_come():
    file, donor_id = key("donor")
    friend, friend_id = key("friend")
    stranger, _ = key("stranger")
    with Serve(MODEL, "--identity", file, "--listen", here()) as donor:
        checks.equal(donor.said, None, "without a word on who may come it serves nobody")
        checks.ok("--allow PEER,..." in donor.error and "--insecure" in donor.error,
                  "it says what to do", donor.error)
    with Serve(MODEL, "--identity", file, "--listen", here(), "--allow", friend_id) as donor:
        checks.ok(donor.said is not None, "with --allow it does", donor.error)
        code, err = pull("friend.out", "--identity", friend, donor.address)
        checks.equal(code, 0, "who is allowed gets the state")
        code, err = pull("stranger.out", "--identity", stranger, donor.address)
        checks.ok(code != 0 and not os.path.exists(path("stranger.out")), "and nobody else", err)
        code, out, err = run_muster("state", "ls", "--identity", stranger, "--connect", "2",
                                    donor.address)
        checks.ok(code != 0 and b"model" not in out, "who does not even see it", out)
    with Serve(MODEL, "--identity", file, "--listen", here(), "--insecure") as donor:
        code, err = pull("open.out", "--identity", stranger, donor.address)
        checks.equal(code, 0, "with --insecure anybody does")
    code, err = pull("x.out", "--allow", "nobody", donor.address)
    checks.ok(code == 2 and "nobody" in err, "what is no peer is named", err)
    code, err = pull("x.out", "--allow", donor_id, "%s:1" % ADDRESS)
    checks.ok(code == 2 and "--identity" in err, "peers are allowed where there are peers", err)


def listening(process):
    """The TCP addresses that a process listens at, in hex, as the kernel has them."""
    inodes = set()
    for fd in os.listdir("/proc/%d/fd" % process.pid):
        try:
            inodes.update(re.findall(r"socket:\[(\d+)\]",
                                     os.readlink("/proc/%d/fd/%s" % (process.pid, fd))))
        except FileNotFoundError:
            pass
    with open("/proc/net/tcp", encoding="ascii") as table:
        rows = [line.split() for line in table][1:]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in inodes]


def puller_listens(out, *words):
    """Where a pull listens that was seen to be under way."""
    process = subprocess.Popen([muster_path(), "state", "pull", "--json", "-o", path(out)] +
                               list(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=die_with_parent)
    process.stdout.readline()
    found = listening(process)
    process.kill()
    process.communicate()
    return found


def test_who_passes_on_obeys_the_same_rule():
    file, _ = key("donor")
    friend, friend_id = key("friend")
    with Serve(MODEL, "--identity", file, "--listen", here(), "--insecure", "--rate",
               "500K") as donor:
        checks.equal(puller_listens("p1.out", donor.address), [],
                     "a pull beyond loopback passes nothing on by itself")
        checks.equal(len(puller_listens("p2.out", "--insecure", donor.address)), 1,
                     "with --insecure it does")
        checks.equal(len(puller_listens("p3.out", "--allow", friend_id, donor.address)), 1,
                     "with --allow it does")
        code, err = pull("p4.out", "--listen", here(), donor.address)
        checks.ok(code != 0 and "--allow PEER,..." in err, "a --listen without them is refused",
                  err)


# --- whose word is taken ------------------------------------------------------------------------


def test_the_signer_is_shown_and_can_be_pinned():
    file, donor_id = key("donor")
    other, other_id = key("other")
    stranger = make("stranger.safetensors", b"s")
    with Serve(MODEL, "--identity", file, "--listen", here(), "--insecure", "--prefix", "job",
               "--epoch", "5") as good, \
            Serve(stranger, "--identity", other, "--listen", here(), "--insecure", "--prefix",
                  "job", "--epoch", "1", "--priority", "999999") as bad:
        checks.equal(good.said.get("signer"), donor_id, "serve prints who signs")
        code, out, err = run_muster("state", "ls", "--json", good.address)
        row = json.loads(out)
        checks.equal((row.get("signer"), row["id"]), (donor_id, good.said.get("id")), "so does ls")
        code, err = pull("p.out", good.address, bad.address)
        checks.ok(code == 0 and "verified, signed by " + donor_id in err, "and pull", err)
        checks.equal(content("p.out"), b"m", "a priority of 999999 poisons nobody")
        code, err = pull("p.out", "--by-priority", good.address, bad.address)
        checks.equal((code, content("p.out")), (0, b"s"), "unless that is what was asked for")
    with Serve(MODEL, "--identity", file, "--listen", here(), "--insecure", "--prefix", "job",
               "--epoch", "5") as good, \
            Serve(stranger, "--identity", other, "--listen", here(), "--insecure", "--prefix",
                  "job", "--epoch", "999999") as bad:
        pins = (["--trust", donor_id], ["--trust", file], ["--id", good.said["id"]],
                ["--trust", other_id + "," + donor_id, "--id", good.said["id"]])
        for number, pin in enumerate(pins):
            name = "q%d.out" % number
            code, err = pull(name, *pin, good.address, bad.address)
            checks.equal((code, content(name)), (0, b"m"), "an epoch neither, with " + pin[0])
            checks.ok("ignored" in err, "and who was passed over is said", err)
        code, err = pull("r.out", "--trust", donor_id, bad.address)
        checks.ok(code == 7 and other_id in err and "trusted" in err,
                  "nothing that is trusted: said, and who has signed instead", err)
        code, err = pull("r.out", "--trust", "nobody", good.address)
        checks.ok(code == 2 and "nobody" in err, "what is neither a peer nor a key is named", err)


def test_a_donor_without_peers_signs_with_a_key_that_lasts():
    file, donor_id = key("donor")
    with Serve(MODEL, "--sign", file, "--listen", "127.0.0.1:0") as donor:
        checks.equal((donor.said["signer"], donor.said["transport"]), (donor_id, "plain"),
                     "serve --sign")
        code, err = pull("s.out", "--trust", donor_id, donor.address)
        checks.equal((code, content("s.out")), (0, b"m"), "pull --trust holds it to that")


def main():
    global ADDRESS, MODEL
    ADDRESS, _ = beyond_loopback()
    MODEL = make("model.safetensors", b"m")
    try:
        checks.run_tests(globals())
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
