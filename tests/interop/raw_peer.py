"""A peer of libp2p by hand, which can be made to do what a peer must not: multistream, Noise and
yamux over a socket, and calls in hivemind's framing. Written from the protocols and not from
muster's code; only the primitives are somebody else's (python3-cryptography).
"""
import hashlib
import hmac
import os
import socket
import struct
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

MULTISTREAM = "/multistream/1.0.0"
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class Refused(Exception):
    """The other side hung up, or said no."""


# --- bytes --------------------------------------------------------------------------------------


def uvarint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def read_uvarint(data, at=0):
    """(value, where it ends), or None if there is more to come."""
    value = shift = 0
    while at < len(data):
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at
    return None


def field(number, value):
    """A field of a protocol buffer: bytes, or a number."""
    if isinstance(value, bytes):
        return uvarint(number << 3 | 2) + uvarint(len(value)) + value
    return uvarint(number << 3) + uvarint(value)


def fields(data):
    """All fields as (number, value)."""
    at = 0
    found = []
    while at < len(data):
        key, at = read_uvarint(data, at)
        if key & 7 == 0:
            value, at = read_uvarint(data, at)
        elif key & 7 == 1:
            value, at = data[at:at + 8], at + 8
        else:
            length, at = read_uvarint(data, at)
            value, at = data[at:at + length], at + length
        found.append((key >> 3, value))
    return found


def first(data, number, default=b""):
    return next((value for n, value in fields(data) if n == number), default)


def base58_decode(text):
    value = 0
    for letter in text:
        value = value * 58 + BASE58.index(letter)
    return b"\0" * (len(text) - len(text.lstrip("1"))) + value.to_bytes(
        (value.bit_length() + 7) // 8, "big")


def line(text):
    """A message of multistream."""
    return uvarint(len(text) + 1) + text.encode() + b"\n"


def frame(kind, flags, stream, length, body=b""):
    """A frame of yamux. `length` is what it says, whatever its body is."""
    return struct.pack(">BBHII", 0, kind, flags, stream, length) + body


# --- identity -----------------------------------------------------------------------------------


def raw(public):
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


class Identity:
    def __init__(self):
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.public = field(1, 1) + field(2, raw(self.key.public_key()))


# --- the connection -----------------------------------------------------------------------------


class Cipher:
    def __init__(self, key):
        self.aead = ChaCha20Poly1305(key)
        self.count = 0

    def nonce(self):
        self.count += 1
        return b"\0" * 4 + struct.pack("<Q", self.count - 1)


class Noise:
    """The state of a handshake (Noise XX) of the dialling side."""

    def __init__(self):
        self.hash = self.chain = b"Noise_XX_25519_ChaChaPoly_SHA256"
        self.cipher = None
        self.mix(b"")

    def mix(self, data):
        self.hash = hashlib.sha256(self.hash + data).digest()

    def derive(self, secret):
        temp = hmac.digest(self.chain, secret, "sha256")
        one = hmac.digest(temp, b"\1", "sha256")
        return one, hmac.digest(temp, one + b"\2", "sha256")

    def mix_key(self, private, public):
        secret = private.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        self.chain, key = self.derive(secret)
        self.cipher = Cipher(key)

    def seal(self, plain):
        sealed = self.cipher.aead.encrypt(self.cipher.nonce(), plain, self.hash)
        self.mix(sealed)
        return sealed

    def open(self, sealed):
        plain = self.cipher.aead.decrypt(self.cipher.nonce(), sealed, self.hash)
        self.mix(sealed)
        return plain


class RawPeer:
    """A connection that we dialled. `signer` is whose key signs, if not the identity's own."""

    def __init__(self, address, identity=None, signer=None, patience=20):
        parts = address.split("/")
        self.peer_id = base58_decode(parts[-1])
        self.sock = socket.create_connection((parts[2], int(parts[4])), patience)
        self.identity = identity or Identity()
        self.signer = signer or self.identity
        self.patience = patience
        self.said = b""  # all that we sent, to be said again
        self.buffer = b""
        self.plain = b""
        self.streams = {}  # what came on each of ours; None behind it: it has ended
        self.windows = {}  # what we may send on each
        self.resets = set()
        self.next_id = 1
        self.away = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    # -- the wire

    def send(self, data):
        self.said += data
        try:
            self.sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Refused("hung up") from None

    def recv(self, count):
        while len(self.buffer) < count:
            try:
                more = self.sock.recv(1 << 18)
            except (ConnectionResetError, BrokenPipeError):
                more = b""
            if not more:
                raise Refused("hung up")
            self.buffer += more
        got, self.buffer = self.buffer[:count], self.buffer[count:]
        return got

    def recv_line(self):
        length = self.recv(1)[0]
        return self.recv(length)[:-1].decode()

    def hung_up(self, patience=None):
        """Whether the other side hangs up, whatever it says before."""
        self.sock.settimeout(self.patience if patience is None else patience)
        try:
            while self.sock.recv(1 << 16):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return True
        except socket.timeout:
            return False
        return True

    # -- the handshake

    def negotiate(self, name="/noise"):
        self.send(line(MULTISTREAM) + line(name))
        assert self.recv_line() == MULTISTREAM
        return self.recv_line()

    def send_message(self, message):
        self.send(struct.pack(">H", len(message)) + message)

    def recv_message(self):
        return self.recv(struct.unpack(">H", self.recv(2))[0])

    def handshake(self):
        """Multistream and Noise; the keys of the connection are ready afterwards."""
        noise = Noise()
        ephemeral = x25519.X25519PrivateKey.generate()
        static = x25519.X25519PrivateKey.generate()
        if self.negotiate() != "/noise":
            raise Refused("no /noise")
        noise.mix(raw(ephemeral.public_key()))
        noise.mix(b"")
        self.send_message(raw(ephemeral.public_key()))
        answer = self.recv_message()
        noise.mix(answer[:32])
        noise.mix_key(ephemeral, answer[:32])
        their_static = noise.open(answer[32:80])
        noise.mix_key(ephemeral, their_static)
        self.check_payload(noise.open(answer[80:]), their_static)
        ours = raw(static.public_key())
        message = noise.seal(ours)
        noise.mix_key(static, answer[:32])
        signature = self.signer.key.sign(b"noise-libp2p-static-key:" + ours)
        message += noise.seal(field(1, self.identity.public) + field(2, signature)
                              + field(4, field(2, b"/yamux/1.0.0")))
        self.send_message(message)
        key_out, key_in = noise.derive(b"")
        self.sealing, self.opening = Cipher(key_out), Cipher(key_in)
        return self

    def check_payload(self, payload, static):
        """The listener is who it should be."""
        public = first(payload, 1)
        assert self.peer_id == b"\0" + uvarint(len(public)) + public
        ed25519.Ed25519PublicKey.from_public_bytes(first(public, 2)).verify(
            first(payload, 2), b"noise-libp2p-static-key:" + static)

    # -- in secret

    def say(self, plain):
        """Seals and sends, in as many messages as it takes."""
        sealed = b""
        for at in range(0, len(plain), 60000):
            message = self.sealing.aead.encrypt(self.sealing.nonce(), plain[at:at + 60000], None)
            sealed += struct.pack(">H", len(message)) + message
        self.send(sealed)

    def hear(self):
        """Reads one message and what it completes."""
        message = self.recv_message()
        self.plain += self.opening.aead.decrypt(self.opening.nonce(), message, None)
        while len(self.plain) >= 12:
            _, kind, flags, stream, length = struct.unpack(">BBHII", self.plain[:12])
            size = length if kind == DATA else 0
            if len(self.plain) < 12 + size:
                return
            body, self.plain = self.plain[12:12 + size], self.plain[12 + size:]
            self.take(kind, flags, stream, length, body)

    def take(self, kind, flags, stream, length, body):
        if kind == PING and flags & SYN:
            self.say(frame(PING, ACK, 0, length))
        elif kind == GO_AWAY:
            self.away = length
        elif kind in (DATA, WINDOW) and stream % 2 == 0:
            if flags & SYN:  # we serve nothing
                self.say(frame(WINDOW, RST, stream, 0))
        elif kind == WINDOW:
            self.windows[stream] = self.windows.get(stream, 1 << 18) + length
        elif kind == DATA:
            self.streams[stream] = self.streams.get(stream, b"") + body
            if body:
                self.say(frame(WINDOW, 0, stream, len(body)))
        if flags & RST:
            self.resets.add(stream)

    def hear_until(self, condition, what):
        end = time.monotonic() + self.patience
        while not condition():
            if time.monotonic() > end:
                raise AssertionError("not in time: " + what)
            self.hear()

    def open(self, *names):
        """A stream for a name; its header and proposal are on their way."""
        stream, self.next_id = self.next_id, self.next_id + 2
        text = b"".join(line(name) for name in (MULTISTREAM,) + names)
        self.say(frame(WINDOW, SYN, stream, 0) + frame(DATA, 0, stream, len(text), text))
        self.windows[stream] = (1 << 18) - len(text)
        self.streams[stream] = b""
        return stream

    def write(self, stream, data):
        """Within the window."""
        while data:
            self.hear_until(lambda: self.windows[stream] > 0 or stream in self.resets,
                            "room in the window")
            if stream in self.resets:
                raise Refused("the stream was reset")
            piece = data[:min(self.windows[stream], 60000)]
            self.windows[stream] -= len(piece)
            self.say(frame(DATA, 0, stream, len(piece), piece))
            data = data[len(piece):]

    def call(self, method, message):
        """A unary call: the answer's bytes; Refused with what the handler said."""
        stream = self.open(method)
        ask = field(1, os.urandom(16)) + field(
            3, field(1, self.peer_id) + field(2, method.encode()) + field(3, message))
        self.write(stream, uvarint(len(ask)) + ask)
        skip = len(line(MULTISTREAM) + line(method))

        def answer():
            got = self.streams[stream][skip:]
            length = read_uvarint(got)
            if length and len(got) >= length[1] + length[0]:
                return got[length[1]:length[1] + length[0]]
            return None

        self.hear_until(lambda: stream in self.resets or answer() is not None, "an answer")
        if answer() is None:
            raise Refused("the stream was reset")
        self.say(frame(WINDOW, FIN, stream, 0))
        reply = first(answer(), 4)
        for number, value in fields(reply):
            if number == 2:
                raise Refused(value.decode(errors="replace"))
        return first(reply, 1)


def replay(address, said, patience=20):
    """Says to a listener what was said on another connection."""
    peer = RawPeer(address, patience=patience)
    peer.send(said)
    return peer


__all__ = ["DATA", "FIN", "Identity", "InvalidTag", "RawPeer", "Refused", "RST", "SYN", "WINDOW",
           "field", "fields", "first", "frame", "line", "replay", "uvarint"]
