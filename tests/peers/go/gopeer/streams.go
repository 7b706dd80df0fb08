package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
)

const (
	echoName  = "/muster/echo/1.0.0"  // what comes goes back, and so does the end
	sinkName  = "/muster/sink/1.0.0"  // answers the end with how many bytes came
	abortName = "/muster/abort/1.0.0" // resets at the first byte
	earlyName = "/muster/early/1.0.0" // says "first", ends its side, and then reads to the end
)

const patternSize = 1 << 20

// The bytes that peerload sends: a mebibyte, over and over; twice, to be read on from any place.
var pattern = func() []byte {
	made := make([]byte, 2*patternSize)
	for i := range made {
		made[i] = byte(((i % patternSize) * 167) >> 3)
	}
	return made
}()

func echoes(s network.Stream) {
	if _, err := io.CopyBuffer(struct{ io.Writer }{s}, s, make([]byte, 1<<18)); err != nil {
		s.Reset()
		return
	}
	s.Close()
}

func counts(s network.Stream) {
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, s, make([]byte, 1<<18))
	if err != nil {
		s.Reset()
		return
	}
	binary.Write(s, binary.LittleEndian, uint64(n))
	s.Close()
}

func aborts(s network.Stream) {
	s.Read(make([]byte, 1))
	s.Reset()
}

var heard = make(chan int64, 1024) // bytes that streams of earlyName had until they ended

func endsFirst(s network.Stream) {
	io.WriteString(s, "first")
	s.CloseWrite()
	n, err := io.Copy(io.Discard, s)
	if err != nil {
		n = -1
	}
	heard <- n
	s.Close()
}

// echo sends so many bytes on one stream while they come back.
func (p *peerState) echo(ctx context.Context, id peer.ID, total int64) error {
	s, err := p.host.NewStream(ctx, id, echoName)
	if err != nil {
		return err
	}
	defer s.Reset()
	sent := make(chan error, 1)
	go func() {
		for at := int64(0); at < total; {
			n := min(1<<18, total-at)
			if _, err := s.Write(pattern[at%patternSize:][:n]); err != nil {
				sent <- err
				return
			}
			at += n
		}
		sent <- s.CloseWrite()
	}()
	buf, got := make([]byte, 1<<18), int64(0)
	for {
		n, err := s.Read(buf)
		if !bytes.Equal(buf[:n], pattern[got%patternSize:][:n]) {
			return errors.New("what came back is not what was sent")
		}
		got += int64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", got, err)
		}
	}
	if got != total {
		return fmt.Errorf("%d bytes came back, and %d were sent", got, total)
	}
	return <-sent
}

// together opens streams that are all open before the first one ends.
func (p *peerState) together(ctx context.Context, id peer.ID, count int, total int) error {
	streams := make([]network.Stream, count)
	errs := make(chan error, count)
	var all sync.WaitGroup
	for i := range streams {
		all.Add(1)
		go func() {
			defer all.Done()
			s, err := p.host.NewStream(ctx, id, echoName)
			if err == nil {
				_, err = s.Write(pattern[i : i+1])
			}
			if err == nil {
				_, err = io.ReadFull(s, make([]byte, 1))
			}
			if err != nil {
				errs <- fmt.Errorf("stream %d: %w", i, err)
			}
			streams[i] = s
		}()
	}
	all.Wait()
	for i, s := range streams {
		if s == nil {
			continue
		}
		all.Add(1)
		go func() {
			defer all.Done()
			defer s.Reset()
			go func() {
				s.Write(pattern[:total])
				s.CloseWrite()
			}()
			got, err := io.ReadAll(s)
			if err == nil && !bytes.Equal(got, pattern[:total]) {
				err = errors.New("what came back is not what was sent")
			}
			if err != nil {
				errs <- fmt.Errorf("stream %d: %w", i, err)
			}
		}()
	}
	all.Wait()
	close(errs)
	return <-errs
}

// sink sends so many bytes one way.
func (p *peerState) sink(ctx context.Context, id peer.ID, total int64) error {
	s, err := p.host.NewStream(ctx, id, sinkName)
	if err != nil {
		return err
	}
	defer s.Reset()
	for at := int64(0); at < total; {
		n := min(1<<18, total-at)
		if _, err := s.Write(pattern[at%patternSize:][:n]); err != nil {
			return err
		}
		at += n
	}
	s.CloseWrite()
	var got uint64
	if err := binary.Read(s, binary.LittleEndian, &got); err != nil {
		return err
	}
	if got != uint64(total) {
		return fmt.Errorf("%d bytes were counted, and %d were sent", got, total)
	}
	return nil
}

// reset has a stream reset by the peer, resets one of its own, and opens a third.
func (p *peerState) reset(ctx context.Context, id peer.ID) error {
	s, err := p.host.NewStream(ctx, id, abortName)
	if err != nil {
		return err
	}
	s.Write([]byte("x"))
	if _, err = s.Read(make([]byte, 1)); !errors.Is(err, network.ErrReset) {
		return fmt.Errorf("a stream that was to be reset: %v", err)
	}
	s.Reset()
	if s, err = p.host.NewStream(ctx, id, echoName); err != nil {
		return err
	}
	s.Write([]byte("x"))
	s.Reset()
	return p.echo(ctx, id, 1000)
}

// early reads to the end, which comes first, and only then sends.
func (p *peerState) early(ctx context.Context, id peer.ID, total int64) error {
	s, err := p.host.NewStream(ctx, id, earlyName)
	if err != nil {
		return err
	}
	defer s.Close()
	if said, err := io.ReadAll(s); err != nil || string(said) != "first" {
		return fmt.Errorf("%q was said: %v", said, err)
	}
	_, err = s.Write(pattern[:total])
	return err
}
