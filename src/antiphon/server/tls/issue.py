"""
Making certificates: an authority of this server alone, and one for its names.

The authority is what people install on their machines, so it is bound to this server as far as X.509 can: to private
networks and to this server's names, and to no authorities below it. Source: RFC 5280, and the limits of browsers (398
days for a server's certificate).
"""

import datetime
import hashlib
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from antiphon.server.tls.addresses import IpAddress
from antiphon.server.tls.names import ServerNames

CA_DAYS, SERVER_DAYS = 3650, 365

RENEW_DAYS = 30
"""A certificate is replaced when it has so many days left."""

BACKDATE = datetime.timedelta(days=1)
"""Clocks of clients may be behind."""

_NETWORKS = tuple(
    map(
        ipaddress.ip_network,
        (
            *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"),
            *("::1/128", "fc00::/7", "fe80::/10"),
        ),
    )
)
"""Networks that only this machine or its neighbours reach: whatever address the server gets there, its authority may name."""

_NAMES = ("localhost", "local")


class KeyPair(Struct, frozen=True):
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def encode(self) -> bytes:
        """Both as PEM, the key first."""
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return self.key.private_bytes(*form) + self.encode_certificate()

    def encode_certificate(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def is_lasting(self, now: datetime.datetime) -> bool:
        """Whether it ends later than in `RENEW_DAYS`."""
        return now + datetime.timedelta(days=RENEW_DAYS) < self.certificate.not_valid_after_utc

    def has_begun(self, now: datetime.datetime) -> bool:
        """Whether it is valid yet: the clock may have been ahead when it was made."""
        return self.certificate.not_valid_before_utc <= now


def decode_key_pair(content: bytes) -> KeyPair:
    """
    The certificate and its key from the bytes of `KeyPair.encode`.

    Raises:
        ValueError: they are not such bytes.
    """
    key = serialization.load_pem_private_key(content, None)
    certificate = x509.load_pem_x509_certificate(content)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the key is not the certificate's")
    return KeyPair(certificate, key)


def fingerprint(certificate: x509.Certificate) -> str:
    """The SHA-256 of a certificate, as systems show it."""
    return certificate.fingerprint(hashes.SHA256()).hex(":").upper()


def issue_authority(server: ServerNames, label: str, now: datetime.datetime) -> KeyPair:
    """
    A new authority.

    Args:
        server: what it may name besides private networks.
        label: the machine's name, for people who look through what they have installed.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    mark = hashlib.sha256(_public_bytes(key)).hexdigest()[:6]
    subject = _name(f"antiphon on {label[:40]} ({mark})")
    subtrees = [*(x509.DNSName(name) for name in _covered_names(server)), *(x509.IPAddress(each) for each in _covered_networks(server))]
    builder = (
        _builder(subject, subject, key, now, CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(permitted_subtrees=subtrees, excluded_subtrees=None), critical=True)
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def issue_server(authority: KeyPair, server: ServerNames, now: datetime.datetime) -> KeyPair:
    """A new certificate of the server, for all its names that the authority may name."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate
    names = [x509.DNSName(name) for name in server.names if is_covered(authority, name)]
    addresses = [x509.IPAddress(address) for address in server.addresses if is_covered(authority, address)]
    builder = (
        _builder(_name("antiphon"), issuer.subject, key, now, SERVER_DAYS, issuer.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def is_covered(authority: KeyPair, name: str | IpAddress) -> bool:
    """Whether the authority may name this."""
    subtrees = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints).value.permitted_subtrees or []
    if isinstance(name, str):
        bases = [each.value for each in subtrees if isinstance(each, x509.DNSName)]
        bare = name.removeprefix("*.")
        return any(bare == base or bare.endswith(f".{base}") for base in bases)
    networks = [each.value for each in subtrees if isinstance(each, x509.IPAddress)]
    return any(name in network for network in networks if not isinstance(network, IpAddress) and network.version == name.version)


def names_of(pair: KeyPair) -> tuple[frozenset[str], frozenset[IpAddress]]:
    """The names and addresses in a server's certificate."""
    names = pair.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = [address for address in names.get_values_for_type(x509.IPAddress) if isinstance(address, IpAddress)]
    return frozenset(names.get_values_for_type(x509.DNSName)), frozenset(addresses)


def _covered_names(server: ServerNames) -> Sequence[str]:
    return [*dict.fromkeys([*_NAMES, *(name.removeprefix("*.") for name in server.names)])]


def _covered_networks(server: ServerNames) -> Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """The private networks, and the others that the server is in; of IPv6 whole links, as machines change their address there."""
    others = [address for address in server.addresses if not any(address in network for network in _NETWORKS)]
    own = [ipaddress.ip_network(f"{address}/{32 if address.version == 4 else 64}", strict=False) for address in others]
    return [*_NETWORKS, *dict.fromkeys(own)]


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    days: float,
    latest: datetime.datetime | None = None,
) -> x509.CertificateBuilder:
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "antiphon"), x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _public_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
