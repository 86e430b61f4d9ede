"""Wait in a test for another thread, or for another session of Postgres."""


def assert_becomes(value, wanted):
    """Assert that `value()` becomes `wanted`, which another thread sets without waiting for this thread."""
    for _ in range(10_000_000):
        if value() == wanted:
            return
    assert value() == wanted


def for_a_lock(connection):
    """Return when another session of this database waits for a lock; fail after ten seconds."""
    waiting = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    for _ in range(1000):
        if connection.execute(waiting).fetchone() is not None:
            return
        connection.execute("select pg_sleep(0.01)")
    raise AssertionError("no session waits")
