"""A client of p2p daemons, written from the protocol's description: protocol buffers by hand,
asyncio, nothing but Python's own library. For tests and benchmarks."""
import asyncio
import os
import signal
import tempfile
import uuid

from lib import PATIENCE, Checks, die_with_parent, muster_path

IDENTIFY, CONNECT, STREAM_OPEN, STREAM_HANDLER, DHT, LIST_PEERS, CONNMANAGER, DISCONNECT, PUBSUB, \
    UPGRADE, REMOVE_STREAM_HANDLER = range(11)


class Failure(Exception):
    """A response that is an error."""


class DaemonError(Exception):
    """A call that the daemon could not make."""


class HandlerError(Exception):
    """A call whose handler failed."""


class Cancelled(Exception):
    """A call that was canceled."""


# --- checks ---------------------------------------------------------------------------------------

STRANGER = bytes.fromhex("0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")


class DaemonChecks(Checks):
    """What is checked of daemons, beside values."""

    async def refused(self, what, awaitable, *words):
        """What must fail, and say these words."""
        try:
            await asyncio.wait_for(awaitable, PATIENCE)
            self.ok(False, f"{what}: refused")
        except (Failure, DaemonError, HandlerError) as e:
            missing = [w for w in words if w not in str(e)]
            self.equal(missing, [], f"{what}: says why ({e})")
        except asyncio.TimeoutError:
            self.ok(False, f"{what}: nothing is said")

    async def cancelled(self, future, when):
        try:
            await asyncio.wait_for(future, PATIENCE)
            self.ok(False, f"cancel {when}: it is told")
        except Cancelled:
            self.ok(True, f"cancel {when}: it is told")
        except asyncio.TimeoutError:
            self.ok(False, f"cancel {when}: nothing is said")

    async def until(self, condition, what):
        """The condition is a coroutine function."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while not await condition():
            if loop.time() > end:
                self.ok(False, what)
                return
            await asyncio.sleep(0.01)
        self.ok(True, what)

    async def nothing_left(self, d):
        """What the daemon says of itself when all its clients are gone but one."""
        keeper = await d.client()

        async def is_empty():
            said.update(await d.stats())
            return all(said[k] == 0 for k in ("handlers", "streams", "calls", "served", "held_bytes"))

        said = {}
        await self.until(is_empty, "of clients that are gone nothing is left")
        self.note(str(said))
        await keeper.close()

    async def end_with_clients(self, daemons, keepers):
        """Those who kept the daemons running, their last clients, go away."""
        for keeper in keepers:
            await keeper.close()
        codes = [await asyncio.wait_for(d.process.wait(), PATIENCE) for d in daemons]
        self.equal(codes, [0] * len(daemons), "and when all are, they end")


def link_binary(folder):
    """The same program by its other name."""
    path = os.path.join(folder, "p2pd")
    os.symlink(muster_path(), path)
    return path


class FakePeer:
    """One that there is not."""

    def __init__(self, peer_id):
        self.id, self.addrs = peer_id, []


async def echo(_peer, payload):
    return payload


async def echo_stream(reader, writer, _info):
    while True:
        piece = await reader.read(1 << 16)
        if not piece:
            return
        writer.write(piece)
        await writer.drain()


# --- protocol buffers -----------------------------------------------------------------------------

def uvarint(n):
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def number(field, value):
    return uvarint(field << 3) + uvarint(value)


def data(field, value):
    if isinstance(value, str):
        value = value.encode()
    return uvarint(field << 3 | 2) + uvarint(len(value)) + value


def read_uvarint(buf, at):
    value = shift = 0
    while True:
        byte = buf[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(buf):
    """Field number -> list of values."""
    out, at = {}, 0
    buf = memoryview(buf)
    while at < len(buf):
        key, at = read_uvarint(buf, at)
        if key & 7 == 0:
            value, at = read_uvarint(buf, at)
        elif key & 7 == 2:
            length, at = read_uvarint(buf, at)
            value = bytes(buf[at:at + length])
            assert len(value) == length, "cut off"
            at += length
        else:
            raise ValueError(f"wire type {key & 7}")
        out.setdefault(key >> 3, []).append(value)
    return out


def framed(message):
    return uvarint(len(message)) + message


# --- multiaddrs and peers -------------------------------------------------------------------------

def maddr(text):
    """/unix/path and /ip4/a.b.c.d/tcp/n."""
    parts = text.split("/")
    if parts[1] == "unix":
        path = text[len("/unix"):].encode()
        return uvarint(400) + uvarint(len(path)) + path
    out = b""
    for key, value in zip(parts[1::2], parts[2::2]):
        if key == "ip4":
            out += b"\x04" + bytes(int(b) for b in value.split("."))
        elif key == "tcp":
            out += b"\x06" + int(value).to_bytes(2, "big")
        elif key == "udp":
            out += uvarint(273) + int(value).to_bytes(2, "big")
        elif key == "p2p":
            raw = from_base58(value)
            out += uvarint(421) + uvarint(len(raw)) + raw
        else:
            raise ValueError(key)
    return out


ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def from_base58(text):
    value = 0
    for c in text:
        value = value * 58 + ALPHABET.index(c)
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return b"\0" * (len(text) - len(text.lstrip("1"))) + body


def to_base58(raw):
    value, out = int.from_bytes(raw, "big"), ""
    while value:
        value, digit = divmod(value, 58)
        out = ALPHABET[digit] + out
    return "1" * (len(raw) - len(raw.lstrip(b"\0"))) + out


# --- connections ----------------------------------------------------------------------------------

async def dial(where):
    """Where a client or a daemon listens, as a multiaddr in text."""
    parts = where.split("/")
    if parts[1] == "unix":
        return await asyncio.open_unix_connection(where[len("/unix"):], limit=1 << 20)
    return await asyncio.open_connection(parts[2], int(parts[4]), limit=1 << 20)


async def read_message(reader):
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return await reader.readexactly(length)


class Daemon:
    """A daemon of ours, with its requests."""

    def __init__(self, binary, *flags, listen=None):
        self.binary, self.flags = binary, list(flags)
        self.dir = tempfile.mkdtemp(prefix="p2pd-")
        self.control = listen or f"/unix{self.dir}/c.sock"
        self.lines = []
        self.process = None
        self.id = None
        self.addrs = []
        self._clients = 0

    async def start(self, host="/ip4/127.0.0.1/tcp/0", wait=True):
        argv = [self.binary, f"-listen={self.control}"]
        if host is not None:
            argv.append(f"-hostAddrs={host}")
        self.process = await asyncio.create_subprocess_exec(
            *argv, *self.flags, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20, preexec_fn=die_with_parent)
        if wait:
            await self.ready()
        return self

    async def ready(self):
        while True:
            line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)
            if not line:
                raise Failure("; ".join(self.lines) or "it has ended without a word")
            self.lines.append(line.decode().strip())
            if self.lines[-1].startswith("Control socket: "):
                self.control = self.lines[-1].split(": ")[1]
            if self.lines[-1].startswith("Peer ID: "):
                self.name = self.lines[-1].split(": ")[1]
            if self.lines[-1] == "Peer Addrs:":
                break
        answer = await self.request(IDENTIFY)
        who = fields(answer[4][0])
        self.id, self.addrs = who[1][0], who.get(2, [])
        return self

    async def stop(self, wait=True):
        if self.process.returncode is None:
            self.process.terminate()
        if wait:
            await self.process.wait()
            for name in os.listdir(self.dir):
                os.unlink(os.path.join(self.dir, name))
            os.rmdir(self.dir)

    async def stats(self):
        """What it says of itself, when asked by a signal."""
        self.process.send_signal(signal.SIGUSR1)
        while True:
            line = (await asyncio.wait_for(self.process.stdout.readline(), PATIENCE)).decode()
            if not line:
                raise Failure("it has ended")
            if line.startswith("p2pd: clients="):
                return {k: int(v) for k, v in (w.split("=") for w in line.split()[1:])}

    async def dial(self):
        return await dial(self.control)

    async def request(self, kind, params=b"", conn=None):
        reader, writer = conn or await self.dial()
        try:
            body = number(1, kind)
            slot = {CONNECT: 2, STREAM_OPEN: 3, STREAM_HANDLER: 4, DHT: 5, CONNMANAGER: 6,
                    DISCONNECT: 7, PUBSUB: 8, REMOVE_STREAM_HANDLER: 9}.get(kind)
            if slot is not None and params is not None:
                body += data(slot, params)
            writer.write(framed(body))
            answer = fields(await read_message(reader))
            if answer[1][0] != 0:
                raise Failure(fields(answer[2][0])[1][0].decode())
            return answer
        finally:
            if conn is None:
                writer.close()

    async def connect(self, other, addrs=None, timeout=None):
        params = data(1, other.id)
        for addr in other.addrs if addrs is None else addrs:
            params += data(2, addr)
        if timeout is not None:
            params += number(3, timeout)
        await self.request(CONNECT, params)

    async def list_peers(self):
        """Each with its id and where it is."""
        infos = [fields(p) for p in (await self.request(LIST_PEERS)).get(6, [])]
        return [(info[1][0], info[2][0]) for info in infos]

    async def peers(self):
        return [peer for peer, _where in await self.list_peers()]

    async def disconnect(self, other):
        await self.request(DISCONNECT, data(1, other.id))

    async def stream(self, peer, *protos, timeout=None):
        """Opens a stream: reader, writer and what was agreed."""
        reader, writer = await self.dial()
        params = data(1, peer)
        for proto in protos:
            params += data(2, proto)
        if timeout is not None:
            params += number(3, timeout)
        try:
            answer = await self.request(STREAM_OPEN, params, (reader, writer))
        except BaseException:
            writer.close()
            raise
        return reader, writer, fields(answer[3][0])

    async def handle(self, where, *protos, balanced=False):
        params = data(1, maddr(where)) + b"".join(data(2, p) for p in protos)
        await self.request(STREAM_HANDLER, params + number(3, int(balanced)))

    async def unhandle(self, where, *protos):
        params = data(1, maddr(where)) + b"".join(data(2, p) for p in protos)
        await self.request(REMOVE_STREAM_HANDLER, params)

    async def client(self, conn=None):
        """A persistent connection; of one that there is, if given."""
        return await Client(self).open(conn)

    async def serve(self, callback, *protos, balanced=False, tcp=False):
        """A listener for streams of these protocols. callback(reader, writer, info)."""
        self._clients += 1

        async def on_connection(reader, writer):
            try:
                await callback(reader, writer, fields(await read_message(reader)))
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        if tcp:
            server = await asyncio.start_server(on_connection, "127.0.0.1", 0, limit=1 << 20)
            where = f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}"
        else:
            path = f"{self.dir}/h{self._clients}.sock"
            server = await asyncio.start_unix_server(on_connection, path, limit=1 << 20)
            where = "/unix" + path
        await self.handle(where, *protos, balanced=balanced)
        server.where = where
        return server


class Client:
    """A persistent connection: handlers, calls, answers."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.pending = {}
        self.handlers = {}
        self.running = {}
        self.cancels = 0
        self.alive = True

    async def open(self, conn=None):
        self.reader, self.writer = conn or await self.daemon.dial()
        await self.daemon.request(UPGRADE, conn=(self.reader, self.writer))
        self.task = asyncio.ensure_future(self._read())
        return self

    def send(self, call_id, body):
        self.writer.write(framed(data(1, call_id) + body))

    async def _read(self):
        try:
            while True:
                self._take(fields(await read_message(self.reader)))
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.alive = False
            for task in self.running.values():
                task.cancel()
            for future in self.pending.values():
                if not future.done():
                    future.set_exception(ConnectionError("the daemon is gone"))
                    future.exception()  # nobody need have waited for it

    def _take(self, m):
        call_id = m[1][0]
        if 3 in m:
            self.running[call_id] = asyncio.ensure_future(self._handle(call_id, fields(m[3][0])))
            return
        if 5 in m and call_id in self.running:
            self.cancels += 1
            self.running.pop(call_id).cancel()
            return
        future = self.pending.pop(call_id, None)
        if future is None or future.done():
            return
        if 4 in m:
            future.set_exception(DaemonError(fields(m[4][0]).get(1, [b""])[0].decode()))
        elif 5 in m:
            future.set_exception(Cancelled())
        elif 2 in m:
            body = fields(m[2][0])
            if 1 in body:
                future.set_result(body[1][0])
            else:
                future.set_exception(HandlerError(body.get(2, [b""])[0].decode()))
        else:
            future.set_result(None)

    async def _handle(self, call_id, m):
        handler = self.handlers.get(m[2][0].decode())
        if handler is None:
            return
        try:
            body = data(1, await handler(m[1][0], m[3][0]))
        except asyncio.CancelledError:
            return
        except Exception as e:
            body = data(2, repr(e))
        self.running.pop(call_id, None)
        self.send(call_id, data(4, body))

    def ask(self, body, call_id=None):
        """Sends something that is answered: its id and the answer to come."""
        if not self.alive:
            raise ConnectionError("the daemon is gone")
        call_id = call_id or uuid.uuid4().bytes
        future = asyncio.get_running_loop().create_future()
        self.pending[call_id] = future
        self.send(call_id, body)
        return call_id, future

    async def add(self, proto, handler, balanced=False):
        before = self.handlers.get(proto)
        self.handlers[proto] = handler
        try:
            await self.ask(data(2, data(1, proto) + number(2, int(balanced))))[1]
        except DaemonError:
            self.handlers[proto] = before
            raise

    async def remove(self, proto):
        await self.ask(data(6, data(1, proto)))[1]

    def begin(self, peer, proto, payload):
        return self.ask(data(3, data(1, peer) + data(2, proto) + data(3, payload)))

    async def call(self, peer, proto, payload, timeout=60):
        return await asyncio.wait_for(self.begin(peer, proto, payload)[1], timeout)

    def cancel(self, call_id):
        self.send(call_id, data(5, b""))

    async def close(self):
        self.writer.close()
        await self.task
