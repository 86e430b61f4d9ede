"""The TLS context of an endpoint: always verifying, one object per identity, the key never in a file."""

import errno
import gc
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from delivery import errors
from delivery.registry_model import Tls
from delivery.secret import Secret
from delivery.webhooks.http import tls
from tests.support import certificates, descriptors

CLIENT = certificates.issue("client", issuer=certificates.authority())
OTHER = certificates.issue("other client", issuer=certificates.authority())


@pytest.mark.parametrize(
    "settings",
    [None, Tls(), Tls(authorities=certificates.authority().pem), CLIENT.client_tls()],
    ids=["none", "empty", "authorities", "client certificate"],
)
def test_every_context_verifies_and_needs_tls_1_2(settings):
    made = tls.context(settings)
    assert (made.verify_mode, made.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert made.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("settings", [None, CLIENT.client_tls()], ids=["none", "client certificate"])
def test_no_server_chooses_the_group_of_a_key_exchange_of_tls_1_2(settings):
    """Regression: a server with a Diffie-Hellman group of 9,999 bits took 0.9 s of CPU of the event loop per handshake."""
    ciphers = tls.context(settings).get_ciphers()
    assert {cipher["kea"] for cipher in ciphers} == {"kx-ecdhe", "kx-any"}  # any: TLS 1.3
    assert {cipher["auth"] for cipher in ciphers} == {"auth-ecdsa", "auth-rsa", "auth-any"}
    assert tls.context(settings).security_level == ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).security_level


def test_equal_settings_share_a_context_and_others_never_do():
    assert tls.context(CLIENT.client_tls()) is tls.context(CLIENT.client_tls())
    all_of_them = [None, Tls(authorities=certificates.authority().pem), CLIENT.client_tls(), OTHER.client_tls()]
    assert len({id(tls.context(settings)) for settings in all_of_them}) == len(all_of_them)


def test_own_authorities_replace_the_systems():
    subjects = [dict(pair[0] for pair in authority["subject"]) for authority in
                tls.context(Tls(authorities=certificates.authority().pem)).get_ca_certs()]  # fmt: skip
    assert subjects == [{"commonName": "authority"}]


def test_no_descriptor_stays_open_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gc.collect()
    before = descriptors.files()
    tls.context(certificates.issue("fresh", issuer=certificates.authority()).client_tls())
    with pytest.raises(errors.TargetRefused):
        tls.context(Tls(certificate="nonsense", key=Secret(b"nonsense")))
    # Only new ones count: another test's may be closed meanwhile.
    assert (descriptors.files() - before, list(tmp_path.iterdir())) == (set(), [])


def encrypted_key():
    return CLIENT.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"hunter2")
    )


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        pytest.param(Tls(authorities="nonsense"), "tls.authorities", id="authorities are not PEM"),
        pytest.param(Tls(authorities=""), "tls.authorities", id="no authorities in it"),
        pytest.param(Tls(authorities="zertifizierungsstelle ä"), "tls.authorities", id="authorities are not ASCII"),
        pytest.param(Tls(certificate=CLIENT.pem), "tls.key", id="no key"),
        pytest.param(Tls(certificate="ä", key=Secret(CLIENT.key.encode())), "tls", id="certificate is not ASCII"),
        pytest.param(Tls(certificate=CLIENT.pem, key=Secret(b"nonsense")), "tls", id="key is not PEM"),
        pytest.param(Tls(certificate=CLIENT.pem, key=Secret(OTHER.key.encode())), "tls", id="key of another"),
        pytest.param(Tls(certificate=CLIENT.pem, key=Secret(encrypted_key())), "tls", id="key is encrypted"),
        pytest.param(Tls(certificate=CLIENT.pem * 1000, key=Secret(b"")), "tls", id="longer than permitted"),
    ],
)
def test_invalid_tls_settings_are_refused_unquoted(settings, path):
    with pytest.raises(errors.TargetRefused) as refused:
        tls.context(settings)
    assert refused.value.path == path
    assert refused.value.__cause__ is None
    assert not any(word in str(refused.value) for word in ("nonsense", "BEGIN", "hunter2"))


def test_a_chain_that_is_too_long_is_told_from_one_that_does_not_fit():
    for certificate, problem in ((CLIENT.pem * 1000, "at most 48 KiB each"), (CLIENT.pem, "belong together")):
        with pytest.raises(errors.TargetRefused, match=problem):
            tls.context(Tls(certificate=certificate, key=Secret(OTHER.key.encode())))


def test_a_weak_certificate_is_refused_with_the_reason():
    """Regression: the message said only that certificate and key must belong together, which they did."""
    weak = certificates.weak_client_tls()
    for check in (tls.context, tls.require_usable):
        with pytest.raises(errors.TargetRefused, match=r"cannot be used \(EE_KEY_TOO_SMALL\): .* RSA with 2,048 bits"):
            check(weak)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the pipes of a user")
def test_a_long_chain_is_read_by_a_user_with_many_pipes():
    """Regression: Linux gave the process a pipe of 8 KiB, and its event loop waited for ever to write more into it."""
    code = (
        "import fcntl, os, sys; from delivery.webhooks.http import tls; from tests.support import certificates\n"
        "chain = certificates.authority().pem * 20\n"
        "settings = certificates.issue('c', issuer=certificates.authority()).client_tls()\n"
        "settings = tls.Tls(certificate=settings.certificate + chain, key=settings.key)\n"
        "if os.getuid() == 0: os.setresuid(64321, 64321, 64321)  # root has no limit\n"
        "pipes = [os.pipe() for _ in range(1100)]\n"
        "assert fcntl.fcntl(pipes[-1][1], fcntl.F_GETPIPE_SZ) < len(settings.certificate)\n"
        "tls.require_usable(settings)\n"
    )
    limits = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))\n"
    subprocess.run([sys.executable, "-c", limits + code], check=True, timeout=60)


def test_a_process_without_free_files_blames_no_certificate(monkeypatch):
    """Regression: the attempt counted as the customer's wrong configuration."""

    def full(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    for name in ("memfd_create", "pipe"):
        monkeypatch.setattr(tls.os, name, full)
    with pytest.raises(OSError, match="Too many open files"):
        tls.context(certificates.issue("of this test", issuer=certificates.authority()).client_tls())


def test_the_systems_authorities_are_read_when_needed_or_at_once():
    """OpenSSL reads single authorities from a folder with hashed names. Without one, the whole bundle is loaded."""
    folder = ssl.get_default_verify_paths().capath
    is_hashed = folder is not None and any(Path(folder).glob("*.0"))
    assert bool(tls.context(None).get_ca_certs()) is not is_hashed
