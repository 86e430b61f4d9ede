"""The log of the driver's JVM has few lines about one outage."""

import pytest


@pytest.fixture
def lines(spark):
    """Return a function that counts the lines logged since its last call, in place of the log on standard error."""
    log4j = spark._jvm.org.apache.logging.log4j
    counter = log4j.core.appender.CountingNoOpAppender("counter", None)
    counter.start()
    root = log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    root.addAppender(counter, None, None)
    counted = [0]

    def since_last():
        counted.append(counter.getCount())
        return counted[-1] - counted[-2]

    yield since_last
    root.removeAppender("counter")


def test_a_broker_that_is_away_fills_some_lines_of_the_log_only(spark, lines):
    """Regression: while Kafka was away, the log had three lines of Kafka's client a second."""
    logs = spark._jvm.org.apache.logging.log4j.LogManager
    client, other = (logs.getLogger(f"org.apache.kafka.clients.{name}") for name in ("NetworkClient", "Metadata"))
    for n in range(50):
        client.warn(f"Connection to node {n} could not be established. Node may not be available.")
    assert 1 <= lines() <= 6
    for n in range(50):
        other.warn(f"another warning {n}")
    assert lines() == 50
