// A peer of js-libp2p with its circuit relay v2, for tests/interop/peer_relay_js.py.
//
//     node relay.mjs relay [--bytes N] [--seconds N]     is a relay, with these limits for a circuit
//     node relay.mjs behind RELAY                        is reached through that relay
//     node relay.mjs dial MULTIADDR [--bytes N]          pings, and has bytes echoed
//
// The first two print their multiaddr, serve until their standard input ends, and exit with 0. dial
// prints a line of JSON.
import './old-node.mjs' // first
import { createLibp2p } from 'libp2p'
import { tcp } from '@libp2p/tcp'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { ping } from '@libp2p/ping'
import { circuitRelayServer, circuitRelayTransport } from '@libp2p/circuit-relay-v2'
import { multiaddr } from '@multiformats/multiaddr'

const ECHO = '/muster/echo/1.0.0'
const MINUTE_MS = 60 * 1000

function option (name, otherwise) {
  const at = process.argv.indexOf(`--${name}`)
  return at < 0 ? otherwise : Number(process.argv[at + 1])
}

async function start (listen, services) {
  const node = await createLibp2p({
    addresses: { listen },
    transports: [tcp(), circuitRelayTransport({ discoverRelays: 0 })],
    connectionEncryption: [noise()],
    connectionMonitor: { enabled: false },
    connectionManager: { inboundUpgradeTimeout: MINUTE_MS, dialTimeout: MINUTE_MS },
    streamMuxers: [yamux()],
    services: {
      identify: identify({ timeout: MINUTE_MS, runOnTransientConnection: true }),
      ping: ping({ timeout: MINUTE_MS, runOnTransientConnection: true }),
      ...services
    }
  })
  await node.handle(ECHO, ({ stream }) => {
    stream.sink(stream.source).catch((err) => { stream.abort(err) })
  }, { runOnTransientConnection: true })
  return node
}

async function serve (node) {
  for await (const line of process.stdin) void line
  await node.stop()
}

async function relay () {
  const node = await start(['/ip4/127.0.0.1/tcp/0'], {
    relay: circuitRelayServer({
      reservations: {
        defaultDurationLimit: option('seconds', 1800) * 1000,
        defaultDataLimit: BigInt(option('bytes', 2 ** 32))
      }
    })
  })
  console.log(node.getMultiaddrs()[0].toString())
  await serve(node)
}

async function behind (at) {
  const node = await start([`${at}/p2p-circuit`], {})
  let addr
  for (let i = 0; i < 2000 && addr == null; i++) {
    addr = node.getMultiaddrs().find((a) => a.toString().includes('/p2p-circuit'))
    await new Promise((resolve) => setTimeout(resolve, 5))
  }
  if (addr == null) throw new Error('no place at the relay')
  console.log(addr.toString())
  await serve(node)
}

async function dial (to) {
  const total = option('bytes', 100000)
  const node = await start([], {})
  const connection = await node.dial(multiaddr(to))
  const rtt = await node.services.ping.ping(connection.remotePeer)
  const stream = await connection.newStream(ECHO, { runOnTransientConnection: true })
  const bytes = new Uint8Array(total)
  for (let i = 0; i < total; i++) bytes[i] = (i * 167) >> 3
  const back = []
  const sending = stream.sink([bytes])
  for await (const chunk of stream.source) back.push(Buffer.from(chunk.subarray()))
  await sending
  if (Buffer.compare(Buffer.concat(back), Buffer.from(bytes)) !== 0) {
    throw new Error('what came back is not what was sent')
  }
  const transient = connection.transient
  await node.stop()
  console.log(JSON.stringify({ rtt, bytes: total, transient }))
}

const [what, address] = process.argv.slice(2)
try {
  await ({ relay, behind, dial })[what](address)
  process.exit(0)
} catch (err) {
  console.error(err)
  process.exit(1)
}
