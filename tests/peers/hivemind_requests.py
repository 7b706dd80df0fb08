#!/usr/bin/python3
"""The same random requests to hivemind's own daemon and to ours: are they answered alike?

    hivemind_requests.py MUSTER [--short] [--count=12000] [--seed=1] [--show]

Each daemon has a peer (a daemon of either kind, in turn), clients, handlers and calls of both
directions. Peer ids, ports and paths are taken out of the answers before they are compared. Two
answers are alike if both refuse, or if both say the same; both must answer. What differs must be among
the differences that were judged, JUDGED below. Refusals in other words are listed, too."""
import asyncio
import collections
import os
import random
import re
import tempfile

import peers_lib
import lib
import p2pd_lib
from p2pd_lib import (CONNECT, CONNMANAGER, DHT, DISCONNECT, IDENTIFY, LIST_PEERS, PUBSUB, REMOVE_STREAM_HANDLER,
                      STRANGER, STREAM_HANDLER, STREAM_OPEN, Daemon, data, fields, framed, maddr, number,
                      read_message, to_base58)

checks = peers_lib.Checks()
COUNT = lib.option("count", 600 if peers_lib.SHORT else 12000)
SEED = lib.option("seed", 1)
PHASE = 500  # requests between daemons that are started anew
PATIENCE = 20
SILENCE = "nothing in %d s" % PATIENCE
THEIRS = peers_lib.hivemind_daemon()

# What differs, by (request, theirs, ours) as regular expressions, and why that is right.
JUDGED = [
    ("(un)?handle mixed|(add|remove) mixed", ".*", ".*",
     "theirs lets replicas for streams and for calls share a name, and then gives streams to those who expect "
     "calls; ours refuses the second kind"),
    ("list", r"ok: \[\('P', \['tcp'\]\)\]", r"ok: \[\]",
     "with -dhtServer, theirs dials a peer again by itself after DISCONNECT; ours when somebody needs that peer"),
    ("dht 3", "ok: 0 P end", "ok: 0 end",
     "theirs names peers that it was connected to before; ours only those that are connected"),
    ("dht 3", "error: failed to find any peer in table", "ok: 0 end",
     "theirs refuses to look for the nearest of no peers; ours finds none"),
    ("dht [25678]", ".*", "error: not supported: this daemon routes to peers, and keeps no values",
     "theirs looks for values and providers in libp2p's DHT, which hivemind does not use; ours says that it does not"),
]


class World:
    """One daemon under test, the peer that it speaks to, and their clients."""

    def __init__(self, binary, helper, dht):
        flags = ["-dhtServer=1"] if dht else []
        self.daemon, self.peer = Daemon(binary, *flags), Daemon(helper, *flags)
        self.heard = {}

    async def start(self):
        await self.daemon.start()
        await self.peer.start()
        self.clients = [await self.daemon.client(), await self.daemon.client()]
        self.caller = await self.peer.client()

        async def fails(_peer, _payload):
            raise ValueError("as was asked for")

        await self.caller.add("echo", p2pd_lib.echo)
        await self.caller.add("fail", fails)
        await self.peer.serve(p2pd_lib.echo_stream, "/echo")
        self.where = []
        for i in range(2):
            path = "%s/s%d.sock" % (self.daemon.dir, i)

            async def say(reader, writer, i=i):
                await read_message(reader)
                writer.write(b"handler %d" % i)
                writer.close()

            await asyncio.start_unix_server(say, path)
            self.where.append("/unix" + path)
        self.ids = {"D": self.daemon.id, "P": self.peer.id, "stranger": STRANGER, "bad": b"\x01\x02\x03",
                    "empty": b""}
        self.names = [(to_base58(self.daemon.id), "D"), (to_base58(self.peer.id), "P"),
                      (to_base58(STRANGER), "stranger"), (self.daemon.dir, "DIR")]
        return self

    async def stop(self):
        for d in self.daemon, self.peer:
            if d.process.returncode is None:
                d.process.kill()
            await d.process.wait()

    def plain(self, text):
        """A text without what differs between any two daemons."""
        for name, role in self.names:
            text = text.replace(name, role)
            text = text.replace("<peer.ID %s*%s>" % (name[:2], name[-6:]), role)
        text = re.sub(r"/tcp/\d+|127\.0\.0\.1:\d+", lambda m: re.sub(r"\d+$", "N", m[0]), text)
        return re.sub(r"\s+", " ", text).strip()

    def role(self, raw):
        return next((role for role, known in self.ids.items() if known == raw), raw.hex())

    def place(self, raw):
        return re.sub(rb"^\x04(....)\x06..", b"ip4 tcp", raw, flags=re.S).hex() if raw[:1] != b"\x04" else "tcp"

    # --- requests: each returns a text to compare -------------------------------------------------

    async def ask(self, kind, params, more=False):
        answer = await self.daemon.request(kind, params)
        return answer

    async def identify(self):
        who = fields((await self.ask(IDENTIFY, b""))[4][0])
        return "%s %s" % (self.role(who[1][0]), sorted(self.place(a) for a in who.get(2, [])))

    async def connect(self, who, at, timeout):
        params = b"" if who is None else data(1, self.ids[who])
        if at == "right":
            params += b"".join(data(2, a) for a in self.peer.addrs)
        elif at == "refused":
            params += data(2, maddr("/ip4/127.0.0.1/tcp/1"))
        elif at == "bad":
            params += data(2, b"\xff\xff")
        elif at == "udp":
            params += data(2, maddr("/ip4/127.0.0.1/udp/9"))
        if timeout:
            params += number(3, timeout)
        await self.ask(CONNECT, params if who is not None else None)
        return "connected"

    async def disconnect(self, who):
        await self.ask(DISCONNECT, None if who is None else data(1, self.ids[who]))
        return "disconnected"

    async def list(self):
        peers = [fields(p) for p in (await self.ask(LIST_PEERS, b"")).get(6, [])]
        return str(sorted((self.role(p[1][0]), [self.place(a) for a in p.get(2, [])]) for p in peers))

    async def open(self, who, names):
        reader, writer, info = await self.daemon.stream(self.ids[who], *names)
        writer.write(b"hello")
        got = await reader.read(5)  # theirs may lose it if the client ends its side first
        writer.write_eof()
        got += await reader.read(-1)
        writer.close()
        return "%s %s %s %r" % (self.role(info[1][0]), self.place(info[2][0]), info[3][0].decode(), got)

    async def handle(self, at, names, balanced):
        where = b"\xff\xff" if at is None else maddr(self.where[at])
        params = data(1, where) + b"".join(data(2, n) for n in names)
        await self.ask(STREAM_HANDLER, params + number(3, balanced))
        return "handled"

    async def unhandle(self, at, names):
        where = b"\xff\xff" if at is None else maddr(self.where[at])
        await self.ask(REMOVE_STREAM_HANDLER, data(1, where) + b"".join(data(2, n) for n in names))
        return "no longer handled"

    async def comes(self, name):
        """The peer opens a stream to the daemon."""
        await self.peer.connect(self.daemon)
        try:
            reader, writer, info = await self.peer.stream(self.daemon.id, name)
        except p2pd_lib.Failure as error:
            if "negotiate" in str(error):
                return "nobody handles it"
            raise
        got = await reader.read(-1)
        writer.close()
        # A peer that has not heard yet that the name is gone sees only the end.
        return "%s %r" % (info[3][0].decode(), got) if got else "nothing comes"

    async def add(self, client, name, balanced):
        async def answer(_peer, payload):
            return b"%d " % client + payload

        await self.clients[client].add(name, answer, balanced=balanced)
        return "added"

    async def remove(self, client, name):
        await self.clients[client].remove(name)
        return "removed"

    async def call(self, client, who, name, size):
        got = await self.clients[client].call(self.ids[who], name, b"x" * size)
        return "answer of %d" % len(got)

    async def called(self, name):
        await self.peer.connect(self.daemon)
        return repr(await self.caller.call(self.daemon.id, name, b"hello"))

    async def cancel(self, client):
        """A cancel of what is not under way: no answer; what comes next is answered."""
        self.clients[client].send(b"0123456789abcdef", data(5, b""))
        return await self.call(client, "P", "echo", 3)

    async def dht(self, kind, who, key):
        params = number(1, kind)
        if who is not None:
            params += data(2, self.ids[who])
        if key:
            params += data(4, key) + data(5, b"value")
        params += number(7, 2)
        reader, writer = await self.daemon.dial()
        try:
            writer.write(framed(number(1, DHT) + data(5, params)))
            answer = fields(await read_message(reader))
            if answer[1][0] != 0:
                raise p2pd_lib.Failure(fields(answer[2][0])[1][0].decode())
            said = fields(answer[5][0])
            out = ["%d" % said[1][0]]
            if 2 in said:
                out.append(self.role(fields(said[2][0])[1][0]))
            if 3 in said:
                out.append("value of %d" % len(said[3][0]))
            while said[1][0] == 0 and kind in (1, 2, 3, 6):
                one = fields(await read_message(reader))
                if one[1][0] == 2:
                    out.append("end")
                    break
                out.append(self.role(one[3][0]) if 3 in one else "peer")
            return " ".join(out)
        finally:
            writer.close()

    async def manager(self, kind, who):
        params = number(1, kind) + (b"" if who is None else data(2, self.ids[who]))
        await self.ask(CONNMANAGER, params + data(3, "tag") + number(4, 5))
        return "managed"

    async def pubsub(self, kind):
        await self.ask(PUBSUB, number(1, kind) + data(2, "topic") + data(3, b"x"))
        return "pubsub"

    async def raw(self, what):
        """Bytes that are no request: the answer, or the end."""
        reader, writer = await self.daemon.dial()
        try:
            writer.write(what)
            writer.write_eof()
            try:
                answer = fields(await read_message(reader))
            except (asyncio.IncompleteReadError, ConnectionError):
                return "closed"
            if answer[1][0] != 0:
                raise p2pd_lib.Failure(fields(answer[2][0])[1][0].decode())
            return "ok"
        finally:
            writer.close()

    async def do(self, what, args):
        try:
            return "ok: " + self.plain(await asyncio.wait_for(getattr(self, what)(*args), PATIENCE))
        except p2pd_lib.Failure as error:
            return "error: " + self.plain(str(error))
        except p2pd_lib.DaemonError as error:
            return "daemon error: " + self.plain(str(error))
        except p2pd_lib.HandlerError as error:
            return "handler error: " + self.plain(str(error))
        except asyncio.TimeoutError:
            return SILENCE
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            return "closed"


SOME = ["/s0", "/s1", "/s2"]
MIXED = "/mixed"  # for streams and for calls
CALLS = ["u0", "u1", "u2"]


def draw(rng):
    """One request and what it is about."""
    who = lambda: rng.choice(["P"] * 6 + ["D", "stranger", "bad", "empty"])
    pick = lambda names: rng.sample(names, rng.choice([1, 1, 1, 2, 3, 0]))
    return rng.choice([
        lambda: ("identify",),
        lambda: ("connect", who(), rng.choice(["right"] * 6 + ["none", "refused", "bad", "udp"]), rng.choice([0, 0, 5])),
        lambda: ("connect", None, "none", 0),
        lambda: ("disconnect", rng.choice(["P", "P", "P", "stranger", "bad", "D", None])),
        lambda: ("list",),
        lambda: ("open", who(), pick(["/echo", "/none", "/s0"])),
        lambda: ("open", "P", ["/echo"]),
        lambda: ("handle", rng.choice([0, 1, 0, 1, None]), pick(SOME), rng.choice([0, 0, 1])),
        lambda: ("handle", 0, [MIXED], rng.choice([0, 1])),
        lambda: ("unhandle", 0, [MIXED]),
        lambda: ("unhandle", rng.choice([0, 1, 0, 1, None]), pick(SOME)),
        lambda: ("comes", rng.choice(SOME)),
        lambda: ("add", rng.randrange(2), rng.choice(CALLS + [MIXED]), rng.choice([False, False, True])),
        lambda: ("remove", rng.randrange(2), rng.choice(CALLS + [MIXED])),
        lambda: ("call", rng.randrange(2), who(), rng.choice(["echo", "echo", "fail", "none"]),
                 rng.choice([0, 5, 5, 70000])),
        lambda: ("called", rng.choice(CALLS)),
        lambda: ("cancel", rng.randrange(2)),
        lambda: ("dht", rng.choice([0, 0, 3, 3, 4, 4, 1, 2, 5, 6, 7, 8, 77]),
                 rng.choice(["P", "P", "D", "stranger", "bad", None]), rng.choice([b"", b"key"])),
        lambda: ("manager", rng.choice([0, 1, 2, 9]), rng.choice(["P", "P", "stranger", "bad", None])),
        lambda: ("pubsub", rng.randrange(5)),
        lambda: ("raw", rng.choice([framed(number(1, rng.choice([11, 12, 99]))), framed(b""), b"\xff" * 11,
                                    framed(b"\x08"), framed(number(1, rng.choice([1, 2, 3, 4, 6, 7, 8, 10]))),
                                    framed(number(2, 1))])),
    ])()


def label(what, args):
    """What a difference is filed under."""
    if what in ("handle", "unhandle", "add", "remove") and MIXED in (args[1], *args[1]):
        return what + " mixed"
    return what + (" %s" % args[0] if what in ("dht", "raw", "manager") else "")


def outcome(said):
    """Refusals are alike, in whatever words, if the same one refuses: the daemon, or the peer's handler."""
    if said in ("ok: nobody handles it", "ok: nothing comes"):
        return "nobody handles it"
    return re.sub("^((?:daemon |handler )?error): .*", r"\1", said)


async def phase(rng, binaries, helper, dht, tally, count):
    worlds = {kind: await World(binary, binaries[helper], dht).start() for kind, binary in binaries.items()}
    recent = collections.deque(maxlen=6)
    try:
        for _ in range(count):
            what, *args = draw(rng)
            theirs, ours = await asyncio.gather(*(worlds[kind].do(what, args) for kind in ("theirs", "ours")))
            key = label(what, args), theirs, ours
            tally["silent"] += [key] * (SILENCE in (theirs, ours))
            if outcome(theirs) != outcome(ours):
                tally["otherwise"][key].append([args, *recent])
            elif theirs != ours:
                tally["worded"][key].append(args)
            else:
                tally["same"] += 1
            recent.appendleft("%s %s: %s / %s" % (what, args, theirs, ours))
    finally:
        for world in worlds.values():
            await world.stop()


def show(differences):
    for (what, theirs, ours), cases in sorted(differences, key=lambda item: -len(item[1])):
        checks.note("%5d %s %r\n              theirs: %s\n              ours:   %s" % (
            len(cases), what, cases[0], theirs, ours))


def judge(tally):
    judged, left = collections.Counter(), []
    for (what, theirs, ours), cases in tally["otherwise"].items():
        why = next((why for request, a, b, why in JUDGED if re.fullmatch(request, what) and re.fullmatch(a, theirs) and
                    re.fullmatch(b, ours)), None)
        judged[why] += len(cases)
        if why is None:
            left.append(((what, theirs, ours), cases))
    worded = sum(map(len, tally["worded"].values()))
    checks.note("%d of %d requests answered alike, %d refused in other words, %d answered otherwise" % (
        tally["same"], COUNT, worded, sum(judged.values())))
    if "--show" in lib.sys.argv:
        show(tally["worded"].items())
    show(left)
    checks.equal((tally["same"] + worded + sum(judged.values()), tally["silent"]), (COUNT, []),
                 "%d requests were answered by both" % COUNT)
    checks.equal(judged[None], 0, "none of them otherwise without a reason")
    for why, times in judged.most_common():
        if why is not None:
            checks.note("%d times: %s" % (times, why))


async def main():
    rng = random.Random(SEED)
    tally = {"same": 0, "silent": [], "worded": collections.defaultdict(list),
             "otherwise": collections.defaultdict(list)}
    with tempfile.TemporaryDirectory() as folder:
        binaries = {"theirs": THEIRS, "ours": p2pd_lib.link_binary(folder)}
        for begin in range(0, COUNT, PHASE):
            turn = begin // PHASE
            await phase(rng, binaries, ("theirs", "ours")[turn % 2], turn % 4 >= 2, tally, min(PHASE, COUNT - begin))
            checks.note("%d requests so far" % min(begin + PHASE, COUNT))
    judge(tally)
    checks.done()


asyncio.run(main())
