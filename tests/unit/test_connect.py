"""What Postgres and libpq raise becomes ours in one place, as one line that names the fix and shows no secret."""

import psycopg
import pytest

from delivery import errors, settings
from subscriptions_db import connect


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
def test_each_foreign_error_has_one_of_ours(raised, becomes):
    with pytest.raises(becomes) as translated, connect.translating():
        raise raised("in the way")
    assert "\n" not in str(translated.value)


def test_an_error_of_ours_passes_as_it_is():
    refused = errors.SealError("in the way")
    with pytest.raises(errors.SealError) as passed, connect.translating():
        raise refused
    assert passed.value is refused


@pytest.mark.parametrize("url", ["postgres:u:hunter2@127.0.0.1/x", "postgresql://u:hunter2@127.0.0.1/x?hunter2=1", "hunter2"])
def test_a_url_that_is_none_is_refused_without_quoting_it(url):
    with (
        pytest.raises(errors.SettingsError, match="setting database") as refused,
        connect.connect(settings.Database(url=url)),
    ):
        pass
    assert "hunter2" not in str(refused.value)
    assert refused.value.__suppress_context__
