// js-libp2p's daemon, for tests/interop/p2pd_js.py and bench/bench_p2pd.
//
//     node daemon.mjs server                     says who and where it is as ours does
//     node daemon.mjs client CONTROL WHAT [...]  its client, on any daemon: prints a line of JSON
//
// WHAT: identify; connect PEER ADDR; peers; serve PROTOCOL (echoes one stream, then ends);
// echo PEER PROTOCOL TEXT; find PEER
import './old-node.mjs' // first
import { createLibp2p } from 'libp2p'
import { tcp } from '@libp2p/tcp'
import { noise } from '@chainsafe/libp2p-noise'
import { yamux } from '@chainsafe/libp2p-yamux'
import { identify } from '@libp2p/identify'
import { createServer } from '@libp2p/daemon-server'
import { createClient } from '@libp2p/daemon-client'
import { peerIdFromString } from '@libp2p/peer-id'
import { multiaddr } from '@multiformats/multiaddr'

async function server () {
  const node = await createLibp2p({
    addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
    transports: [tcp()],
    connectionEncryption: [noise()],
    connectionMonitor: { enabled: false },
    streamMuxers: [yamux({ maxInboundStreams: 5000, maxOutboundStreams: 5000 })],
    services: { identify: identify() }
  })
  const daemon = createServer(multiaddr('/ip4/127.0.0.1/tcp/0'), node)
  await daemon.start()
  console.log(`Control socket: ${daemon.getMultiaddr()}`)
  console.log(`Peer ID: ${node.peerId}`)
  console.log('Peer Addrs:')
}

async function text (source) {
  let said = ''
  for await (const piece of source) said += Buffer.from(piece.subarray()).toString()
  return said
}

async function echo (client, peer, protocol, words) {
  const stream = await client.openStream(peerIdFromString(peer), protocol)
  const heard = text(stream.source)
  await stream.sink([Buffer.from(words)])
  return await heard
}

async function client (control, what, words) {
  const client = createClient(multiaddr(control))
  switch (what) {
    case 'identify': {
      const { peerId, addrs } = await client.identify()
      return { id: peerId.toString(), addrs: addrs.map(String) }
    }
    case 'connect':
      await client.connect(peerIdFromString(words[0]), words.slice(1).map(a => multiaddr(a)))
      return {}
    case 'peers':
      return { peers: (await client.listPeers()).map(String) }
    case 'serve':
      await new Promise((resolve, reject) => {
        client.registerStreamHandler(words[0], async stream => {
          await stream.sink(stream.source)
          setTimeout(resolve, 500)
        }).then(() => { console.log('serving') }, reject)
      })
      return {}
    case 'echo':
      return { heard: await echo(client, ...words) }
    case 'find': {
      const found = await client.dht.findPeer(peerIdFromString(words[0]))
      return { id: found.id.toString(), addrs: found.multiaddrs.map(String) }
    }
  }
  throw new Error(`there is no "${what}"`)
}

const [mode, ...words] = process.argv.slice(2)
if (mode === 'server') {
  await server()
} else {
  try {
    console.log(JSON.stringify(await client(words[0], words[1], words.slice(2))))
    process.exit(0)
  } catch (e) {
    console.log(JSON.stringify({ error: e.message }))
    process.exit(1)
  }
}
