"""Errors of Postgres and libpq become errors of the platform: one line that names the fix and shows no secret."""

import socket

import psycopg
import pytest

from delivery import errors
from delivery.config import settings
from subscriptions_db.postgres import connect


@pytest.mark.parametrize(
    ("raised", "becomes"),
    [
        (psycopg.errors.UniqueViolation, errors.RegistrationError),
        (psycopg.errors.ForeignKeyViolation, errors.RegistrationError),
        (psycopg.errors.CheckViolation, errors.RegistrationError),
        (psycopg.errors.NotNullViolation, errors.RegistrationError),
        (psycopg.errors.UntranslatableCharacter, errors.RegistrationError),
        (psycopg.DataError, errors.RegistrationError),
        (psycopg.errors.UndefinedTable, errors.RegistryOutdated),
        (psycopg.errors.UndefinedColumn, errors.RegistryOutdated),
        (psycopg.errors.UndefinedFunction, errors.RegistryOutdated),
        (psycopg.errors.SerializationFailure, errors.RegistryUnavailable),
        (psycopg.errors.DeadlockDetected, errors.RegistryUnavailable),
        (psycopg.errors.ReadOnlySqlTransaction, errors.RegistryUnavailable),
        (psycopg.errors.InsufficientPrivilege, errors.RegistryUnavailable),
        (psycopg.errors.QueryCanceled, errors.RegistryUnavailable),
        (psycopg.errors.AdminShutdown, errors.RegistryUnavailable),
        (psycopg.errors.TooManyConnections, errors.RegistryUnavailable),
        (psycopg.errors.ConnectionTimeout, errors.RegistryUnavailable),
        (psycopg.OperationalError, errors.RegistryUnavailable),
        (psycopg.InterfaceError, errors.RegistryUnavailable),
    ],
)
def test_each_psycopg_error_has_an_error_of_the_platform(raised, becomes):
    with pytest.raises(becomes) as translated, connect.translated_errors():
        raise raised("in the way")
    assert "\n" not in str(translated.value)


@pytest.mark.parametrize(("raised", "cure"), [(psycopg.errors.DiskFull, "disk space"), (psycopg.errors.IoError, "its log")])
def test_a_full_or_broken_disk_is_not_called_an_unreachable_server(raised, cure):
    with pytest.raises(errors.RegistryUnavailable, match=f"the server of Postgres failed.*{cure}"), connect.translated_errors():
        raise raised("could not extend file")


def test_a_value_that_cannot_be_stored_is_not_quoted():
    """Regression: `invalid input syntax for type uuid: "…"` had the value, which may be a secret, in an answer and in a log."""
    with pytest.raises(errors.RegistrationError) as translated, connect.translated_errors():
        raise psycopg.DataError('invalid input syntax for type uuid: "hunter2 with a " in it"')
    assert str(translated.value).startswith('Postgres refuses a value (invalid input syntax for type uuid: "…"), and nothing')


def test_an_error_of_the_platform_passes_unchanged():
    refused = errors.SealError("in the way")
    with pytest.raises(errors.SealError) as passed, connect.translated_errors():
        raise refused
    assert passed.value is refused


def test_options_of_the_url_are_kept_and_the_settings_timeout_comes_last():
    """Regression: the platform's own `options` took the place of those in the URL, such as a `search_path`."""
    url = "postgresql://127.0.0.1/x?options=-c%20search_path%3Dfanout%20-c%20statement_timeout%3D1"
    parameters = connect.options(url, settings.DatabaseSettings(statement_timeout_s=30), application_name="test")
    assert parameters["options"] == "-c search_path=fanout -c statement_timeout=1 -c datestyle=ISO -c statement_timeout=30000"


@pytest.mark.parametrize("url", ["postgres:u:hunter2@127.0.0.1/x", "postgresql://u:hunter2@127.0.0.1/x?hunter2=1", "hunter2"])
def test_an_invalid_url_is_refused_without_quoting_it(url):
    with (
        pytest.raises(errors.SettingsError, match="setting database") as refused,
        connect.connect(settings.DatabaseSettings(url=url)),
    ):
        pass
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (
            'connection failed: connection to server at "10.0.0.6", port 5432 failed: Connection refused\n\tIs it running?',
            "(10.0.0.6 port 5432 Connection refused)",
        ),
        (
            'connection to server at "pg.example.com" (10.0.0.6), port 5432 failed: FATAL:  password authentication failed',
            "(pg.example.com port 5432 FATAL: password authentication failed)",
        ),
        (
            "failed to resolve host 'pg.example.com': [Errno -2] Name or service not known",
            "(failed to resolve host pg.example.com)",
        ),
        (
            'connection is bad: connection to server on socket "/run/.s.PGSQL.5432" failed: No such file or directory\n\tIs',
            '(socket "/run/.s.PGSQL.5432" No such file or directory)',
        ),
        # Errors for postgresql://u:hun@ter2@pg/x, whose password is not percent-encoded.
        ("failed to resolve host 'ter2@pg': [Errno -2] Name or service not known", "(OperationalError)"),
        ('connection to server at "ter2@pg" (10.0.0.6), port 5432 failed: refused', "(OperationalError)"),
        ("the connection is lost", "(OperationalError)"),
    ],
)
def test_an_unreachable_server_is_named_with_the_reason(said, shown):
    with pytest.raises(errors.RegistryUnavailable) as translated, connect.translated_errors():
        raise psycopg.OperationalError(said)
    assert shown in str(translated.value)
    assert "\n" not in str(translated.value)


@pytest.mark.parametrize(
    ("host", "reason", "is_advised"),
    [
        ("127.0.0.1", "Connection refused", True),
        ("::1", "Connection refused", True),
        ("localhost", "Connection refused", True),
        ("10.0.0.5", "Connection refused", False),
        ("127.0.0.1", 'FATAL:  database "nope" does not exist', False),
    ],
)
def test_fanout_up_is_advised_where_no_server_listens_on_this_machine(host, reason, is_advised):
    with pytest.raises(errors.RegistryUnavailable) as translated, connect.translated_errors():
        raise psycopg.OperationalError(f'connection to server at "{host}", port 5432 failed: {reason}')
    assert ("`fanout up` starts a Postgres" in str(translated.value)) is is_advised


def test_a_server_that_does_not_listen_is_named_by_its_address():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        port = unused.getsockname()[1]
        database = settings.DatabaseSettings(url=f"postgresql://u:hunter2@127.0.0.1:{port}/x")
        with (
            pytest.raises(errors.RegistryUnavailable, match=f"127.0.0.1 port {port} Connection refused"),
            connect.connect(database),
        ):
            pass


def test_retry_for_waits_for_a_server_that_is_starting():
    answers = [errors.RegistryUnavailable("away 1"), errors.RegistryUnavailable("away 2"), "there"]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    slept = []
    assert connect.retry_for(60).copy(sleep=slept.append)(ask) == "there"
    assert slept == [1, 1]

    answers[:] = [errors.RegistryUnavailable("away 1")]
    with pytest.raises(errors.RegistryUnavailable, match="away 1"):
        connect.retry_for(0)(ask)


@pytest.mark.parametrize("password", ["hunter1@hunter2", "hunter1@hunter/2", "hunter1@hunter:2"])
def test_a_password_with_an_unencoded_at_sign_is_refused_unquoted(password):
    """Regression: libpq takes a part of it for the host, and its error names the host."""
    database = settings.DatabaseSettings(url=f"postgresql://u:{password}@127.0.0.1:1/x")
    with pytest.raises(errors.SettingsError, match="of the password as %40") as refused, connect.connect(database):
        pass
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://u:hunter2@127.0.0.1:1/x", "127.0.0.1 port 1 Connection refused"),
        ("postgresql://u:hunter2@127.0.0.1:99999/x", 'invalid port number: "99999"'),
        ("postgresql://u:hunter2@127.0.0.1:1/x?sslmode=bogus", 'invalid sslmode value: "bogus"'),
        ("postgresql://u:hunter1@hunter2@127.0.0.1:1/x", "OperationalError"),
    ],
)
def test_a_pool_logs_the_reason_and_no_password(url, reason):
    with pytest.raises(psycopg.OperationalError) as refused:
        connect.PooledConnection.connect(url)
    assert reason in str(refused.value)
    assert "hunter" not in str(refused.value)
