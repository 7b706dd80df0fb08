// A peer of js-libp2p for tests/interop/peer_js.py and bench/bench_peer: Noise, yamux, identify and
// ping as they come, and three protocols of ours.
//
//     node peer.mjs listen [--rsa] [--kad] [--listen MULTIADDR]
//     node peer.mjs dial MULTIADDR WHAT [--rsa] [--kad] [--bytes N] [--streams N] [--peer ID]
//
// listen prints its multiaddr, serves, and prints a line of JSON when it is told to stop (its
// standard input ends). dial does WHAT (identify, ping, echo, sink, streams, reset, unknown, find),
// prints a line of JSON and exits; 1 if something was not as it must be. With --kad it has
// js-libp2p's DHT, and serves it; `find` looks for --peer in it, and pings who was found.
import './old-node.mjs' // first
import { createLibp2p } from 'libp2p'
import { tcp } from '@libp2p/tcp'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { kadDHT, passthroughMapper } from '@libp2p/kad-dht'
import { peerIdFromString } from '@libp2p/peer-id'
import { ping } from '@libp2p/ping'
import { createEd25519PeerId, createRSAPeerId } from '@libp2p/peer-id-factory'
import { multiaddr } from '@multiformats/multiaddr'

const ECHO = '/muster/echo/1.0.0'
const SINK = '/muster/sink/1.0.0'
const ABORT = '/muster/abort/1.0.0'
const PATTERN = 1 << 20
const PATIENCE_MS = 3600 * 1000

function options (words) {
  const found = { words: [], bytes: 1 << 20, streams: 500, listen: '/ip4/127.0.0.1/tcp/0', rsa: false }
  for (let i = 0; i < words.length; i++) {
    if (words[i] === '--rsa') found.rsa = true
    else if (words[i] === '--kad') found.kad = true
    else if (words[i] === '--peer') found.peer = words[++i]
    else if (words[i] === '--bytes') found.bytes = Number(words[++i])
    else if (words[i] === '--streams') found.streams = Number(words[++i])
    else if (words[i] === '--listen') found.listen = words[++i]
    else found.words.push(words[i])
  }
  return found
}

function patience () {
  return { maxOutboundStreams: 2000, signal: AbortSignal.timeout(PATIENCE_MS) }
}

function check (is, what) {
  if (!is) throw new Error(what)
}

// The bytes that peerload sends: a mebibyte, over and over.
const pattern = new Uint8Array(2 * PATTERN)
for (let i = 0; i < pattern.length; i++) pattern[i] = ((i % PATTERN) * 167) >> 3

async function start (o, listens) {
  const peerId = o.rsa ? await createRSAPeerId({ bits: 2048 }) : await createEd25519PeerId()
  const node = await createLibp2p({
    peerId,
    addresses: { listen: listens ? [o.listen] : [] },
    transports: [tcp()],
    connectionEncryption: [noise()],
    // A busy peer is not a dead one, whatever its monitor thinks; and these times go on counting
    // behind what they are for.
    connectionMonitor: { enabled: false },
    connectionManager: { inboundUpgradeTimeout: PATIENCE_MS, dialTimeout: PATIENCE_MS },
    streamMuxers: [yamux({ maxInboundStreams: 2000, maxOutboundStreams: 2000 })],
    // A machine with other work to do may take its time.
    services: {
      identify: identify({ timeout: PATIENCE_MS }),
      ping: ping({ timeout: PATIENCE_MS }),
      // Addresses of this machine alone are left out unless it is told not to.
      ...(o.kad
        ? { dht: kadDHT({ protocol: '/ipfs/kad/1.0.0', clientMode: false, peerInfoMapper: passthroughMapper }) }
        : {})
    }
  })
  const limits = { maxInboundStreams: 2000, maxOutboundStreams: 2000 }
  await node.handle(ECHO, ({ stream }) => {
    stream.sink(stream.source).catch((err) => { stream.abort(err) })
  }, limits)
  await node.handle(SINK, async ({ stream }) => {
    let got = 0
    for await (const chunk of stream.source) got += chunk.length
    const answer = new Uint8Array(8)
    new DataView(answer.buffer).setBigUint64(0, BigInt(got), true)
    await stream.sink([answer])
  }, limits)
  await node.handle(ABORT, async ({ stream }) => {
    try {
      for await (const chunk of stream.source) {
        void chunk
        stream.abort(new Error('as was asked for'))
      }
    } catch (err) {
      // The abort, in the reader's view.
    }
  }, limits)
  return node
}

async function * bytesOf (total) {
  for (let at = 0; at < total;) {
    const n = Math.min(65536, total - at, PATTERN - (at % PATTERN))
    yield pattern.subarray(at % PATTERN, (at % PATTERN) + n)
    at += n
  }
}

async function echo (connection, total) {
  const stream = await connection.newStream(ECHO, patience())
  let got = 0
  const sending = stream.sink(bytesOf(total))
  for await (const list of stream.source) {
    for (const chunk of list) {
      const at = got % PATTERN
      for (let i = 0; i < chunk.length; i += PATTERN) {
        const n = Math.min(PATTERN, chunk.length - i)
        check(Buffer.compare(chunk.subarray(i, i + n), pattern.subarray((at + i) % PATTERN, (at + i) % PATTERN + n)) === 0,
          'what came back is not what was sent')
      }
      got += chunk.length
    }
  }
  await sending
  check(got === total, `${got} bytes came back, and ${total} were sent`)
  return got
}

async function sink (connection, total) {
  const stream = await connection.newStream(SINK, patience())
  const sending = stream.sink(bytesOf(total))
  const answer = []
  for await (const list of stream.source) answer.push(...list.subarray())
  await sending
  check(Number(new DataView(Uint8Array.from(answer).buffer).getBigUint64(0, true)) === total,
    'the sink has counted otherwise')
}

const doing = {
  async identify (node, connection, o) {
    const peer = await node.peerStore.get(connection.remotePeer)
    for (const name of ['/ipfs/id/1.0.0', '/ipfs/id/push/1.0.0', '/ipfs/ping/1.0.0', ECHO]) {
      check(peer.protocols.includes(name), `${name} was not said`)
    }
    return {
      agent: Buffer.from(peer.metadata.get('AgentVersion') ?? []).toString(),
      addresses: peer.addresses.map((a) => a.multiaddr.toString()),
      certified: peer.addresses.length > 0 && peer.addresses.every((a) => a.isCertified),
      protocols: peer.protocols
    }
  },
  async ping (node, connection) {
    const times = []
    for (let i = 0; i < 5; i++) times.push(await node.services.ping.ping(connection.remotePeer))
    return { rtt_ms: times }
  },
  async echo (node, connection, o) {
    const since = performance.now()
    const bytes = await echo(connection, o.bytes)
    return { bytes, seconds: (performance.now() - since) / 1000 }
  },
  async sink (node, connection, o) {
    const since = performance.now()
    await sink(connection, o.bytes)
    return { bytes: o.bytes, seconds: (performance.now() - since) / 1000 }
  },
  async streams (node, connection, o) {
    const since = performance.now()
    await Promise.all(Array.from({ length: o.streams }, () => echo(connection, o.bytes)))
    return { streams: o.streams, seconds: (performance.now() - since) / 1000 }
  },
  async reset (node, connection, o) {
    // One that the peer resets: an error, and no end.
    const theirs = await connection.newStream(ABORT, patience())
    let failed = false
    try {
      await theirs.sink(bytesOf(100))
      for await (const chunk of theirs.source) void chunk
    } catch (err) {
      failed = true
    }
    check(failed, 'a stream that was reset ended as if it had been ended')
    // One of ours, in the middle; the connection is as good as before.
    const ours = await connection.newStream(ECHO, patience())
    void ours.sink(bytesOf(10 << 20)).catch(() => {})
    for await (const chunk of ours.source) {
      void chunk
      break
    }
    ours.abort(new Error('as was asked for'))
    return { bytes: await echo(connection, 100000) }
  },
  async find (node, connection, o) {
    const peer = await node.peerRouting.findPeer(peerIdFromString(o.peer), patience())
    await node.dial(peer.multiaddrs)
    return { addresses: peer.multiaddrs.map(String), rtt_ms: await node.services.ping.ping(peer.id) }
  },
  async unknown (node, connection) {
    let refused = false
    try {
      await connection.newStream('/no/such/protocol')
    } catch (err) {
      refused = true
    }
    check(refused, 'a protocol that nobody knows was accepted')
    return { bytes: await echo(connection, 1000) }
  }
}

async function listen (o) {
  const node = await start(o, true)
  let connections = 0
  node.addEventListener('connection:open', () => { connections++ })
  console.log(node.getMultiaddrs()[0].toString())
  for await (const line of process.stdin) {
    if (line.toString().trim() === 'hangup') {
      await Promise.all(node.getConnections().map((c) => c.close()))
    }
  }
  for (let i = 0; i < 500 && node.getConnections().length > 0; i++) {
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
  console.log(JSON.stringify({ connections, open: node.getConnections().length }))
  await node.stop()
}

async function dial (o) {
  const [, to, what] = o.words
  const node = await start(o, false)
  const identified = new Promise((resolve) => {
    node.addEventListener('peer:identify', resolve, { once: true })
  })
  const connection = await node.dial(multiaddr(to))
  await identified
  const result = await doing[what](node, connection, o)
  await connection.close()
  await node.stop()
  console.log(JSON.stringify(result))
}

const o = options(process.argv.slice(2))
try {
  await (o.words[0] === 'listen' ? listen(o) : dial(o))
  process.exit(0)
} catch (err) {
  console.error(err)
  process.exit(1)
}
