//! A peer of rust-libp2p for tests/peers/rust_libp2p.py: TCP, Noise, yamux, identify, ping, kad,
//! relays, and protocols of ours. Its flags and requests are those of tests/peers/go/gopeer.

mod streams;

use std::{collections::HashMap, error::Error, time::{Duration, Instant}};

use futures::StreamExt;
use libp2p::{
    core::PeerRecord,
    identify, kad, noise, ping, relay,
    identity::Keypair,
    multiaddr::Protocol,
    swarm::{behaviour::toggle::Toggle, dial_opts::{DialOpts, PeerCondition}, NetworkBehaviour, SwarmEvent},
    tcp, yamux, Multiaddr, PeerId, StreamProtocol, Swarm, SwarmBuilder,
};
use serde_json::{json, Value};
use tokio::{io::{AsyncBufReadExt, BufReader}, sync::mpsc};

#[derive(NetworkBehaviour)]
struct Behaviour {
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    kad: Toggle<kad::Behaviour<kad::store::MemoryStore>>,
    relay: Toggle<relay::Behaviour>,
    client: relay::client::Behaviour,
    streams: libp2p_stream::Behaviour,
}

/// What was heard of others, and the one request that is under way.
#[derive(Default)]
struct World {
    infos: HashMap<PeerId, identify::Info>,
    pings: HashMap<PeerId, Duration>,
    failed: Option<String>,
    found: Option<Vec<kad::PeerInfo>>,
    reserved: bool,
    request: Option<Request>,
}

struct Request {
    words: Vec<String>,
    peer: Option<PeerId>,
    begun: Instant,
    running: bool,
}

fn flag(name: &str) -> Option<String> {
    let begin = format!("-{name}");
    std::env::args().skip(1).find_map(|a| {
        a.strip_prefix(&begin).map(|rest| rest.strip_prefix('=').unwrap_or(rest).to_string())
    })
}

fn new_key() -> Result<Keypair, Box<dyn Error>> {
    Ok(match flag("key").as_deref() {
        None | Some("ed25519") => Keypair::generate_ed25519(),
        Some("secp256k1") => Keypair::generate_secp256k1(),
        Some("ecdsa") => Keypair::generate_ecdsa(),
        // rust-libp2p makes no RSA keys.
        Some("rsa") => Keypair::rsa_from_pkcs8(&mut std::fs::read(flag("pkcs8").ok_or("-pkcs8 names the key")?)?)?,
        Some(other) => return Err(format!("there are no keys of type {other}").into()),
    })
}

fn muxer() -> yamux::Config {
    let mut config = yamux::Config::default();
    if flag("few").is_none() {
        config.set_max_num_streams(4096);
    }
    config
}

fn behave(key: &Keypair, client: relay::client::Behaviour) -> Behaviour {
    let id = key.public().to_peer_id();
    let table = flag("kad").map(|mode| {
        let mut table = kad::Behaviour::with_config(id, kad::store::MemoryStore::new(id),
            kad::Config::new(StreamProtocol::new("/ipfs/kad/1.0.0")));
        table.set_mode(Some(if mode == "client" { kad::Mode::Client } else { kad::Mode::Server }));
        table
    });
    let relay = std::env::args().any(|a| a == "-relay").then(|| {
        let bytes = flag("relay-bytes").and_then(|n| n.parse().ok()).unwrap_or(1 << 30);
        relay::Behaviour::new(id, relay::Config { max_circuit_bytes: bytes, ..Default::default() })
    });
    Behaviour {
        identify: identify::Behaviour::new(identify::Config::new_with_signed_peer_record("ipfs/0.1.0".into(), key)
            .with_agent_version("rustpeer".into())
            .with_push_listen_addr_updates(true)),
        ping: ping::Behaviour::new(ping::Config::new().with_interval(Duration::from_millis(200))),
        kad: table.into(),
        relay: relay.into(),
        client,
        streams: libp2p_stream::Behaviour::new(),
    }
}

impl World {
    fn take(&mut self, swarm: &mut Swarm<Behaviour>, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::OutgoingConnectionError { error, .. } => self.failed = Some(format!("{error:?}")),
            SwarmEvent::ListenerClosed { reason: Err(error), .. } => self.failed = Some(error.to_string()),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received { peer_id, info, .. })) => {
                if let Some(table) = swarm.behaviour_mut().kad.as_mut() {
                    for addr in &info.listen_addrs {
                        table.add_address(&peer_id, addr.clone());
                    }
                }
                self.infos.insert(peer_id, info);
            }
            SwarmEvent::Behaviour(BehaviourEvent::Ping(ping::Event { peer, result, .. })) => match result {
                Ok(took) => { self.pings.insert(peer, took); }
                Err(error) => self.failed = Some(error.to_string()),
            },
            SwarmEvent::Behaviour(BehaviourEvent::Kad(kad::Event::OutboundQueryProgressed {
                result: kad::QueryResult::GetClosestPeers(found), .. })) => {
                self.found = Some(found.map(|ok| ok.peers).unwrap_or_default());
            }
            SwarmEvent::Behaviour(BehaviourEvent::Client(
                relay::client::Event::ReservationReqAccepted { .. })) => self.reserved = true,
            _ => {}
        }
    }

    /// Begins a request; an error is its answer.
    fn begin(&mut self, swarm: &mut Swarm<Behaviour>, words: Vec<String>) -> Result<(), Box<dyn Error>> {
        (self.failed, self.found, self.reserved) = (None, None, false);
        let mut peer = None;
        let (what, whom) = (words[0].as_str(), words.get(1).cloned().unwrap_or_default());
        if what == "find" {
            let sought: PeerId = whom.parse()?;
            swarm.behaviour_mut().kad.as_mut().ok_or("it was started without -kad")?.get_closest_peers(sought);
            peer = Some(sought);
        } else if what == "listen" {
            swarm.listen_on(whom.parse()?)?;
        } else if what == "reserve" {
            swarm.listen_on(whom.parse::<Multiaddr>()?.with(Protocol::P2pCircuit))?;
        } else if let Ok(id) = whom.parse::<PeerId>() {
            peer = Some(id);
        } else if !whom.is_empty() {
            let addr: Multiaddr = whom.parse()?;
            let Some(Protocol::P2p(id)) = addr.iter().last() else { return Err("it names no peer".into()) };
            self.pings.remove(&id);
            peer = Some(id);
            if !swarm.is_connected(&id) {
                swarm.dial(DialOpts::peer_id(id).addresses(vec![addr]).condition(PeerCondition::Always).build())?;
            }
        }
        self.request = Some(Request { words, peer, begun: Instant::now(), running: false });
        Ok(())
    }

    /// The answer to the request, if it can be given by now; a request for streams goes on in a task.
    fn answer(&mut self, swarm: &Swarm<Behaviour>, done: &mpsc::UnboundedSender<Value>) -> Option<Value> {
        let request = self.request.as_mut()?;
        if request.running {
            return None;
        }
        let (what, peer) = (request.words[0].as_str(), request.peer);
        match what {
            "addresses" => {
                return Some(json!({"addresses": swarm.listeners().map(|a| a.to_string()).collect::<Vec<_>>()}));
            }
            "find" => {
                let found = self.found.as_ref()?;
                let addresses: Vec<_> = found.iter().filter(|p| Some(p.peer_id) == peer).flat_map(|p| &p.addrs)
                    .map(|a| a.to_string().split("/p2p/").next().unwrap_or("").to_string()).collect();
                return Some(json!({"addresses": addresses}));
            }
            "listen" if swarm.listeners().next().is_some() => return Some(json!({})),
            "reserve" if self.reserved => {
                let address = format!("{}/p2p-circuit/p2p/{}", request.words[1], swarm.local_peer_id());
                return Some(json!({"address": address}));
            }
            _ => {}
        }
        if let Some(error) = &self.failed {
            return Some(json!({"error": error}));
        }
        let Some(peer) = peer.filter(|p| swarm.is_connected(p)) else {
            let late = request.begun.elapsed() > Duration::from_secs(20) && what != "heard";
            return late.then(|| json!({"error": "it took too long"}));
        };
        match what {
            "connect" => Some(json!({"peer": peer.to_string()})),
            "ping" => self.pings.get(&peer).map(|took| json!({"ms": took.as_secs_f64() * 1e3})),
            "identify" => self.infos.get(&peer).map(|info| {
                let texts = |all: &[Multiaddr]| all.iter().map(|a| a.to_string()).collect::<Vec<_>>();
                let certified = info.signed_peer_record.clone().and_then(|e| PeerRecord::from_signed_envelope_interop(e).ok());
                json!({
                    "agent": info.agent_version,
                    "protocols": info.protocols.iter().map(|p| p.to_string()).collect::<Vec<_>>(),
                    "addresses": texts(&info.listen_addrs),
                    "certified": certified.filter(|r| r.peer_id() == peer).map(|r| texts(r.addresses())),
                })
            }),
            _ => {
                request.running = true;
                let control = swarm.behaviour().streams.new_control();
                run(control, peer, request.words.clone(), done.clone());
                None
            }
        }
    }
}

/// A request for streams.
fn run(control: libp2p_stream::Control, peer: PeerId, words: Vec<String>, done: mpsc::UnboundedSender<Value>) {
    tokio::spawn(async move {
        let number = |at: usize| words.get(at).and_then(|w| w.parse().ok()).unwrap_or(1 << 20);
        let result = match words[0].as_str() {
            "echo" => streams::echo(control, peer, number(2)).await,
            "sink" => streams::sink(control, peer, number(2)).await,
            "streams" => streams::together(control, peer, number(2), number(3)).await,
            "reset" => streams::reset(control, peer).await,
            "early" => streams::early(control, peer, number(2)).await,
            "open" => streams::try_name(control, peer, words[2].clone()).await,
            other => Err(std::io::Error::other(format!("there is no request {other}"))),
        };
        let _ = done.send(result.map_or_else(|e| json!({"error": e.to_string()}), |()| json!({})));
    });
}

async fn first_address(swarm: &mut Swarm<Behaviour>) -> Result<String, Box<dyn Error>> {
    let listen = flag("listen").unwrap_or("/ip4/127.0.0.1/tcp/0".into());
    if listen.is_empty() {
        return Ok(String::new());
    }
    swarm.listen_on(listen.parse()?)?;
    loop {
        if let SwarmEvent::NewListenAddr { address, .. } = swarm.select_next_some().await {
            swarm.add_external_address(address.clone()); // a relay tells it to those it takes
            return Ok(address.to_string());
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut swarm = SwarmBuilder::with_existing_identity(new_key()?)
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, muxer)?
        .with_relay_client(noise::Config::new, muxer)?
        .with_behaviour(behave)?
        .with_swarm_config(|c| {
            c.with_idle_connection_timeout(Duration::from_secs(600)).with_max_negotiating_inbound_streams(4096)
        })
        .build();
    let (heard, mut hearing) = mpsc::unbounded_channel();
    for name in [streams::ECHO, streams::SINK, streams::ABORT, streams::EARLY] {
        let incoming = swarm.behaviour().streams.new_control().accept(StreamProtocol::new(name))?;
        streams::serve_all(name, incoming, heard.clone());
    }
    println!("{}/p2p/{}", first_address(&mut swarm).await?, swarm.local_peer_id());
    let (done, mut answers) = mpsc::unbounded_channel();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut tick = tokio::time::interval(Duration::from_millis(500));
    let mut world = World::default();
    loop {
        let mut said = None;
        tokio::select! {
            event = swarm.select_next_some() => world.take(&mut swarm, event),
            line = lines.next_line(), if world.request.is_none() => {
                let Some(line) = line? else { return Ok(()) };
                if let Err(error) = world.begin(&mut swarm, serde_json::from_str(&line)?) {
                    world.request = None;
                    println!("{}", json!({"error": error.to_string()}));
                }
            }
            answer = answers.recv() => said = answer,
            n = hearing.recv(), if world.request.as_ref().is_some_and(|r| r.words[0] == "heard") => {
                said = Some(json!({"bytes": n}));
            }
            _ = tick.tick() => {}
        }
        if let Some(mut said) = said.or_else(|| world.answer(&swarm, &done)) {
            if let Some(request) = world.request.take() {
                said["seconds"] = json!(request.begun.elapsed().as_secs_f64());
            }
            println!("{said}");
        }
    }
}
