"""The certificates of a load test's broker are trusted by its clients, and by nobody else."""

import ssl

import pytest

from load_tests.harness import broker_certificates


def shaken(server, client):
    """Shake hands in memory; raise ssl.SSLError if one side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in ends * 3:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return [end.version() for end in ends]


def contexts(files, trusted):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(files.keystore)
    server.load_verify_locations(files.authority)
    client = ssl.create_default_context(cafile=trusted.authority)
    client.load_cert_chain(files.keystore)
    return server, client


def test_broker_and_clients_trust_each_other(tmp_path):
    files = broker_certificates.write(tmp_path)
    assert shaken(*contexts(files, files)) == ["TLSv1.3", "TLSv1.3"]
    assert files.keystore.stat().st_mode & 0o077 == 0


def test_a_client_of_another_load_test_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    files, other = broker_certificates.write(tmp_path), broker_certificates.write(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(*contexts(files, other))
