"""Two OpenSSLs in one process: libmuster's own, inside it, and the one of Python's ssl.

    two_openssl.py CERTIFICATES ORDER

A server of libmuster and a client of Python's ssl shake hands, both with certificates, and speak.
The order says which is loaded first, such as "ssl muster". Started by wheel.py.
"""
import hashlib
import os
import socket
import struct
import sys


def main(certs, order):
    cert, key, ca = (os.path.join(certs, f) for f in ("127.0.0.1.pem", "127.0.0.1.key", "ca.pem"))
    for word in order.split():
        if word == "muster":
            import muster

            muster.Server  # loads the library
        else:
            import ssl
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(cert, key)
    with muster.Runtime(cert=cert, key=key, ca=ca) as runtime:
        server = muster.Server("127.0.0.1:0", runtime=runtime)
        for nonce in (7, 8):
            plain = socket.create_connection(("127.0.0.1", server.port), 10)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                # PyTorch's wire: validate with its magic number, then a ping.
                secure.sendall(struct.pack("<BIBI", 0, 0x3C85F7CE, 13, nonce))
                answer = struct.unpack("<I", secure.recv(4))[0]
                assert answer == nonce, answer
                assert secure.version() == "TLSv1.3", secure.version()
        server.close()
    assert hashlib.sha256(b"abc").hexdigest().startswith("ba7816bf")
    print(ssl.OPENSSL_VERSION)


main(*sys.argv[1:])
