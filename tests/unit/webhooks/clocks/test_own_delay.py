"""The delay by a worker's own machine, from Linux's counters."""

import threading

import pytest

from delivery.webhooks.clocks import own_delay

STALLED = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"


class Machine:
    """The files of a Linux machine, in a folder."""

    def __init__(self, folder, group="/jobs/fanout"):
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.own = self.cgroups / group.lstrip("/")
        self.thread = self.proc / "self" / "task" / str(threading.get_native_id())
        for made in (self.proc / "pressure", self.thread, self.own):
            made.mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"12:cpu:/other\n0::{group}\n")

    def pressure(self, folder, name, microseconds):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(STALLED.format(microseconds))

    def waited(self, nanoseconds):
        (self.thread / "schedstat").write_text(f"77777 {nanoseconds} 12\n")

    def measured(self):
        return own_delay.OwnDelay(self.proc, self.cgroups)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_machine_without_counters_has_no_delay(machine):
    measured = machine.measured()

    assert measured.delay_since_last_call_s() == 0


def test_the_pressure_since_the_last_call_is_the_delay(machine):
    machine.pressure(machine.proc / "pressure", "cpu", 5_000_000)
    measured = machine.measured()
    machine.pressure(machine.proc / "pressure", "cpu", 5_040_000)

    assert measured.delay_since_last_call_s() == pytest.approx(0.04)
    assert measured.delay_since_last_call_s() == 0


def test_a_counter_that_ends_stops_no_other(machine):
    """Regression: an error here ended the beat of the endpoint clock, so no response was overdue any more."""
    machine.pressure(machine.proc / "pressure", "cpu", 0)
    machine.waited(0)
    measured = machine.measured()
    (machine.proc / "pressure" / "cpu").write_text("")
    machine.waited(30_000_000)

    assert measured.delay_since_last_call_s() == pytest.approx(0.03)
    machine.pressure(machine.proc / "pressure", "cpu", 9_000_000)
    assert measured.delay_since_last_call_s() == 0
    machine.pressure(machine.proc / "pressure", "cpu", 9_050_000)
    assert measured.delay_since_last_call_s() == pytest.approx(0.05)


def test_pressure_is_that_of_the_control_group_if_it_has_files(machine):
    machine.pressure(machine.proc / "pressure", "cpu", 0)
    machine.pressure(machine.own, "cpu.pressure", 0)
    measured = machine.measured()
    machine.pressure(machine.proc / "pressure", "cpu", 9_000_000)
    machine.pressure(machine.own, "cpu.pressure", 10_000)

    assert measured.delay_since_last_call_s() == pytest.approx(0.01)


def test_delays_overlap_so_the_largest_counts(machine):
    machine.pressure(machine.proc / "pressure", "cpu", 0)
    machine.pressure(machine.proc / "pressure", "memory", 0)
    machine.waited(0)
    measured = machine.measured()
    machine.pressure(machine.proc / "pressure", "cpu", 20_000)
    machine.pressure(machine.proc / "pressure", "memory", 10_000)
    machine.waited(30_000_000)

    assert measured.delay_since_last_call_s() == pytest.approx(0.03)


def test_own_delay_reads_the_counters_of_this_machine():
    measured = own_delay.OwnDelay()

    assert measured.delay_since_last_call_s() >= 0
    measured.close()
    assert measured.delay_since_last_call_s() == 0
