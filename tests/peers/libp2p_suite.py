"""What is tested with a host of another libp2p: go_libp2p.py and rust_libp2p.py run it.

Theirs is a program that takes requests (tests/peers/go/gopeer, tests/peers/rust); ours are `muster
peer`, `muster p2pd` and peerload. In each test both dial and both listen."""
import asyncio
import json
import os
import tempfile

import lib
from lib import muster_path, option, run_muster
from p2pd_lib import CONNECT, Daemon, Failure, data, from_base58, link_binary, maddr
from peers_lib import SHORT, Checks, Peer

checks = Checks()
BYTES = option("bytes", (16 << 20) if SHORT else (1 << 30))
STREAMS = option("streams", 200 if SHORT else 1000)
PEERLOAD = os.path.join(os.path.dirname(muster_path()), "bench", "peerload")
ECHO, EARLY, ABORT = "/muster/echo/1.0.0", "/muster/early/1.0.0", "/muster/abort/1.0.0"
SIGNED = BURSTS = True
STRANGER = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


def serve(*options):
    return Peer([muster_path(), "peer", "serve", *options])


def peerload(*argv):
    done = lib.subprocess.run([PEERLOAD, *argv], stdout=lib.subprocess.PIPE, stderr=lib.subprocess.PIPE,
                              timeout=1200, preexec_fn=lib.die_with_parent)
    said = json.loads(done.stdout.decode().splitlines()[-1]) if done.stdout else {}
    return done.returncode, said, done.stderr.decode()[-500:]


def good(said, what):
    return checks.ok("error" not in said, what, said)


async def ask(peer, *request):
    """While our own loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(None, peer.ask, *request)


def stop(*peers):
    for peer in peers:
        peer.stop()


def rate(size, said):
    if said.get("seconds"):
        checks.note("%.0f MiB/s" % (size / said["seconds"] / (1 << 20)))


# --- identify, ping, names ------------------------------------------------------------------------

def test_identify(theirs):
    """Who each is, with a signed record; a push when a handler is added."""
    ours, other = serve("--listen", "/ip4/127.0.0.1/tcp/0,/ip6/::1/tcp/0"), theirs()
    said = other.ask("identify", ours.address)
    checks.ok(said.get("agent", "").startswith("muster/"), "they hear who we are", said)
    checks.ok("yamux" in said.get("muxer", "yamux") and "noise" in said.get("security", "noise"),
              "over Noise and yamux", said)
    checks.ok({"/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0", "/ipfs/kad/1.0.0",
               "/muster/echo/1.0.0"} <= set(said.get("protocols", [])), "and what we speak", said)
    where = ours.address.rsplit("/p2p/", 1)[0]
    checks.ok(where in said.get("addresses", []), "and where we listen", said)
    if SIGNED:
        checks.ok(where in said.get("certified", []), "which they find signed by us", said)
    good(other.ask("ping", ours.address), "they ping us")
    second = ours.line()
    checks.ok(second.startswith("/ip6/::1/"), "we listen on IPv6", second)
    stop(other)
    other = theirs()
    good(other.ask("ping", second), "they ping us over IPv6")
    said = other.ask("open", second, "/nobody/knows/this")
    checks.ok("error" in said, "they are told that we do not know a name", said)
    good(other.ask("ping", second), "and go on")
    stop(other, ours)


def test_ping(theirs):
    other = theirs()
    code, out, err = run_muster("peer", "ping", other.address, "--count", "3", "--json")
    checks.equal((code, [json.loads(line)["seq"] for line in out.decode().splitlines()]), (0, [1, 2, 3]),
                 "we ping them " + err)
    code, _, err = run_muster("peer", "ping", other.address.replace(other.id, STRANGER))
    checks.ok(code == 4 and "not 12D3" in err, "another peer than was meant is refused", err)
    code, _, err = run_muster("peer", "call", other.address, "no::Such.method", "x")
    checks.ok(code != 0 and "no::Such.method" in err, "we are told that they do not know a name", err)
    stop(other)


def test_keys(theirs):
    """RSA, ECDSA and Ed25519 of theirs are accepted; secp256k1 is refused in words."""
    ours = serve()
    for kind in "ed25519", "rsa", "ecdsa", "secp256k1":
        other = theirs("-key=" + kind)
        said, (code, _, err) = other.ask("ping", ours.address), run_muster("peer", "ping", other.address)
        if kind == "secp256k1":
            checks.ok("error" in said, "secp256k1: they cannot ping us", said)
            checks.ok(code == 4 and "secp256k1" in err, "secp256k1: we say why we cannot", err)
        else:
            good(said, kind + ": they ping us")
            checks.equal((code, err), (0, ""), kind + ": we ping them")
        stop(other)
    stop(ours)
    other = theirs()
    with tempfile.TemporaryDirectory() as folder:
        key = os.path.join(folder, "key")
        run_muster("peer", "id", "--new", key, "--type", "rsa")
        ours = serve("--identity", key)
        good(other.ask("identify", ours.address), "our RSA key: they dial")
        stop(ours)
    code, said, err = peerload("echo", other.address, "--rsa")
    checks.equal(code, 0, "our RSA key: we dial %s %s" % (said, err))
    stop(other)


# --- streams ----------------------------------------------------------------------------------------

def test_bytes(theirs):
    """There and back on one stream, checked byte for byte, and one way; each dials."""
    ours, other = Peer([PEERLOAD, "serve"]), theirs()
    for what in "echo", "sink":
        said = other.ask(what, ours.address, str(BYTES))
        good(said, "they dial: %s %d MiB" % (what, BYTES >> 20))
        rate(BYTES, said)
        code, said, err = peerload(what, other.address, "--bytes", str(BYTES))
        checks.equal((code, err), (0, ""), "we dial: %s %d MiB" % (what, BYTES >> 20))
        rate(BYTES, said)
    stop(other)
    ours.process.kill()
    ours.process.wait()


def test_many(theirs):
    ours, other = Peer([PEERLOAD, "serve"]), theirs()
    good(other.ask("streams", ours.address, str(STREAMS), "10000"), "they open %d streams at once" % STREAMS)
    if BURSTS:
        code, said, err = peerload("echo", other.address, "--streams", str(STREAMS), "--bytes", "10000")
        checks.equal((code, err), (0, ""), "we open %d streams at once %s" % (STREAMS, said))
    checks.equal(held(other, STREAMS), STREAMS, "%d streams of ours are open together" % STREAMS)
    said = other.ask("streams", ours.address, "1500", "10")
    checks.ok("error" in said, "beyond 1,024 their streams are reset", said)
    good(other.ask("echo", ours.address, "100000"), "and the connection goes on")
    good(other.ask("reset", ours.address), "they reset, and are reset")
    code, said, err = peerload("reset", other.address)
    checks.equal((code, err), (0, ""), "we reset, and are reset")
    stop(other)
    ours.process.kill()
    ours.process.wait()


async def hold_streams(other, count):
    """Through a daemon of ours: opens streams one after the other, and then uses all of them. How many echo; the
    others are refused, or are at their end at once."""
    async def first(reader, writer):
        writer.write(b"x")
        return await reader.read(1) == b"x"

    async def echo(reader, writer):
        try:
            writer.write(b"x" * 10000)
            writer.write_eof()
            return len(await reader.read(-1)) == 10000
        except ConnectionError:
            return False

    with tempfile.TemporaryDirectory() as folder:
        daemon = await Daemon(link_binary(folder)).start()
        keeper, raw, held = await daemon.client(), from_base58(other.id), []
        await daemon.request(CONNECT, data(1, raw) + data(2, maddr(other.address)))
        for _ in range(count):
            try:
                stream = (await daemon.stream(raw, ECHO))[:2]
                if await first(*stream):
                    held.append(stream)
                else:
                    stream[1].close()
            except Failure as error:
                checks.note(str(error))
                break
        echoed = sum(await asyncio.gather(*(echo(*stream) for stream in held)))
        for _, writer in held:
            writer.close()
        reader, writer, _ = await daemon.stream(raw, ECHO)
        checks.ok(await echo(reader, writer), "when they are closed, there is another stream")
        writer.close()
        await keeper.close()
        await daemon.process.wait()
        return echoed


def held(other, count):
    return asyncio.run(asyncio.wait_for(hold_streams(other, count), 300))


def test_their_limit(theirs):
    """Streams beyond what they allow one peer."""
    other = theirs("-few")
    echoed = held(other, 1000)
    checks.ok(echoed < 1000, "of 1,000 streams they allow us %d" % echoed)
    stop(other)


async def half_closes(theirs):
    """Through a daemon of ours: whoever ends first hears the other out."""
    async def early(reader, writer, _info):
        writer.write(b"first")
        writer.write_eof()
        heard.set_result(len(await reader.read(-1)))

    heard = asyncio.get_running_loop().create_future()
    with tempfile.TemporaryDirectory() as folder:
        daemon, other = await Daemon(link_binary(folder)).start(), theirs()
        keeper = await daemon.client()
        raw = from_base58(other.id)
        await daemon.request(CONNECT, data(1, raw) + data(2, maddr(other.address)))
        reader, writer, _ = await daemon.stream(raw, EARLY)
        checks.equal(await reader.read(-1), b"first", "they end first")
        writer.write(b"x" * 300000)
        writer.write_eof()
        checks.equal((await ask(other, "heard")).get("bytes"), 300000, "and hear us out")
        writer.close()
        reader, writer, _ = await daemon.stream(raw, ABORT)
        writer.write(b"x")
        checks.equal(await reader.read(-1), b"", "a stream that they reset is at its end for a client")
        writer.close()
        try:
            await daemon.stream(raw, "/nobody/knows/this")
            checks.ok(False, "a name that they do not know")
        except Failure as error:
            checks.ok("negotiate" in str(error), "a name that they do not know is refused in words", error)
        await daemon.serve(early, EARLY)
        good(await ask(other, "early", daemon.name, "200000"), "we end first")
        checks.equal(await asyncio.wait_for(heard, lib.PATIENCE), 200000, "and hear them out")
        await keeper.close()
        await daemon.process.wait()
        stop(other)


def test_half_closes(theirs):
    asyncio.run(asyncio.wait_for(half_closes(theirs), 120))


def test_pushes(theirs):
    """What changes is told to those who are connected."""
    async def both():
        with tempfile.TemporaryDirectory() as folder:
            daemon, other = await Daemon(link_binary(folder)).start(), theirs()
            keeper, loop = await daemon.client(), asyncio.get_running_loop()
            where = "/ip4/127.0.0.1/tcp/%d/p2p/%s" % (
                int.from_bytes(daemon.addrs[0][6:8], "big"), daemon.name)
            await ask(other, "identify", where)
            await daemon.handle("/unix/tmp/nobody", "/new/name")
            end = loop.time() + lib.PATIENCE
            while True:
                said = await ask(other, "identify", where)
                if "/new/name" in said.get("protocols", []) or loop.time() > end:
                    break
                await asyncio.sleep(0.02)
            checks.ok("/new/name" in said.get("protocols", []), "they hear of a new handler of ours", said)
            await keeper.close()
            await daemon.process.wait()
            stop(other)
    asyncio.run(asyncio.wait_for(both(), 120))


def test_their_push(theirs):
    """A peer that nobody could dial begins to listen, and tells us: others find it through us then."""
    ours, other = serve(), theirs("-listen=", "-kad=server")
    good(other.ask("identify", ours.address), "one that listens nowhere meets us")
    call = "peer", "call", other.id, "no::Such.method", "x", "--bootstrap", ours.address
    unknown = "no address of that peer"
    checks.ok(unknown in run_muster(*call)[2], "nobody reaches it by its id")
    good(other.ask("listen", "/ip4/127.0.0.1/tcp/0"), "it begins to listen")
    said = lib.wait_until(lambda: [e for e in [run_muster(*call)[2]] if unknown not in e],
                          "it is found through us", patience=60, step=0.5)[0]
    # go-libp2p says that it has no such method, rust-libp2p closes the stream.
    checks.ok("does not serve no::Such.method" in said or "no::Such.method: closed" in said,
              "it is found through us, which knows the address from its push", said)
    stop(other, ours)


# --- other transports -------------------------------------------------------------------------------

def test_quic(theirs):
    """An address that we cannot dial is refused in words; among others it is passed over."""
    quic = "/ip4/127.0.0.1/udp/4001/quic-v1"
    for argv in (["ping", quic + "/p2p/" + STRANGER], ["serve", "--listen", quic],
                 ["call", quic + "/p2p/" + STRANGER, "a::B.c", "x"],
                 ["serve", "--bootstrap", quic + "/p2p/" + STRANGER]):
        code, _, err = run_muster("peer", *argv)
        checks.ok(code not in (0, None) and "QUIC" in err and "TCP" in err,
                  "%s %s: QUIC is refused in words" % (argv[0], argv[1]), err)
    other, ours = theirs("-all"), serve()
    good(other.ask("ping", ours.address), "one that listens with every transport meets us")
    said = other.ask("addresses").get("addresses", [])
    tcp = next((a for a in said if a.endswith(tuple("0123456789")) and "/tcp/" in a), "")
    if len(said) == 1:
        checks.note("it has no other transport than TCP")
    code, out, err = run_muster("peer", "ping", tcp + "/p2p/" + other.id)
    checks.equal((code, err), (0, ""), "we meet one that listens with every transport")
    stop(ours)
    knows = serve()
    good(other.ask("ping", knows.address), "it is known to one of ours")
    code, out, err = run_muster("peer", "call", other.id, "no::Such.method", "x", "--bootstrap", knows.address)
    checks.ok("no::Such.method" in err and "reach" not in err.split(";")[0], "and is found through it", err)
    stop(knows, other)


# --- finding peers, and relays ----------------------------------------------------------------------

def test_kad(theirs):
    """Each looks for a peer that only the other knows of, by its bare id."""
    for mode in "server", "client":
        ours, other = serve(), theirs("-kad=" + mode)
        sought = serve("--bootstrap", ours.address)
        lib.wait_until(lambda: run_muster("peer", "call", sought.id, "muster::Echo.echo", "found", "--bootstrap",
                                          ours.address)[:2] == (0, b"found\n"), "a peer is known")
        other.ask("identify", ours.address)
        said = lib.wait_until(lambda: [s for s in [other.ask("find", sought.id)] if s.get("addresses")],
                              "%s: they find a peer through us" % mode, patience=30, step=0.2)
        checks.ok(any(a in sought.address for a in said[0]["addresses"]),
                  "%s: they find a peer through us" % mode, said)
        stop(sought, other, ours)
    other = theirs("-kad=server")
    sought = serve("--bootstrap", other.address)
    lib.wait_until(lambda: run_muster("peer", "call", sought.id, "muster::Echo.echo", "found", "--bootstrap",
                                      other.address)[:2] == (0, b"found\n"),
                   "we find a peer through them", patience=60)
    checks.ok(True, "we find a peer through them")
    stop(sought, other)


def test_our_relay(theirs):
    """They wait behind a relay of ours: others of theirs and ours reach them."""
    relay, hidden, other = serve("--relay"), theirs("-listen="), theirs()
    said = hidden.ask("reserve", relay.address)
    if good(said, "they get a place at our relay"):
        checks.ok(said.get("voucher", True), "with a voucher that they believe", said)
        good(other.ask("ping", said["address"]), "they reach each other through it")
        good(other.ask("echo", said["address"], "1000000"), "and send a megabyte")
        code, _, err = run_muster("peer", "ping", said["address"])
        checks.equal((code, err), (0, ""), "we reach them through it")
    stop(hidden, other, relay)


def test_their_relay(theirs):
    """We wait behind a relay of theirs."""
    relay, other = theirs("-relay"), theirs()
    hidden = serve("--via", relay.address)
    address = relay.address + "/p2p-circuit/p2p/" + hidden.id
    lib.wait_until(lambda: run_muster("peer", "ping", address, "--count", "1")[0] == 0,
                   "ours is reached through their relay", patience=30, step=0.1)
    good(other.ask("ping", address), "they reach us through it")
    good(other.ask("echo", address, "100000"), "and send some")
    code, out, err = run_muster("peer", "call", address, "muster::Echo.echo", "hello")
    checks.equal((code, out, err), (0, b"hello\n", ""), "we call each other through it")
    stop(hidden, relay, other)


def test_relay_limits(theirs):
    """A circuit ends when it has carried what a relay allows, and the next one begins."""
    allowed = "20000"
    relay, hidden, other = serve("--relay", "--relay-bytes", allowed), theirs("-listen="), theirs()
    said = hidden.ask("reserve", relay.address)
    if good(said, "they get a place at a relay of ours that allows little"):
        circuit = said["address"]
        checks.equal(said.get("limit_bytes", int(allowed)), int(allowed), "and are told how much")
        said = other.ask("echo", circuit, "100000")
        checks.ok("error" in said, "what is too much is cut off", said)
        # Theirs hears of the end in its time.
        lib.wait_until(lambda: "error" not in other.ask("echo", circuit, "1000"), "they reach each other again", step=0.05)
        checks.ok(True, "and then they reach each other again")
    stop(hidden, other, relay)
    relay = theirs("-relay", "-relay-bytes=" + allowed)
    hidden = serve("--via", relay.address)
    circuit = relay.address + "/p2p-circuit/p2p/" + hidden.id
    call = "peer", "call", circuit, "muster::Echo.echo"
    lib.wait_until(lambda: run_muster(*call, "hello")[0] == 0, "ours is reached through their relay", step=0.1)
    code, _, err = run_muster(*call, "x" * 100_000)
    checks.ok(code not in (0, None) and "Echo.echo" in err, "a relay of theirs cuts off what is too much", (code, err))
    checks.equal(run_muster(*call, "hello")[:2], (0, b"hello\n"), "and then we reach each other again")
    stop(hidden, relay)


def run(theirs, signed=True, bursts=True):
    """signed: whether they read records that are signed as the specification says; bursts: whether they
    take many streams that are opened in one moment."""
    global SIGNED, BURSTS
    SIGNED, BURSTS = signed, bursts
    lib.raise_descriptor_limit()
    checks.run_tests(globals(), theirs)
    checks.done()
