#!/usr/bin/python3
"""The daemon against its protocol, from outside.

    p2pd_conformance.py [MUSTER] [--daemons=50] [--streams=200]

Every request and every error; streams both ways, given up at every stage; replicas of a handler in turn;
many of everything at once; what is started, printed and left behind. Persistent connections have a
program of their own, p2pd_calls.py.
"""
import asyncio
import os
import signal
import tempfile

import lib
from lib import option
from p2pd_lib import (CONNECT, CONNMANAGER, DHT, DISCONNECT, IDENTIFY, LIST_PEERS, PUBSUB,
                      REMOVE_STREAM_HANDLER, STRANGER, STREAM_HANDLER, STREAM_OPEN, Daemon,
                      DaemonChecks, Failure, FakePeer, data, echo, echo_stream, fields, framed, link_binary,
                      maddr, number, read_message, uvarint)

checks = DaemonChecks()
MUSTER = lib.muster_path()
RSA = b"\x12\x20" + bytes(32)  # an id that is a hash


# --- the process ----------------------------------------------------------------------------------

async def starts(p2pd):
    d = await Daemon(p2pd, "-autoRelay=0", "-autonat=1", "-b=0", "-connManager=1",
                     "-idleTimeout=30.0s", "-natPortMap=1", "-relay=1", "-relayHopLimit=0",
                     "-tls=1", "-persistentConnMaxMsgSize=4194304", "-dhtServer=1").start()
    checks.equal([line.split(":")[0] for line in d.lines],
                 ["Control socket", "Peer ID", "Peer Addrs"], "hivemind's flags: says who it is")
    path = d.control[len("/unix"):]
    checks.ok(os.path.exists(path), "the socket is there")
    d.process.send_signal(signal.SIGINT)
    answer = fields((await d.request(IDENTIFY))[4][0])
    checks.equal((answer[1][0], len(answer[2])), (d.id, 1), "an interrupt is ignored")
    d.process.terminate()
    checks.equal(await d.process.wait(), 128 + signal.SIGTERM, "a signal ends it, and is told")
    checks.ok(not os.path.exists(path), "the socket is gone")

    d = await Daemon(MUSTER, "-k", listen="/ip4/127.0.0.1/tcp/0").start(wait=False)
    checks.equal(await d.process.wait(), 2, "muster with flags of p2pd is no verb")
    p = await asyncio.create_subprocess_exec(
        MUSTER, "p2pd", "--listen", "/ip4/127.0.0.1/tcp/0", "-hostAddrs=/ip4/127.0.0.1/tcp/0",
        "--q=false", "-idleTimeout", "50ms", stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT)
    out, _ = await p.communicate()
    checks.ok(b"Control socket: /ip4/127.0.0.1/tcp/" in out, "muster p2pd, clients by TCP")
    checks.equal(p.returncode, 0, "nobody comes to stay: it ends")
    for flags, word, code in (
            (["-nonsense=1"], b"not defined", 2), (["-b=maybe"], b"invalid value", 2),
            (["-idleTimeout=5x"], b"invalid value", 2), (["-listen"], b"needs an argument", 2),
            (["-noise=0"], b"Noise", 2), (["-muxer=mplex"], b"yamux", 2), (["-b=1"], b"-b", 2),
            (["-id=/nowhere/key"], b"/nowhere/key", 1), (["-listen=/tmp/x"], b"-listen", 1),
            (["-hostAddrs=/ip4/127.0.0.1/udp/0/quic-v1"], b"-hostAddrs", 1),
            (["-b=1", "-bootstrapPeers=/ip4/127.0.0.1/tcp/1/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7"
              "Gpv85r9F3V3fyKSUKPH5"], b"failed to connect to bootstrap peers", 1)):
        with tempfile.TemporaryDirectory() as folder:
            p = await asyncio.create_subprocess_exec(
                p2pd, *([] if "listen" in flags[0] else [f"-listen=/unix{folder}/c"]), *flags,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
            out, _ = await p.communicate()
            checks.equal((p.returncode, word in out), (code, True), f"{flags[0]}: refused, with why")


async def keeps_strangers_out(p2pd):
    """Who may command it, and for whom it works."""
    d = await Daemon(p2pd).start()
    path = d.control[len("/unix"):]
    checks.equal(os.stat(path).st_mode & 0o077, 0, "its socket is its owner's, whatever the umask is")
    await d.stop()
    for addr in "/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0", "/dns4/example.invalid/tcp/0":
        p = await asyncio.create_subprocess_exec(
            p2pd, f"-listen={addr}", "-idleTimeout=50ms", stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT)
        out, _ = await p.communicate()
        checks.equal((p.returncode, b"-remoteControl" in out), (2, True),
                     f"clients of other hosts at {addr}: refused, with the flag for it")
    p = await asyncio.create_subprocess_exec(
        p2pd, "-listen=/ip4/0.0.0.0/tcp/0", "-remoteControl", "-idleTimeout=50ms",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    out, _ = await p.communicate()
    checks.equal((p.returncode, b"warning" in out, b"Control socket" in out), (0, True, True),
                 "with it they come, and it is warned of")


async def relays_when_told(p2pd):
    hop = b"/libp2p/circuit/relay/0.2.0/hop"
    asker = await Daemon(p2pd).start()
    keeper = await asker.client()
    for flags, relays in (((), False), (("-relay=1",), True), (("-relayService=1",), True),
                          (("-relay=1", "-relayService=0"), False), (("-relay=0", "-relayService=1"), False)):
        d = await Daemon(p2pd, *flags).start()
        await asker.connect(d)
        try:
            await asker.request(STREAM_OPEN, data(1, d.id) + data(2, hop))
            found = True
        except Failure as e:
            found = "protocol" not in str(e)
        checks.equal(found, relays, f"{' '.join(flags) or 'no flags'}: a relay for strangers, or not")
        await d.stop()
    await keeper.close()
    await asker.process.wait()


async def ends_with_its_clients(p2pd):
    d = await Daemon(p2pd).start()
    a, b = await d.client(), await d.client()
    await a.close()

    async def knows():
        return (await d.stats())["persistent"] == 1

    await checks.until(knows, "one client of two is gone: it stays")
    await b.close()
    checks.equal(await asyncio.wait_for(d.process.wait(), lib.PATIENCE), 0, "the last is gone: it ends")


async def waits_for_clients(p2pd):
    """The second was started later and has ended since: the first would have, by now."""
    kept = await Daemon(p2pd, "-idleTimeout=1s").start()
    client = await kept.client()
    other = await Daemon(p2pd, "-idleTimeout=1s").start()
    checks.equal(await asyncio.wait_for(other.process.wait(), lib.PATIENCE), 0, "nobody comes to stay: it ends")
    await client.add("echo", echo)
    checks.ok(client.alive, "somebody has: it stays")
    await client.close()
    await kept.process.wait()


async def addresses(p2pd):
    hosts = "/ip4/127.0.0.1/udp/0/quic-v1,/ip4/127.0.0.1/tcp/0,/ip6/::1/tcp/0"
    d = await Daemon(p2pd).start(host=hosts)
    checks.equal([a[:1] for a in d.addrs], [b"\x04", b"\x29"], "listens where it can of what it is given")
    twice = await Daemon(p2pd, listen=d.control).start(wait=False)
    out = await asyncio.wait_for(twice.process.stdout.read(), lib.PATIENCE)
    checks.equal((await twice.process.wait(), d.control.encode() in out), (1, True),
                 "a socket that is in use: refused, with why")
    checks.equal(fields((await d.request(IDENTIFY))[4][0])[1][0], d.id, "and it is still whose it was")
    await d.stop()
    d = await Daemon(p2pd, "-announceAddrs=/ip4/192.0.2.1/tcp/99,/ip4/192.0.2.2/tcp/98").start()
    checks.equal(d.addrs, [maddr("/ip4/192.0.2.1/tcp/99"), maddr("/ip4/192.0.2.2/tcp/98")],
                 "is where it is said to be")
    await d.stop()


async def key_files(p2pd, folder):
    for kind in "rsa", "ed25519":
        path = os.path.join(folder, kind)
        code, out, _ = lib.run_muster("peer", "id", "--new", "--type", kind, path)
        d = await Daemon(p2pd, f"-id={path}").start()
        checks.equal((code, d.name), (0, out.split()[0].decode()), f"the identity of an {kind} key file")
        await d.stop()


# --- requests -------------------------------------------------------------------------------------

async def raw(d, message):
    """What is answered to these bytes; None: the connection was closed."""
    reader, writer = await d.dial()
    writer.write(message)
    try:
        return await read_message(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    finally:
        writer.close()


async def bad_requests(d):
    for name, message in (("no type", framed(data(2, b""))), ("an unknown type", framed(number(1, 11))),
                          ("no request", framed(b"")), ("garbage", framed(b"\xff" * 9)),
                          ("a length over the limit", uvarint((4 << 20) + 1)),
                          ("no peer to connect to", framed(number(1, CONNECT) + data(2, b""))),
                          ("a handler that is nowhere",
                           framed(number(1, STREAM_HANDLER) + data(4, number(3, 0))))):
        checks.equal(await raw(d, message), None, f"{name}: the connection is closed")
    checks.equal(fields(await raw(d, framed(number(1, IDENTIFY))))[1], [0], "others go on")
    for kind in CONNECT, STREAM_OPEN, STREAM_HANDLER, DISCONNECT, REMOVE_STREAM_HANDLER, CONNMANAGER:
        await checks.refused(f"request {kind} without parameters", d.request(kind, None), "Malformed request")
    for kind in CONNECT, STREAM_OPEN, DISCONNECT:
        await checks.refused(f"request {kind} for no peer", d.request(kind, data(1, b"nobody")), "peer ID")
    for kind in 0, 1:
        await checks.refused(f"tag {kind} for nobody", d.request(CONNMANAGER, number(1, kind)), "missing peer")
        await checks.refused(f"tag {kind} for no peer",
                             d.request(CONNMANAGER, number(1, kind) + data(2, b"nobody")), "peer ID")
    await checks.refused("a tag of another kind", d.request(CONNMANAGER, number(1, 3)), "Unexpected")
    await checks.refused("pubsub", d.request(PUBSUB, number(1, 0)), "PubSub")
    conn = await d.dial()
    for _ in range(3):
        answer = await d.request(IDENTIFY, conn=conn)
    checks.equal(fields(answer[4][0])[1][0], d.id, "several requests on one connection")
    await checks.refused("an error in between", d.request(DISCONNECT, data(1, b"x"), conn=conn), "peer ID")
    conn[1].write(framed(number(1, IDENTIFY)) * 100)
    for _ in range(100):
        await read_message(conn[0])
    checks.equal((await d.request(LIST_PEERS, conn=conn))[1], [0], "and the connection goes on")
    conn[1].write(framed(number(1, IDENTIFY)))
    conn[1].write_eof()
    await read_message(conn[0])
    checks.equal(await conn[0].read(), b"", "who ends its side gets its answer, and the end")
    conn[1].close()


async def connects(a, b, c):
    await a.connect(b)
    checks.equal(await a.list_peers(), [(b.id, b.addrs[0])], "connect: listed by who dialled, and where")
    await checks.until(lambda: has(b, a), "connect: listed by who was dialled")
    await b.connect(a, addrs=[])
    checks.equal(len(set(await a.peers())), 1, "connect back: the connection that is there")
    await a.disconnect(b)
    await checks.until(lambda: hasnot(b, a), "disconnect: both know")
    await a.disconnect(c)
    checks.ok(True, "disconnect from one that is not connected is fine")
    await checks.refused("connect to nobody knows where", c.connect(FakePeer(STRANGER), addrs=[]), "dial")
    await checks.refused("connect to a port where nobody is",
                  c.connect(FakePeer(STRANGER), addrs=[maddr("/ip4/127.0.0.1/tcp/1")]), "dial")
    await checks.refused("connect to another than meant", c.connect(FakePeer(STRANGER), addrs=b.addrs), "dial")
    await checks.refused("connect to no address", c.connect(b, addrs=[b"\xffnone"]), "multiaddr")
    other = b.addrs[0] + uvarint(421) + uvarint(len(STRANGER)) + STRANGER
    await checks.refused("connect to an address of another", c.connect(b, addrs=[other]), "mismatch")
    for what in 0, 1:
        await c.request(CONNMANAGER, number(1, what) + data(2, b.id) + data(3, "tag"))
    await c.request(CONNMANAGER, number(1, 2))
    checks.ok(True, "tags are taken")


async def has(d, other):
    return other.id in await d.peers()


async def hasnot(d, other):
    return other.id not in await d.peers()


async def routes(p2pd):
    """Three who know one fourth only, and each other by id."""
    hub = await Daemon(p2pd, "-dhtServer=1").start()
    where = f"/ip4/127.0.0.1/tcp/{int.from_bytes(hub.addrs[0][6:8], 'big')}/p2p/{hub.name}"
    boot = ["-b=1", f"-bootstrapPeers=/ip4/127.0.0.1/tcp/1/p2p/{hub.name},{where}"]
    a = await Daemon(p2pd, "-dhtServer=1", *boot).start()
    b = await Daemon(p2pd, "-dhtServer=1", *boot).start()
    c = await Daemon(p2pd, "-dhtClient=1", "-noListenAddrs=1", *boot).start(host=None)
    checks.equal(c.addrs, [], "one that does not listen has no address")
    for d in a, b:
        await checks.until(lambda: has(hub, d), "the hub knows all")
    await a.connect(b, addrs=[])
    checks.ok(await has(a, b), "connect by id alone")
    answer = fields((await c.request(DHT, number(1, 0) + data(2, b.id)))[5][0])
    checks.equal(fields(answer[2][0])[1][0], b.id, "dht: find peer")
    key = fields((await c.request(DHT, number(1, 4) + data(2, b.id)))[5][0])[3][0]
    checks.equal(key, b.id[2:], "dht: the public key that is in an id")
    await checks.until(lambda: speaks(c, hub), "dht: the nearest peers to a key")
    for kind in 1, 2, 5, 6, 7, 8:
        await checks.refused(f"dht: request {kind}", c.request(DHT, number(1, kind) + data(4, b"k")),
                             "not supported")
    await checks.refused("dht: no parameters", c.request(DHT, None), "Malformed request")
    await checks.refused("dht: no such peer", c.request(DHT, number(1, 0) + data(2, b"x")), "peer ID")
    await checks.refused("dht: a key that is not in its id", c.request(DHT, number(1, 4) + data(2, RSA)),
                         "not in its id")
    await checks.refused("dht: no peer", c.request(DHT, number(1, 0)), "missing peer")
    await checks.refused("dht: no key", c.request(DHT, number(1, 3)), "missing key")
    await checks.refused("dht: nothing known", c.request(DHT, number(1, 99)), "Unexpected")
    await checks.refused("dht: nowhere", c.request(DHT, number(1, 0) + data(2, STRANGER)), "find")
    calling = await b.client()
    serving = await c.client()
    await serving.add("here", echo)
    checks.equal(await calling.call(c.id, "here", b"x"), b"x",
                 "one that cannot be dialled is called on its own connection")
    await asyncio.gather(*(d.stop() for d in (a, b, c, hub)))


async def speaks(d, hub):
    reader, writer = await d.dial()
    writer.write(framed(number(1, DHT) + data(5, number(1, 3) + data(4, b"key"))))
    first = fields(fields(await read_message(reader))[5][0])
    found = []
    while True:
        one = fields(await read_message(reader))
        if one[1][0] == 2:
            break
        found.append(one[3][0])
    writer.close()
    return first[1] == [0] and hub.id in found


# --- streams --------------------------------------------------------------------------------------

async def streams(a, b):
    server = await b.serve(echo_stream, "one", "two")
    reader, writer, info = await a.stream(b.id, "none", "two", "one")
    checks.equal((info[1][0], info[3][0], info[2][0][:1]), (b.id, b"two", b"\x04"),
                 "stream: the first name that is known")
    writer.write(b"hello")
    checks.equal(await reader.readexactly(5), b"hello", "stream: there and back")
    writer.write_eof()
    checks.equal(await reader.read(), b"", "stream: the end comes back")
    writer.close()
    await checks.refused("stream: unknown protocol", a.stream(b.id, "none"), "failed to negotiate protocol")
    await checks.refused("stream: no protocol", a.stream(b.id), "failed to negotiate protocol")
    await checks.refused("stream: nobody there", a.stream(STRANGER, "one"), "open stream")
    await checks.refused("handler set twice", b.handle(server.where, "one"), "handler for protocol one already set")
    await checks.refused("handler at no address", b.request(STREAM_HANDLER, data(1, b"x") + number(3, 0)),
                  "multiaddr")
    await checks.refused("remove another's", b.unhandle("/unix/nowhere", "one"),
                  "handler for protocol one with maddr /unix/nowhere does not exist")
    await checks.refused("remove what is not there", b.unhandle(server.where, "none"),
                  "handler for protocol none does not exist")
    await checks.refused("a handler for two, one of them set", b.handle(server.where, "new", "one"),
                         "handler for protocol one already set")
    await a.disconnect(b)
    reader, writer, info = await a.stream(b.id, "new")
    checks.equal(info[3][0], b"new", "stream: those before it are, and it connects where it has to")
    writer.close()
    await b.unhandle(server.where, "one", "two", "new")
    await checks.refused("a handler that was removed", a.stream(b.id, "one"), "failed to negotiate protocol")
    server.close()

    gone = await b.serve(echo_stream, "gone")
    gone.close()
    reader, writer, _ = await a.stream(b.id, "gone")
    checks.equal(await reader.read(), b"", "stream: a handler that is gone is the end")
    writer.close()
    await b.unhandle(gone.where, "gone")
    await both_halves(a, b)
    last = await b.serve(echo_stream, "last")
    others = [f"other-{i}" for i in range(64)]
    reader, writer, info = await a.stream(b.id, *others[1:], "last")
    checks.equal(info[3][0], b"last", "stream: the last of 64 names")
    writer.close()
    await checks.refused("stream: 65 names", a.stream(b.id, *others, "last"), "at most 64")
    await b.unhandle(last.where, "last")
    last.close()


async def both_halves(a, b):
    """Either side may end while the other goes on; what is in between is not lost."""
    async def late(reader, writer, _info):
        got = await reader.read(-1)
        writer.write(got[::-1])

    async def early(reader, writer, _info):
        writer.write(b"first")
        writer.write_eof()
        heard.set_result(await reader.read(-1))

    heard = asyncio.get_running_loop().create_future()
    await b.serve(late, "late", tcp=True)
    await b.serve(early, "early")
    reader, writer, _ = await a.stream(b.id, "late")
    writer.write(b"abc" * 100000)
    writer.write_eof()
    checks.equal(await reader.read(-1), b"cba" * 100000, "stream: an answer behind the end")
    writer.close()
    reader, writer, _ = await a.stream(b.id, "early")
    checks.equal(await reader.read(-1), b"first", "stream: the handler ends first")
    writer.write(b"x" * 200000)
    writer.write_eof()
    checks.equal(len(await heard), 200000, "stream: and hears us out")
    writer.close()


async def stream_cancels(a, b):
    """Whoever goes away, at whatever stage, the other side hears of it."""
    events = asyncio.Queue()

    async def waits(reader, writer, _info):
        writer.write(b"here")
        await reader.read(-1)
        events.put_nowait("end")

    await b.serve(waits, "waits")
    reader, writer, _ = await a.stream(b.id, "waits")
    await reader.readexactly(4)
    writer.transport.abort()
    checks.equal(await asyncio.wait_for(events.get(), lib.PATIENCE), "end", "stream: the caller is gone")

    async def leaves(reader, writer, _info):
        await reader.readexactly(4)
        writer.transport.abort()

    await b.serve(leaves, "leaves")
    reader, writer, _ = await a.stream(b.id, "leaves")
    writer.write(b"here")
    checks.equal(await reader.read(-1), b"", "stream: the handler is gone")
    writer.close()

    reader, writer, _ = await a.stream(b.id, "waits")
    await reader.readexactly(4)
    await a.disconnect(b)
    checks.equal((await reader.read(-1), await asyncio.wait_for(events.get(), lib.PATIENCE)), (b"", "end"),
                 "stream: the connection is gone, and both are told")
    writer.close()
    await a.connect(b)


async def requests_given_up(a):
    """Whoever asks for one that says nothing, and goes away or has no more time."""
    async def has_clients(n):
        return (await a.stats())["clients"] == 1 + n

    reached = asyncio.Queue()
    mute = await asyncio.start_server(lambda *conn: reached.put_nowait(conn), "127.0.0.1", 0)
    where = maddr(f"/ip4/127.0.0.1/tcp/{mute.sockets[0].getsockname()[1]}")
    await checks.until(lambda: has_clients(0), "only the client that keeps it running is left")
    connect, stream = data(1, STRANGER) + data(2, where), data(1, STRANGER) + data(2, "x")
    for what, kind, params in ("connect", CONNECT, connect), ("stream", STREAM_OPEN, stream):
        task = asyncio.ensure_future(a.request(kind, params))
        conn = await reached.get()
        await checks.until(lambda: has_clients(1), f"{what}: to one who says nothing")
        dialled = asyncio.ensure_future(conn[0].read())
        task.cancel()
        await checks.until(lambda: has_clients(0), f"{what}: who asked has gone away")
        checks.ok(not dialled.done(), f"{what}: and is not kept until that has come to an end")
        conn[1].close()
    for what, kind, params in ("connect", CONNECT, connect), ("stream", STREAM_OPEN, stream):
        await checks.refused(f"{what}: no time left", a.request(kind, params + number(3, 1)),
                             "deadline exceeded")
    mute.close()


async def big_streams(a, b, size=64 << 20):
    """64 MiB each way, held back by a reader that takes its time."""
    poured = 0

    async def pour(writer):
        nonlocal poured
        while poured < size:
            writer.write(piece)
            await writer.drain()
            poured += len(piece)
        writer.write_eof()

    async def is_held():
        """There was time for another stream to go there and back, and none of this one moved."""
        at = poured
        reader, writer, _ = await a.stream(b.id, "big")
        writer.write(b"x")
        writer.write_eof()
        await reader.read(-1)
        writer.close()
        return at == poured < size

    piece = os.urandom(1 << 16)
    await b.serve(echo_stream, "big")
    reader, writer, _ = await a.stream(b.id, "big")
    task = asyncio.ensure_future(pour(writer))
    await checks.until(is_held, "stream: nobody reads, and the writer has to wait")
    got, same = 0, True
    while True:
        part = await reader.read(1 << 16)
        if not part:
            break
        at = got % len(piece)
        same = same and (piece + piece)[at:at + len(part)] == part
        got += len(part)
    await task
    checks.equal((got, same), (size, True), f"stream: {size >> 20} MiB there and back")
    writer.close()


async def many_streams(a, b, count):
    """None of them ends before all are open."""
    gate, running = asyncio.Event(), 0

    async def together(reader, writer, info):
        nonlocal running
        running += 1
        if running == count:
            gate.set()
        await asyncio.wait_for(gate.wait(), 60)
        await echo_stream(reader, writer, info)

    async def one(i):
        reader, writer, _ = await a.stream(b.id, "many")
        text = f"stream {i} ".encode() * 50
        writer.write(text)
        writer.write_eof()
        got = await reader.read(-1)
        writer.close()
        return got == text

    await b.serve(together, "many")
    results = await asyncio.gather(*(one(i) for i in range(count)))
    checks.equal((sum(results), running), (count, count), f"{count} streams at once")


async def balanced_streams(a, b):
    """Replicas take turns, and whose turn it is stays so when one of them goes."""
    seen, servers = [], []

    def counter(i):
        async def count(_reader, _writer, _info):
            seen.append(i)
        return count

    async def open_some(n):
        seen.clear()
        for _ in range(n):
            reader, writer, _ = await a.stream(b.id, "shared")
            await reader.read(-1)
            writer.close()
        return seen

    for i in range(4):
        servers.append(await b.serve(counter(i), "shared", balanced=True))
    checks.equal(await open_some(7), [0, 1, 2, 3, 0, 1, 2], "streams: replicas in turn")
    await b.unhandle(servers[3].where, "shared")
    checks.equal(await open_some(2), [0, 1], "streams: the last, whose turn it was, is gone")
    await b.unhandle(servers[0].where, "shared")
    checks.equal(await open_some(3), [2, 1, 2], "streams: another is gone")
    await b.unhandle(servers[2].where, "shared")
    checks.equal(await open_some(2), [1, 1], "streams: all are gone but one")
    client = await b.client()
    await checks.refused("a handler for calls beside one for streams", client.add("shared", echo, balanced=True),
                         "handler for protocol shared already set")
    await client.close()


# --- many daemons ----------------------------------------------------------------------------------

async def many_daemons(p2pd, n):
    """Each calls three others, or one thrice."""
    ds = [await Daemon(p2pd).start(wait=False) for _ in range(n)]
    await asyncio.gather(*(d.ready() for d in ds))
    clients = [await d.client() for d in ds]
    for c in clients:
        await c.add("echo", echo)

    async def meet(i):
        for step in 1, 7, 11:
            other = ds[(i + step) % n]
            await ds[i].connect(other)
            if await clients[i].call(other.id, "echo", b"hello") != b"hello":
                return False
        return True

    checks.equal(sum(await asyncio.gather(*(meet(i) for i in range(n)))), n, f"{n} daemons, each calls three")
    await asyncio.gather(*(d.stop() for d in ds))


async def main():
    lib.raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as folder:
        p2pd = link_binary(folder)
        os.umask(0)
        await starts(p2pd)
        await keeps_strangers_out(p2pd)
        await relays_when_told(p2pd)
        await ends_with_its_clients(p2pd)
        await waits_for_clients(p2pd)
        await addresses(p2pd)
        await key_files(p2pd, folder)
        await routes(p2pd)
        a, b, c = [await Daemon(p2pd).start() for _ in range(3)]
        keepers = [await d.client() for d in (a, b, c)]  # who keep them running
        await checks.refused("dht that is off", a.request(DHT, number(1, 0) + data(2, b.id)), "DHT not enabled")
        await bad_requests(a)
        await connects(a, b, c)
        await requests_given_up(c)
        await a.connect(b)
        await streams(a, b)
        await stream_cancels(a, b)
        await balanced_streams(a, b)
        await big_streams(a, b)
        await many_streams(a, b, option("streams", 200))
        await checks.nothing_left(a)
        await checks.nothing_left(b)
        await checks.end_with_clients((a, b, c), keepers)
        for n in 2, 10, option("daemons", 50):
            await many_daemons(p2pd, n)


asyncio.run(asyncio.wait_for(main(), 240))
checks.done()
