// A peer of go-libp2p for tests/peers/go_libp2p.py: a host as it comes, over TCP, with Noise and
// yamux, and protocols of ours.
//
//	gopeer [flags]
//
// It prints its multiaddr, then answers requests on its input, each a line with an array of JSON
// (["ping", ADDRESS]), with a line of JSON; an answer with "error" says what went wrong. It ends
// when its input does.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/libp2p/go-libp2p"
	dht "github.com/libp2p/go-libp2p-kad-dht"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
	"github.com/multiformats/go-multiaddr"
)

var (
	keyType = flag.String("key", "ed25519", "ed25519, rsa, secp256k1 or ecdsa")
	listen  = flag.String("listen", "/ip4/127.0.0.1/tcp/0", "where to listen; empty: nowhere")
	kad     = flag.String("kad", "", "server or client: have a DHT")
	relays  = flag.Bool("relay", false, "be a relay")
	all     = flag.Bool("all", false, "listen with every transport that it has: QUIC, WebTransport and so on")
	few     = flag.Bool("few", false, "allow no more streams than go-libp2p does by itself on a machine with 1 GiB")
	quota   = flag.Int64("relay-bytes", 1<<30, "with -relay: bytes that a circuit carries each way")
)

// patience is for what always comes.
const patience = 10 * time.Minute

type peerState struct {
	host host.Host
	dht  *dht.IpfsDHT
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "gopeer:", err)
	os.Exit(1)
}

func newKey() (crypto.PrivKey, error) {
	kinds := map[string]int{"ed25519": crypto.Ed25519, "rsa": crypto.RSA, "secp256k1": crypto.Secp256k1,
		"ecdsa": crypto.ECDSA}
	kind, known := kinds[*keyType]
	if !known {
		return nil, fmt.Errorf("there are no keys of type %s", *keyType)
	}
	key, _, err := crypto.GenerateKeyPairWithReader(kind, 2048, rand.Reader)
	return key, err
}

func start() (*peerState, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	limits := rcmgr.InfiniteLimits
	if *few {
		limits = rcmgr.DefaultLimits.Scale(1<<30, 4096)
	}
	manager, err := rcmgr.NewResourceManager(rcmgr.NewFixedLimiter(limits))
	if err != nil {
		return nil, err
	}
	options := []libp2p.Option{libp2p.Identity(key), libp2p.ResourceManager(manager), libp2p.EnableRelay()}
	if !*all {
		options = append(options, libp2p.Transport(tcp.NewTCPTransport), libp2p.Security(noise.ID, noise.New),
			libp2p.Muxer(yamux.ID, yamux.DefaultTransport))
	}
	switch {
	case *all:
		udp := "/ip4/127.0.0.1/udp/0/"
		options = append(options, libp2p.ListenAddrStrings(*listen, *listen+"/ws", udp+"quic-v1",
			udp+"quic-v1/webtransport", udp+"webrtc-direct"))
	case *listen == "":
		options = append(options, libp2p.NoListenAddrs, libp2p.EnableRelay())
	default:
		options = append(options, libp2p.ListenAddrStrings(*listen))
	}
	if *relays {
		resources := relay.DefaultResources()
		resources.Limit = &relay.RelayLimit{Duration: time.Hour, Data: *quota}
		options = append(options, libp2p.EnableRelayService(relay.WithResources(resources)),
			libp2p.ForceReachabilityPublic())
	}
	h, err := libp2p.New(options...)
	if err != nil {
		return nil, err
	}
	state := &peerState{host: h}
	if *kad != "" {
		mode := dht.ModeServer
		if *kad == "client" {
			mode = dht.ModeClient
		}
		// Addresses of this machine alone are left out unless it is told not to.
		state.dht, err = dht.New(h, dht.Mode(mode), dht.AddressFilter(
			func(all []multiaddr.Multiaddr) []multiaddr.Multiaddr { return all }))
		if err != nil {
			return nil, err
		}
	}
	h.SetStreamHandler(echoName, echoes)
	h.SetStreamHandler(sinkName, counts)
	h.SetStreamHandler(abortName, aborts)
	h.SetStreamHandler(earlyName, endsFirst)
	return state, nil
}

func main() {
	flag.Parse()
	state, err := start()
	if err != nil {
		fail(err)
	}
	out := json.NewEncoder(os.Stdout)
	if addrs := state.host.Addrs(); len(addrs) > 0 {
		fmt.Printf("%s/p2p/%s\n", addrs[0], state.host.ID())
	} else {
		fmt.Printf("/p2p/%s\n", state.host.ID())
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var words []string
		if err := json.Unmarshal(lines.Bytes(), &words); err != nil || len(words) == 0 {
			fail(fmt.Errorf("a request is an array of texts: %q", lines.Text()))
		}
		said := map[string]any{}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		begun := time.Now()
		if err := state.answer(ctx, words[0], words[1:], said); err != nil {
			said["error"] = err.Error()
		}
		said["seconds"] = time.Since(begun).Seconds()
		cancel()
		if err := out.Encode(said); err != nil {
			fail(err)
		}
	}
	state.host.Close()
}

// connect makes a connection to an address, or takes the one there is to a peer id.
func (s *peerState) connect(ctx context.Context, where string) (peer.ID, error) {
	if id, err := peer.Decode(where); err == nil {
		return id, nil
	}
	info, err := peer.AddrInfoFromString(where)
	if err != nil {
		return "", err
	}
	return info.ID, s.host.Connect(ctx, *info)
}
