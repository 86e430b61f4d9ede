"""The address that Spark is given where the host name has none: `fanout run` ended with 60 lines of Java traceback."""

import pytest

from delivery import errors
from delivery.stages import local_address


def missing(environ=None, master="local[2,4]", *, resolves=False, own="10.0.0.7"):
    return local_address.missing(
        environ or {}, master, name="nosuchname", is_resolved=lambda _: resolves, own_address=lambda: own
    )


def test_a_name_that_resolves_needs_nothing():
    assert missing(resolves=True) == {}


def test_one_machine_uses_its_loopback():
    assert missing() == {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}


@pytest.mark.parametrize("master", ["k8s://https://10.0.0.1:443", "spark://master:7077", "yarn"])
def test_executors_elsewhere_reach_the_driver_at_its_address(master):
    assert missing(master=master) == {"SPARK_LOCAL_IP": "10.0.0.7", "SPARK_LOCAL_HOSTNAME": "10.0.0.7"}


@pytest.mark.parametrize("name", ["SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"])
def test_what_the_operator_has_set_stays(name):
    assert missing({name: "10.9.9.9"}) == {}


def test_without_a_network_a_cluster_asks_for_the_address_in_words():
    with pytest.raises(errors.SettingsError, match=r"nosuchname, does not resolve.*Set SPARK_LOCAL_IP in the environment"):
        missing(master="yarn", own=None)


def test_a_name_of_nobody_does_not_resolve():
    assert (local_address.resolves("localhost"), local_address.resolves("a..b")) == (True, False)
