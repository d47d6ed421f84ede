"""A way to a PostgreSQL server that is encrypted, as the server itself or a pooler in front of it does it."""

from __future__ import annotations

import asyncio
import datetime
import ssl
import struct
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.servers import LocalServer

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
"""What a client of PostgreSQL sends first when it wants an encrypted connection."""


def make_certificate(folder: Path, name: str) -> Path:
    """Make a certificate that signs itself, for a host of this name; the file has its key too."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=subject, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    encoding = serialization.Encoding.PEM
    written = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(written + certificate.public_bytes(encoding))
    return file


class TlsFront(LocalServer):
    """Takes encrypted connections alone, and passes them on to a server's socket."""

    def __init__(self, target: Path, certificate: Path) -> None:
        super().__init__()
        self.port = 0
        self.encrypted = 0
        """How many connections were encrypted."""
        self._target = target
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate)

    def opened(self, port: int) -> None:
        self.port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST:
            writer.write(b"S")
            with suppress(ssl.SSLError, asyncio.CancelledError):  # the client does not trust us; or this is the end
                await writer.start_tls(self._context)
                self.encrypted += 1
                await self._pass_both(reader, writer)

    async def _pass_both(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._target)
        try:
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        finally:
            far_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
