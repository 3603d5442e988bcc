"""The certificates that the server makes: what is in them, when they are made anew, and who may read them."""

import datetime
import ipaddress
import multiprocessing
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from structlog.testing import capture_logs

from antiphon.config.load import Config
from antiphon.config.settings import CallsSettings, ServerSettings
from antiphon.errors import ServerError
from antiphon.server.tls.certificates import CHECK_S, ServerTls, ensure_certificates, read_certificates
from antiphon.server.tls.issue import is_covered, names_of
from antiphon.server.tls.names import ServerNames, is_dns_name, machine_names, server_names
from antiphon.server.tls.start import server_tls

NOW = datetime.datetime(2030, 6, 1, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)
ADDRESSES = tuple(map(ipaddress.ip_address, ("127.0.0.1", "::1", "192.168.7.20", "203.0.113.9", "2001:db8:1:2::9")))
NAMES = ServerNames(names=("localhost", "box", "box.local"), addresses=ADDRESSES)


def config(home, **server):
    return Config(home=home, models_dir=home, server=ServerSettings(tls="auto", **server))


def made(home, names=NAMES, now=NOW):
    return ensure_certificates(config(home), names, now)


def extension(pair, kind):
    return pair.certificate.extensions.get_extension_for_class(kind)


def test_the_certificate_is_what_browsers_ask_for(tmp_path):
    certificates = made(tmp_path)
    leaf, authority = certificates.server.certificate, certificates.authority.certificate
    leaf.verify_directly_issued_by(authority)
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= 398 * DAY
    assert leaf.not_valid_before_utc < NOW
    assert names_of(certificates.server) == ({"localhost", "box", "box.local"}, set(ADDRESSES))
    assert [*extension(certificates.server, x509.ExtendedKeyUsage).value] == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not extension(certificates.server, x509.BasicConstraints).value.ca
    assert leaf.public_key().curve.name == authority.public_key().curve.name == "secp256r1"


def test_the_authority_can_only_name_this_server_and_private_networks(tmp_path):
    authority = made(tmp_path).authority
    limits = extension(authority, x509.BasicConstraints)
    assert limits.critical and limits.value.ca and limits.value.path_length == 0
    assert extension(authority, x509.NameConstraints).critical
    for name in ("box", "box.local", "other.local", *map(ipaddress.ip_address, ("10.9.8.7", "203.0.113.9", "2001:db8:1:2::77", "fd00::5"))):
        assert is_covered(authority, name), name
    for name in ("example.com", "box.example.com", "notbox", *map(ipaddress.ip_address, ("203.0.113.10", "2001:db8:1:3::9", "8.8.8.8"))):
        assert not is_covered(authority, name), name


def test_only_the_servers_user_can_read_the_files(tmp_path):
    made(tmp_path / "home")
    folder = tmp_path / "home" / "tls"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(folder.iterdir())
    assert [path.name for path in files] == ["ca.crt", "ca.pem", "server.pem"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert b"PRIVATE" not in (folder / "ca.crt").read_bytes()


def test_they_are_made_once(tmp_path):
    assert read_certificates(config(tmp_path)) is None
    first = made(tmp_path)
    second = made(tmp_path, now=NOW + 300 * DAY)
    assert second.fingerprint == first.fingerprint and second.server.certificate == first.server.certificate
    assert read_certificates(config(tmp_path)).fingerprint == first.fingerprint


def test_the_certificate_is_renewed_before_it_ends_by_the_same_authority(tmp_path):
    first = made(tmp_path)
    later = NOW + 340 * DAY
    second = made(tmp_path, now=later)
    assert second.fingerprint == first.fingerprint
    assert second.server.certificate.not_valid_after_utc == later + 365 * DAY


def test_it_is_made_anew_for_a_new_address_and_not_for_one_that_is_gone(tmp_path):
    first = made(tmp_path)
    fewer = ServerNames(names=NAMES.names, addresses=ADDRESSES[:3])
    assert made(tmp_path, fewer).server.certificate == first.server.certificate
    moved = ServerNames(names=NAMES.names, addresses=(*ADDRESSES, ipaddress.ip_address("10.1.2.3")))
    second = made(tmp_path, moved)
    assert ipaddress.ip_address("10.1.2.3") in names_of(second.server)[1] and second.fingerprint == first.fingerprint


def test_an_address_that_the_authority_may_not_name_is_left_out_and_told(tmp_path):
    first = made(tmp_path)
    stranger = ipaddress.ip_address("198.51.100.4")
    second = made(tmp_path, ServerNames(names=(*NAMES.names, "renamed"), addresses=(*ADDRESSES, stranger)))
    assert second.fingerprint == first.fingerprint and second.left_out == ("renamed", "198.51.100.4")
    assert second.server.certificate == first.server.certificate


def test_a_name_that_the_operator_gives_is_worth_a_new_authority(tmp_path):
    first = made(tmp_path)
    names = ServerNames(names=(*NAMES.names, "voice.example.com"), addresses=ADDRESSES, operator_names=("voice.example.com",))
    second = made(tmp_path, names)
    assert second.fingerprint != first.fingerprint and "voice.example.com" in names_of(second.server)[0]
    assert (tmp_path / "tls" / "ca.crt").read_bytes() == second.authority.encode_certificate()


def test_an_authority_that_ends_is_replaced_and_one_that_has_not_begun_is_not(tmp_path):
    first = made(tmp_path)
    assert made(tmp_path, now=NOW - 4000 * DAY).fingerprint == first.fingerprint
    assert made(tmp_path, now=NOW + 3640 * DAY).fingerprint != first.fingerprint


def test_a_certificate_made_while_the_clock_was_ahead_is_made_anew(tmp_path):
    first = made(tmp_path, now=NOW + 100 * DAY)
    second = made(tmp_path)
    assert second.server.certificate != first.server.certificate
    assert second.server.certificate.not_valid_before_utc < NOW


def test_a_certificate_that_is_broken_is_made_anew_and_a_broken_authority_is_told(tmp_path):
    first = made(tmp_path)
    (tmp_path / "tls" / "server.pem").write_bytes(b"nothing")
    assert made(tmp_path).fingerprint == first.fingerprint
    (tmp_path / "tls" / "ca.pem").write_bytes(b"nothing")
    with pytest.raises(ServerError) as raised:
        made(tmp_path)
    assert str(tmp_path) in raised.value.operator_message and str(tmp_path) not in raised.value.message


def _fingerprint_into(home, gate, results):
    gate.wait()
    certificates = made(home)
    results.put((certificates.fingerprint, str(certificates.server.certificate.serial_number)))


def test_processes_that_start_together_agree_on_one(tmp_path):
    context = multiprocessing.get_context("fork")
    gate, results = context.Barrier(6), context.Queue()
    processes = [context.Process(target=_fingerprint_into, args=(tmp_path, gate, results)) for _ in range(6)]
    for process in processes:
        process.start()
    found = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    assert len(found) == 1
    assert len([*(tmp_path / "tls").iterdir()]) == 3


class Clock:
    def __init__(self) -> None:
        self.days, self.seconds = 0.0, 0.0

    def now(self):
        return datetime.datetime.now(datetime.UTC) + self.days * DAY


def test_a_running_server_takes_up_what_was_renewed_and_keeps_what_it_has_if_it_cant(tmp_path):
    clock = Clock()
    tls = ServerTls(config(tmp_path), clock.now, lambda: clock.seconds)
    first = tls.context()
    assert first.minimum_version is ssl.TLSVersion.TLSv1_2
    clock.days = 350
    assert tls.context() is first  # it is looked at from time to time
    clock.seconds += CHECK_S
    second = tls.context()
    assert second is not first
    clock.seconds += CHECK_S
    assert tls.context() is second
    (tmp_path / "tls" / "ca.pem").write_bytes(b"nothing")
    clock.seconds += CHECK_S
    with capture_logs() as logs:
        assert tls.context() is second
    assert [entry["event"] for entry in logs] == ["certificate_not_renewed"]


def test_the_names_are_the_machines_and_those_that_the_operator_gives(tmp_path):
    settings = ServerSettings(host="192.0.2.77", allowed_hosts=("voice.example.com", "*.lan", "*", "not a name"))
    whole = Config(home=tmp_path, models_dir=tmp_path, server=settings, calls=CallsSettings(addresses=("203.0.113.4",)))
    names = server_names(whole)
    assert {"localhost", "voice.example.com", "*.lan", *machine_names()} == {*names.names}
    assert names.operator_names == ("voice.example.com", "*.lan")
    given = {ipaddress.ip_address("192.0.2.77"), ipaddress.ip_address("203.0.113.4")}
    assert {*names.operator_addresses} == given < {*names.addresses}
    assert ipaddress.ip_address("127.0.0.1") in names.addresses
    assert server_names(Config(home=tmp_path, models_dir=tmp_path)).operator_names == ()


@pytest.mark.parametrize(
    ("text", "is_name"), [("box", True), ("a.b-c.d", True), ("*.lan", True), ("*", False), ("a..b", False), ("10.1", False)]
)
def test_what_can_be_a_name(text, is_name):
    assert is_dns_name(text) == is_name


def test_a_server_without_tls_makes_none(tmp_path):
    assert server_tls(Config(home=tmp_path, models_dir=tmp_path)) is None
    assert not [*Path(tmp_path).iterdir()]
