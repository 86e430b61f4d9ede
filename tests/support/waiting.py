"""Wait in a test for another thread, without sleeping."""


def assert_becomes(value, wanted):
    """Assert that `value()` becomes `wanted`, which another thread sets without waiting for this thread."""
    for _ in range(10_000_000):
        if value() == wanted:
            return
    assert value() == wanted
