#!/usr/bin/python3
"""The daemon against its protocol, from outside.

    p2pd_conformance.py [MUSTER] [--daemons=50] [--calls=2000] [--streams=200]

Every request and every error; streams both ways; unary calls, given up at every stage; replicas of a
handler in turn; many of everything at once; what is started, printed and left behind.
"""
import asyncio
import os
import signal
import tempfile

import lib
from lib import Checks, option
from p2pd_lib import (CONNECT, CONNMANAGER, DHT, DISCONNECT, IDENTIFY, LIST_PEERS, PUBSUB,
                      REMOVE_STREAM_HANDLER, STREAM_HANDLER, STREAM_OPEN, Cancelled,
                      Daemon, DaemonError, Failure, HandlerError, data, fields, framed, maddr,
                      number, read_message, uvarint)

checks = Checks()
MUSTER = lib.muster_path()
STRANGER = bytes.fromhex("0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")


def binary(folder):
    """The same program by its other name."""
    path = os.path.join(folder, "p2pd")
    os.symlink(MUSTER, path)
    return path


async def refused(what, awaitable, *words):
    """What must fail, and say these words."""
    try:
        await awaitable
        checks.ok(False, f"{what}: refused")
    except (Failure, DaemonError, HandlerError) as e:
        missing = [w for w in words if w not in str(e)]
        checks.equal(missing, [], f"{what}: says why ({e})")


async def until(condition, what, patience=10):
    loop = asyncio.get_running_loop()
    end = loop.time() + patience * max(1, lib.PATIENCE / 20)
    while not (await condition()):
        if loop.time() > end:
            checks.ok(False, what)
            return
        await asyncio.sleep(0.02)
    checks.ok(True, what)


async def echo(_peer, payload):
    return payload


async def echo_stream(reader, writer, _info):
    while True:
        piece = await reader.read(1 << 16)
        if not piece:
            return
        writer.write(piece)
        await writer.drain()


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
    await asyncio.sleep(0.05)
    checks.equal(len(d.addrs), 1, "an interrupt is ignored")
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


async def ends_with_its_clients(p2pd):
    d = await Daemon(p2pd).start()
    a, b = await d.client(), await d.client()
    await a.close()
    await asyncio.sleep(0.1)
    checks.equal(d.process.returncode, None, "one client of two is gone: it stays")
    await b.close()
    checks.equal(await asyncio.wait_for(d.process.wait(), 10), 0, "the last is gone: it ends")


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
        await refused(f"request {kind} without parameters", d.request(kind, None), "Malformed request")
    for kind in CONNECT, STREAM_OPEN, DISCONNECT:
        await refused(f"request {kind} for no peer", d.request(kind, data(1, b"nobody")), "peer ID")
    await refused("pubsub", d.request(PUBSUB, number(1, 0)), "PubSub")
    conn = await d.dial()
    for _ in range(3):
        answer = await d.request(IDENTIFY, conn=conn)
    checks.equal(fields(answer[4][0])[1][0], d.id, "several requests on one connection")
    await refused("an error in between", d.request(DISCONNECT, data(1, b"x"), conn=conn), "peer ID")
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
    checks.equal(await a.peers(), [b.id], "connect: listed by who dialled")
    await until(lambda: has(b, a), "connect: listed by who was dialled")
    await b.connect(a, addrs=[])
    checks.equal(len(set(await a.peers())), 1, "connect back: the connection that is there")
    await a.disconnect(b)
    await until(lambda: hasnot(b, a), "disconnect: both know")
    await a.disconnect(c)
    checks.ok(True, "disconnect from one that is not connected is fine")
    await refused("connect to nobody knows where", c.connect(FakePeer(STRANGER), addrs=[]), "dial")
    await refused("connect to a port where nobody is",
                  c.connect(FakePeer(STRANGER), addrs=[maddr("/ip4/127.0.0.1/tcp/1")]), "dial")
    await refused("connect to another than meant", c.connect(FakePeer(STRANGER), addrs=b.addrs), "dial")
    await refused("connect to no address", c.connect(b, addrs=[b"\xffnone"]), "multiaddr")
    other = b.addrs[0] + uvarint(421) + uvarint(len(STRANGER)) + STRANGER
    await refused("connect to an address of another", c.connect(b, addrs=[other]), "mismatch")
    for what in 0, 1:
        await c.request(CONNMANAGER, number(1, what) + data(2, b.id) + data(3, "tag"))
    await c.request(CONNMANAGER, number(1, 2))
    checks.ok(True, "tags are taken")


class FakePeer:
    def __init__(self, peer_id):
        self.id, self.addrs = peer_id, []


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
        await until(lambda: has(hub, d), "the hub knows all")
    await a.connect(b, addrs=[])
    checks.ok(await has(a, b), "connect by id alone")
    answer = fields((await c.request(DHT, number(1, 0) + data(2, b.id)))[5][0])
    checks.equal(fields(answer[2][0])[1][0], b.id, "dht: find peer")
    key = fields((await c.request(DHT, number(1, 4) + data(2, b.id)))[5][0])[3][0]
    checks.equal(key, b.id[2:], "dht: the public key that is in an id")
    await until(lambda: speaks(c, hub), "dht: the nearest peers to a key")
    await refused("dht: values", c.request(DHT, number(1, 5) + data(4, b"k")), "not supported")
    await refused("dht: no peer", c.request(DHT, number(1, 0)), "missing peer")
    await refused("dht: no key", c.request(DHT, number(1, 3)), "missing key")
    await refused("dht: nothing known", c.request(DHT, number(1, 99)), "Unexpected")
    await refused("dht: nowhere", c.request(DHT, number(1, 0) + data(2, STRANGER)), "find")
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
    await refused("stream: unknown protocol", a.stream(b.id, "none"), "failed to negotiate protocol")
    await refused("stream: no protocol", a.stream(b.id), "failed to negotiate protocol")
    await refused("stream: nobody there", a.stream(STRANGER, "one"), "open stream")
    await refused("handler set twice", b.handle(server.where, "one"), "handler for protocol one already set")
    await refused("handler at no address", b.request(STREAM_HANDLER, data(1, b"x") + number(3, 0)),
                  "multiaddr")
    await refused("remove another's", b.unhandle("/unix/nowhere", "one"),
                  "handler for protocol one with maddr /unix/nowhere does not exist")
    await refused("remove what is not there", b.unhandle(server.where, "none"),
                  "handler for protocol none does not exist")
    await b.unhandle(server.where, "one", "two")
    await refused("a handler that was removed", a.stream(b.id, "one"), "failed to negotiate protocol")
    server.close()

    gone = await b.serve(echo_stream, "gone")
    gone.close()
    reader, writer, _ = await a.stream(b.id, "gone")
    checks.equal(await reader.read(), b"", "stream: a handler that is gone is the end")
    writer.close()
    await b.unhandle(gone.where, "gone")
    await both_halves(a, b)


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
    """Whoever goes away, the other side hears of it."""
    events = asyncio.Queue()

    async def waits(reader, writer, _info):
        writer.write(b"here")
        await reader.read(-1)
        events.put_nowait("end")

    await b.serve(waits, "waits")
    reader, writer, _ = await a.stream(b.id, "waits")
    await reader.readexactly(4)
    writer.transport.abort()
    checks.equal(await asyncio.wait_for(events.get(), 10), "end", "stream: the caller is gone")

    async def leaves(reader, writer, _info):
        await reader.readexactly(4)
        writer.transport.abort()

    await b.serve(leaves, "leaves")
    reader, writer, _ = await a.stream(b.id, "leaves")
    writer.write(b"here")
    checks.equal(await reader.read(-1), b"", "stream: the handler is gone")
    writer.close()


async def big_streams(a, b, size=64 << 20):
    """64 MiB each way, held back by a reader that takes its time."""
    async def pour(writer):
        for _ in range(size >> 16):
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    piece = os.urandom(1 << 16)
    await b.serve(echo_stream, "big")
    reader, writer, _ = await a.stream(b.id, "big")
    task = asyncio.ensure_future(pour(writer))
    await asyncio.sleep(0.2)
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
    async def one(i):
        reader, writer, _ = await a.stream(b.id, "big")
        text = f"stream {i} ".encode() * 50
        writer.write(text)
        writer.write_eof()
        got = await reader.read(-1)
        writer.close()
        return got == text

    results = await asyncio.gather(*(one(i) for i in range(count)))
    checks.equal(sum(results), count, f"{count} streams at once")


async def balanced_streams(a, b):
    seen = [0, 0, 0]

    def counter(i):
        async def count(_reader, _writer, _info):
            seen[i] += 1
        return count

    for i in range(3):
        await b.serve(counter(i), "shared", balanced=True)
    for _ in range(30):
        reader, writer, _ = await a.stream(b.id, "shared")
        await reader.read(-1)
        writer.close()
    checks.equal(seen, [10, 10, 10], "streams: replicas in turn")


# --- unary calls ----------------------------------------------------------------------------------

async def calls(a, b):
    caller, handler = await a.client(), await b.client()

    async def who(peer, payload):
        return peer + payload

    async def fails(_peer, payload):
        raise ValueError(payload.decode())

    await handler.add("who", who)
    await handler.add("fails", fails)
    checks.equal(await caller.call(b.id, "who", b"!"), a.id + b"!", "call: the caller is told, proved")
    checks.equal(await caller.call(b.id, "who", b""), a.id, "call: of nothing")
    await refused("call: the handler fails", caller.call(b.id, "fails", b"why"), "ValueError('why')")
    await refused("call: unknown", caller.call(b.id, "none", b""), "failed to negotiate protocol")
    await refused("call: nobody", caller.call(STRANGER, "who", b""), "")
    await refused("call: no peer", caller.call(b"xx", "who", b""), "peer ID")
    await refused("call: itself", caller.call(a.id, "who", b""), "itself")
    await refused("handler twice", handler.add("who", who), "handler for protocol who already set")
    await refused("handler by another", caller.remove("who"), "handler for protocol who does not exist")
    other = await b.client()
    await refused("removed by another", other.remove("who"),
                  "handler for protocol who was not created in this persistent connection")
    await other.add("who", who, balanced=True)
    await other.close()
    checks.equal(await caller.call(b.id, "who", b"!"), a.id + b"!", "a replica is gone, one is left")
    await handler.remove("who")
    await refused("call: removed", caller.call(b.id, "who", b""), "failed to negotiate protocol")
    await refused("removed twice", handler.remove("who"), "does not exist")
    size = (4 << 20) - 200
    await handler.add("big", echo)
    big = os.urandom(size)
    checks.ok(await caller.call(b.id, "big", big) == big, "call: as long as may be")
    checks.ok((await asyncio.gather(*(caller.call(b.id, "big", big[:1 << 20]) for _ in range(24))))
                == [big[:1 << 20]] * 24, "call: 24 of a MiB at once")
    caller.send(os.urandom(16), data(4, data(1, b"x")))
    caller.cancel(os.urandom(16))
    caller.send(os.urandom(16), b"")
    checks.equal(await caller.call(b.id, "big", b"x"), b"x", "what belongs to nothing is ignored")
    await too_long(a)
    await caller.close()
    await handler.close()


async def too_long(a):
    for name, message in (("a message that is too long", uvarint((4 << 20) + 1) + b"x"),
                          ("a call without an id", framed(data(5, b""))),
                          ("a call with half an id", framed(data(1, b"12345678") + data(5, b"")))):
        client = await a.client()
        client.writer.write(message)
        await asyncio.wait_for(client.task, 10)
        checks.ok(not client.alive, f"{name}: the connection is closed")


async def cancels(a, b):
    """A call given up before, while and after it is handled; by the caller, by its end, and by the
    handler's."""
    keeper = await a.client()
    caller, handler = await a.client(), await b.client()
    began = asyncio.Queue()

    async def waits(_peer, payload):
        began.put_nowait(payload)
        await asyncio.sleep(1000)

    await handler.add("waits.unary", waits)
    await handler.add("echo.unary", echo)

    call_id, future = caller.begin(b.id, "waits.unary", b"1")
    await began.get()
    caller.cancel(call_id)
    await cancelled(future, "while it is handled")
    await until(lambda: count(handler, 1), "cancel: the handler hears of it")

    call_id, future = caller.begin(b.id, "waits.unary", b"2")
    caller.cancel(call_id)
    await cancelled(future, "at once")

    mute = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    where = maddr(f"/ip4/127.0.0.1/tcp/{mute.sockets[0].getsockname()[1]}")
    await refused("connect to one who says nothing", a.connect(FakePeer(STRANGER), [where], timeout=1),
                  "deadline exceeded")
    await refused("a stream to one who says nothing", a.stream(STRANGER, "x", timeout=1),
                  "deadline exceeded")
    call_id, future = caller.begin(STRANGER, "waits.unary", b"3")
    await asyncio.sleep(0.05)
    caller.cancel(call_id)
    await cancelled(future, "before anybody was reached")
    mute.close()

    call_id, future = caller.begin(b.id, "echo.unary", b"4")
    await future
    caller.cancel(call_id)
    checks.equal(await caller.call(b.id, "echo.unary", b"5"), b"5", "cancel behind the answer is ignored")

    call_id, future = caller.begin(b.id, "waits.unary", b"x" * (3 << 20))
    await asyncio.sleep(0.005)
    caller.cancel(call_id)
    await cancelled(future, "while it is sent")

    while not began.empty():
        began.get_nowait()
    before = handler.cancels
    caller.begin(b.id, "waits.unary", b"6")
    await began.get()
    caller.writer.transport.abort()
    await until(lambda: count(handler, before + 1), "cancel: the caller's process is gone")

    future = keeper.begin(b.id, "waits.unary", b"7")[1]
    await began.get()
    handler.writer.transport.abort()
    try:
        await asyncio.wait_for(future, 10)
        checks.ok(False, "a call whose handler is gone fails")
    except DaemonError as e:
        checks.ok(True, f"a call whose handler is gone fails ({e})")
    await refused("its handlers are gone with it", keeper.call(b.id, "echo.unary", b""),
                  "failed to negotiate protocol")

    late = await b.client()
    await late.add("waits.unary", waits)
    future = keeper.begin(b.id, "waits.unary", b"8")[1]
    await began.get()
    await a.disconnect(b)
    try:
        await asyncio.wait_for(future, 10)
        checks.ok(False, "a call whose connection is gone fails")
    except DaemonError as e:
        checks.ok(True, f"a call whose connection is gone fails ({e})")
    await until(lambda: count(late, 1), "and the handler is told")
    await a.connect(b)
    await keeper.close()
    await late.close()


async def cancelled(future, when):
    try:
        await asyncio.wait_for(future, 10)
        checks.ok(False, f"cancel {when}: it is told")
    except Cancelled:
        checks.ok(True, f"cancel {when}: it is told")


async def count(client, at_least):
    return client.cancels >= at_least


async def balanced_calls(a, b):
    seen = [0, 0, 0]

    def counter(i):
        async def add_one(_peer, _payload):
            seen[i] += 1
            return b""
        return add_one

    caller = await a.client()
    replicas = [await b.client() for _ in range(3)]
    for i, replica in enumerate(replicas):
        await replica.add("shared.unary", counter(i), balanced=True)
    await asyncio.gather(*(caller.call(b.id, "shared.unary", b"") for _ in range(300)))
    checks.equal(seen, [100, 100, 100], "calls: replicas in turn")
    await replicas[1].remove("shared.unary")
    await replicas[2].close()
    await asyncio.gather(*(caller.call(b.id, "shared.unary", b"") for _ in range(50)))
    checks.equal(seen, [150, 100, 100], "calls: those who are left")
    await caller.close()
    await replicas[0].close()
    await replicas[1].close()


async def many_calls(a, b, total):
    caller, handler = await a.client(), await b.client()
    running, most = 0, 0
    gate = asyncio.Event()

    async def slow(_peer, payload):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == total:
            gate.set()
        await asyncio.wait_for(gate.wait(), 60)
        running -= 1
        return payload[::-1]

    await handler.add("slow", slow)
    payloads = [os.urandom(8) + b"x" * (i % 3000) for i in range(total)]
    answers = await asyncio.gather(*(caller.call(b.id, "slow", p) for p in payloads))
    checks.ok(all(x == y[::-1] for x, y in zip(answers, payloads)), f"{total} calls at once, all answered")
    checks.equal(most, total, "all of them were under way together")
    await caller.close()
    await handler.close()


async def long_messages(p2pd):
    """The limit is a flag: 64 MiB in one call."""
    flag = f"-persistentConnMaxMsgSize={(64 << 20) + 1000}"
    a, b = [await Daemon(p2pd, flag).start() for _ in range(2)]
    await a.connect(b)
    caller, handler = await a.client(), await b.client()
    await handler.add("echo", echo)
    payload = os.urandom(1 << 20) * 64
    checks.ok(await caller.call(b.id, "echo", payload) == payload, "call: 64 MiB there and back")
    await asyncio.gather(a.stop(), b.stop())


async def many_daemons(p2pd, n):
    """Each calls three others."""
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


async def nothing_left(d):
    """What the daemon says of itself when all its clients are gone but one."""
    keeper = await d.client()

    async def is_empty():
        d.process.send_signal(signal.SIGUSR1)
        while True:
            line = (await d.process.stdout.readline()).decode()
            if line.startswith("p2pd: clients="):
                said.update(w.split("=") for w in line.split()[1:])
                break
        return all(said[k] == "0" for k in ("handlers", "streams", "calls", "served", "held_bytes"))

    said = {}
    await until(is_empty, "of clients that are gone nothing is left")
    print("  ", said)
    await keeper.close()


async def main():
    lib.raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as folder:
        p2pd = binary(folder)
        await starts(p2pd)
        await ends_with_its_clients(p2pd)
        await key_files(p2pd, folder)
        await routes(p2pd)
        a, b, c = [await Daemon(p2pd).start() for _ in range(3)]
        keepers = [await d.client() for d in (a, b, c)]  # who keep them running
        await refused("dht that is off", a.request(DHT, number(1, 0) + data(2, b.id)), "DHT not enabled")
        await bad_requests(a)
        await connects(a, b, c)
        await a.connect(b)
        await streams(a, b)
        await stream_cancels(a, b)
        await balanced_streams(a, b)
        await calls(a, b)
        await cancels(a, b)
        await balanced_calls(a, b)
        await big_streams(a, b)
        await many_streams(a, b, option("streams", 200))
        await many_calls(a, b, option("calls", 2000))
        await nothing_left(a)
        await nothing_left(b)
        for keeper in keepers:
            await keeper.close()
        codes = [await asyncio.wait_for(d.process.wait(), 10) for d in (a, b, c)]
        checks.equal(codes, [0, 0, 0], "and when all are, they end")
        await long_messages(p2pd)
        await many_daemons(p2pd, option("daemons", 50))


asyncio.run(asyncio.wait_for(main(), 240))
checks.done()
