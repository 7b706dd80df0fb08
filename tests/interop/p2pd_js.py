#!/usr/bin/python3
"""The daemon beside js-libp2p's, where their protocols overlap.

    p2pd_js.py [MUSTER]

js-libp2p's client drives our daemon; our client drives js-libp2p's daemon; and the two daemons bring
streams to each other. js-libp2p knows neither persistent connections nor unary calls.
"""
import asyncio
import json
import os
import tempfile

import lib
from lib import Checks, die_with_parent
from p2pd_lib import Daemon, Failure, echo_stream

checks = Checks()
JS = os.path.join(lib.HERE, "js")


class JsDaemon(Daemon):
    """js-libp2p's, which says who it is as ours does."""

    async def start(self):
        self.process = await asyncio.create_subprocess_exec(
            "node", "daemon.mjs", "server", stdout=asyncio.subprocess.PIPE, cwd=JS,
            preexec_fn=die_with_parent)
        return await self.ready()


async def js(control, what, *words, first=None):
    process = await asyncio.create_subprocess_exec(
        "node", "daemon.mjs", "client", control, what, *words, stdout=asyncio.subprocess.PIPE,
        cwd=JS, preexec_fn=die_with_parent)
    if first is not None:
        first.set_result(await process.stdout.readline())
    out, _ = await asyncio.wait_for(process.communicate(), max(60, lib.PATIENCE))
    return json.loads(out.decode().splitlines()[-1])


def addr_text(d):
    raw = d.addrs[0]
    return "/ip4/%s/tcp/%d" % (".".join(str(b) for b in raw[1:5]), int.from_bytes(raw[6:8], "big"))


async def their_client(a, b):
    said = await js(a.control, "identify")
    checks.equal(said, {"id": a.name, "addrs": [addr_text(a)]}, "js client: identify")
    checks.equal(await js(a.control, "connect", b.name, addr_text(b)), {}, "js client: connect")
    checks.equal(await js(a.control, "peers"), {"peers": [b.name]}, "js client: list peers")
    refused = await js(a.control, "connect", b.name[:-4] + "aaaa")
    checks.ok("error" in refused, "js client: a refusal", refused)
    first = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(js(b.control, "serve", "/js/echo", first=first))
    await first
    said = await js(a.control, "echo", b.name, "/js/echo", "hello " * 1000)
    checks.ok(said == {"heard": "hello " * 1000}, "js client: a stream, and a handler", said)
    checks.equal(await serving, {}, "js client: the handler ends")
    said = await js(a.control, "echo", b.name, "/js/none", "x")
    checks.ok("failed to negotiate protocol" in said.get("error", ""), "js client: no such protocol", said)
    said = await js(a.control, "find", b.name)
    checks.equal(said.get("id"), b.name, "js client: find a peer")


async def their_daemon(a):
    theirs = await JsDaemon("").start()
    await theirs.connect(a)
    checks.ok(a.id in await theirs.peers(), "js daemon: connects to ours")
    checks.ok(theirs.id in await a.peers(), "ours knows it")
    await a.serve(echo_stream, "/ours")
    await theirs.serve(echo_stream, "/theirs", tcp=True)
    for d, other, proto in (theirs, a, "/ours"), (a, theirs, "/theirs"):
        reader, writer, info = await d.stream(other.id, proto)
        checks.equal((info[1][0], info[3][0].decode()), (other.id, proto), f"{proto}: agreed")
        text = os.urandom(1 << 20)
        writer.write(text)
        got = await asyncio.wait_for(reader.readexactly(len(text)), 60)
        checks.ok(got == text, f"{proto}: a MiB there and back")
        writer.close()
    try:
        await a.stream(theirs.id, "/none")
        checks.ok(False, "a protocol that js does not know")
    except Failure as e:
        checks.ok("failed to negotiate protocol" in str(e), "a protocol that js does not know", e)
    theirs.process.kill()
    await theirs.process.wait()


async def main():
    with tempfile.TemporaryDirectory() as folder:
        p2pd = os.path.join(folder, "p2pd")
        os.symlink(lib.muster_path(), p2pd)
        a, b = [await Daemon(p2pd, "-dhtServer=1", listen="/ip4/127.0.0.1/tcp/0").start()
                for _ in range(2)]
        await their_client(a, b)
        await their_daemon(a)
        await asyncio.gather(a.stop(), b.stop())


asyncio.run(asyncio.wait_for(main(), 280))
checks.done()
