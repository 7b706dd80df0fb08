package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/core/protocol"
	"github.com/libp2p/go-libp2p/core/record"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify"
	"github.com/libp2p/go-libp2p/p2p/protocol/identify/pb"
	"github.com/libp2p/go-libp2p/p2p/protocol/ping"
	"github.com/libp2p/go-msgio/pbio"
	"github.com/multiformats/go-multiaddr"
	"google.golang.org/protobuf/proto"
)

func number(words []string, at int, otherwise int64) int64 {
	if at < len(words) {
		if n, err := strconv.ParseInt(words[at], 10, 64); err == nil {
			return n
		}
	}
	return otherwise
}

func texts(addrs []multiaddr.Multiaddr) []string {
	said := []string{}
	for _, a := range addrs {
		said = append(said, a.String())
	}
	return said
}

// answer does what a request says: its first word is what, its second most often whom.
func (s *peerState) answer(ctx context.Context, what string, words []string, said map[string]any) error {
	if len(words) == 0 {
		return s.answerAlone(what, said)
	}
	switch what {
	case "handle":
		s.host.SetStreamHandler(protocol.ID(words[0]), echoes)
		return nil
	case "listen":
		address, err := multiaddr.NewMultiaddr(words[0])
		if err != nil {
			return err
		}
		return s.host.Network().Listen(address)
	case "find":
		return s.find(ctx, words[0], said)
	case "reserve":
		return s.reserve(ctx, words[0], said)
	}
	id, err := s.connect(network.WithAllowLimitedConn(ctx, "test"), words[0])
	if err != nil {
		return err
	}
	ctx = network.WithAllowLimitedConn(ctx, "test")
	switch what {
	case "connect":
		said["peer"] = id.String()
	case "disconnect":
		return s.host.Network().ClosePeer(id)
	case "identify":
		return s.identify(id, said)
	case "ping":
		took := <-ping.Ping(ctx, s.host, id)
		said["ms"] = float64(took.RTT) / 1e6
		return took.Error
	case "echo":
		return s.echo(ctx, id, number(words, 1, 1<<20))
	case "sink":
		return s.sink(ctx, id, number(words, 1, 1<<20))
	case "streams":
		return s.together(ctx, id, int(number(words, 1, 100)), int(number(words, 2, 10000)))
	case "reset":
		return s.reset(ctx, id)
	case "early":
		return s.early(ctx, id, number(words, 1, 1))
	case "open":
		stream, err := s.host.NewStream(ctx, id, protocol.ID(words[1]))
		if err == nil {
			_, err = stream.Write([]byte("x")) // go-libp2p says the name with the first bytes
		}
		if err == nil {
			_, err = stream.Read(make([]byte, 1))
		}
		return err
	default:
		return fmt.Errorf("there is no request %s", what)
	}
	return nil
}

func (s *peerState) answerAlone(what string, said map[string]any) error {
	switch what {
	case "addresses":
		said["addresses"] = texts(s.host.Addrs())
	case "peers":
		names := []string{}
		for _, id := range s.host.Network().Peers() {
			names = append(names, id.String())
		}
		said["peers"] = names
	case "heard":
		select {
		case n := <-heard:
			said["bytes"] = n
		case <-time.After(patience):
			return fmt.Errorf("nothing was heard")
		}
	default:
		return fmt.Errorf("%s needs to know whom", what)
	}
	return nil
}

// identify says what a peer has said of itself, and whether its addresses came with a signature.
func (s *peerState) identify(id peer.ID, said map[string]any) error {
	for _, c := range s.host.Network().ConnsToPeer(id) {
		said["remote"] = c.RemoteMultiaddr().String()
		said["muxer"] = string(c.ConnState().StreamMultiplexer)
		said["security"] = string(c.ConnState().Security)
		if !c.Stat().Limited {
			break
		}
	}
	agent, err := s.host.Peerstore().Get(id, "AgentVersion")
	if err != nil {
		return err
	}
	said["agent"] = agent
	names, err := s.host.Peerstore().GetProtocols(id)
	if err != nil {
		return err
	}
	said["protocols"] = names
	said["addresses"] = texts(s.host.Peerstore().Addrs(id))
	return s.certified(id, said)
}

// certified asks a peer once more who it is, and opens the signed record in the answer: a host of
// go-libp2p checks it too, but does not keep it.
func (s *peerState) certified(id peer.ID, said map[string]any) error {
	stream, err := s.host.NewStream(network.WithAllowLimitedConn(context.Background(), "test"), id, identify.ID)
	if err != nil {
		return err
	}
	defer stream.Reset()
	var answer pb.Identify
	if err := pbio.NewDelimitedReader(stream, 1<<20).ReadMsg(proto.Message(&answer)); err != nil {
		return err
	}
	said["key"] = answer.PublicKey != nil
	if answer.SignedPeerRecord == nil {
		return nil
	}
	envelope, held, err := record.ConsumeEnvelope(answer.SignedPeerRecord, peer.PeerRecordEnvelopeDomain)
	if err != nil {
		return err
	}
	if r, is := held.(*peer.PeerRecord); is && id.MatchesPublicKey(envelope.PublicKey) && r.PeerID == id {
		said["certified"] = texts(r.Addrs)
		said["sequence"] = r.Seq
	}
	return nil
}

// find asks the DHT where a peer is.
func (s *peerState) find(ctx context.Context, name string, said map[string]any) error {
	if s.dht == nil {
		return fmt.Errorf("it was started without -kad")
	}
	id, err := peer.Decode(name)
	if err != nil {
		return err
	}
	found, err := s.dht.FindPeer(ctx, id)
	said["addresses"] = texts(found.Addrs)
	said["table"] = s.dht.RoutingTable().Size()
	return err
}

// reserve asks a relay for a place, and says through which address it is reached from then on.
func (s *peerState) reserve(ctx context.Context, where string, said map[string]any) error {
	info, err := peer.AddrInfoFromString(where)
	if err != nil {
		return err
	}
	got, err := client.Reserve(ctx, s.host, *info)
	if err != nil {
		return err
	}
	said["expires"] = time.Until(got.Expiration).Seconds()
	said["voucher"] = got.Voucher != nil
	said["limit_bytes"] = got.LimitData
	said["address"] = where + "/p2p-circuit/p2p/" + s.host.ID().String()
	return nil
}
