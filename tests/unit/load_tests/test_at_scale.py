"""Scenarios at the mission's scale: their table, rates, populations and bounds, and the figures computed from a run."""

import array
import collections
import contextlib
import math
import random
import re
import time
from unittest import mock

import orjson
import pytest

from delivery import errors
from delivery.config import settings
from load_tests.harness import receiver, stage
from load_tests.harness.behaviour import AT_ONCE, Behaviour
from load_tests.scenarios.at_scale import (
    bounds,
    churn,
    command,
    cost_model,
    html_report,
    phase_run,
    plan,
    population,
    running,
    table,
    timeline,
)
from load_tests.scenarios.at_scale.bounds import Bound
from load_tests.scenarios.at_scale.churn import Change
from load_tests.scenarios.at_scale.population import ZipfPopulation
from load_tests.scenarios.at_scale.sampling import Sample


def sample(at_s, *, published=0, delivered=0, jvm_s=0.0, revision=0, memory_mb=100.0):
    return Sample(
        at_s=at_s,
        published=published,
        delivered=delivered,
        cpu_s={"jvm": jvm_s},
        revision=revision,
        memory_mb={"jvm": memory_mb},
        files={"jvm": 50},
        threads={"jvm": 20},
    )


@pytest.mark.parametrize("scenario", table.SCENARIOS.values(), ids=lambda scenario: scenario.name)
def test_a_scenario_has_phases_or_a_capacity_and_bounds_of_its_phases(scenario):
    assert bool(scenario.phases) != (scenario.capacity is not None)
    names = {phase.name for phase in scenario.phases}
    assert {bound.figure.split(".")[1] for bound in scenario.bounds if bound.figure.startswith("phases.")} <= names
    assert set(table.ALWAYS) <= set(scenario.bounds)
    assert len({bound.figure for bound in scenario.bounds}) == len(scenario.bounds)


def test_the_table_has_the_eight_scenarios_at_their_rates():
    assert set(command.NAMES) == {
        "average_5k", "peak_50k", "spike", "hot_tenant", "slow_endpoints", "failing_10pct", "churn", "soak",
    }  # fmt: skip
    assert (table.SCENARIOS["average_5k"].per_s, table.SCENARIOS["peak_50k"].per_s) == (5_000, 50_000)
    assert (table.SCENARIOS["spike"].phases[1].factor, table.SCENARIOS["hot_tenant"].phases[1].hot) == (10, 0.5)
    assert table.SCENARIOS["soak"].phases[0].seconds == 3600
    assert plan.MissionShape() == plan.MissionShape(topics=500, tenants=30_000, endpoints=10_000)


def test_a_spike_is_ten_fold_after_a_second_and_back_after_two():
    before, spike, after = table.SCENARIOS["spike"].phases
    assert [plan.rate(before.factor, spike, at_s) for at_s in (0.0, 0.5, 1.0, 9.0)] == [1.0, 5.5, 10.0, 10.0]
    assert [plan.rate(spike.factor, after, at_s) for at_s in (0.0, 1.0, 2.0, 9.0)] == [10.0, 5.5, 1.0, 1.0]


def test_a_scenario_at_another_size_keeps_its_phases():
    spike = command.chosen("spike", command.ChosenSize(share=0.5, seconds=7, topics=20), ["lost=3"])
    assert (spike.per_s, {phase.seconds for phase in spike.phases}, spike.shape.topics) == (150, {7}, 20)
    assert spike.shape.tenants == 30_000
    assert next(bound for bound in spike.bounds if bound.figure == "lost").at_most == 3


def test_a_capacity_search_begins_with_the_share_of_the_command_line():
    """The full rate stays, because the cost model computes the cores for it."""
    average = command.chosen("average_5k", command.ChosenSize(share=0.25, seconds=30), [])
    assert (average.per_s, average.capacity.first_share, average.seconds) == (5_000, 0.25, 30)


@pytest.mark.parametrize(
    ("name", "limits", "says"),
    [("nothing", [], "no scenario"), ("spike", ["missing=1"], "no bound"), ("spike", ["lost=few"], "no number")],
)
def test_a_wrong_scenario_or_limit_is_refused(name, limits, says):
    with pytest.raises(errors.RegistrationError, match=says):
        command.chosen(name, command.ChosenSize(), limits)


@pytest.mark.parametrize(
    ("bound", "holds"),
    [
        (Bound(figure="lost", at_most=0), True),
        (Bound(figure="phases.spike.p99", at_most=19), False),
        (Bound(figure="phases.spike.p99", at_least=20, at_most=20), True),
        (Bound(figure="reconciled.holds", at_least=1), True),
        (Bound(figure="phases.after.p99", at_most=1), False),  # missing
        (Bound(figure="phases.spike", at_most=1), False),  # not a number
        (Bound(figure="growth", at_most=1), False),  # not a number
    ],
)
def test_a_bound_holds_only_for_a_number_within_it(bound, holds):
    figures = {"lost": 0, "phases": {"spike": {"p99": 20}}, "reconciled": {"holds": True}, "growth": math.nan}
    [verdict] = bounds.check([bound], figures)
    assert verdict.holds is holds


def test_slow_and_failing_endpoints_have_their_share_without_the_hot_one():
    disturbed = Behaviour(slow_of_100=5, failing_of_100=10)
    answers = [disturbed.answer(endpoint) for endpoint in range(10_000)]
    slow = [answer.after_s for answer in answers if answer.after_s]
    assert (len(slow), min(slow) >= 1, max(slow) <= 10, max(slow) > 9) == (500, True, True, True)
    assert sum(not answer.is_accepted for answer in answers) == 1_000
    assert disturbed.answer(0) == AT_ONCE
    assert all((answer == AT_ONCE) == disturbed.is_healthy(endpoint) for endpoint, answer in enumerate(answers))


def test_failing_endpoints_are_in_direct_and_in_batch_mode():
    people = ZipfPopulation(topics=5, tenants=600, endpoints=200, behaviour=Behaviour(failing_of_100=10))
    failing = [endpoint for endpoint in range(200) if not people.behaviour.is_healthy(endpoint)]
    assert collections.Counter(map(people.is_batch, failing)) == {False: 14, True: 6}
    patient = {row["id"] for row in people.registry("http://127.0.0.1")["endpoints"] if "retry" in row}
    assert patient == {f"ep{endpoint}" for endpoint in failing}


def test_the_hot_tenant_has_half_of_all_events_for_one_endpoint():
    people = ZipfPopulation(topics=50, tenants=3_000, endpoints=1_000)
    rng = random.Random(1)
    drawn = [people.draw(rng, (), 0.5) for _ in range(4_000)]
    hot = [event for event in drawn if event.tenant == population.HOT_TENANT]
    assert 0.5 < len(hot) / len(drawn) < 0.62  # and its share of the other half, by Zipf's law
    assert {event.endpoint for event in hot} == {0}
    assert not people.is_other(0)


def test_no_event_is_due_to_a_spare_endpoint():
    people = ZipfPopulation(topics=5, tenants=60, endpoints=20, spare=3)
    manifest = people.registry("http://127.0.0.1")
    spare = [row for row in manifest["subscriptions"] if row["endpoint"].startswith("spare")]
    assert [(row["id"], row["tenants"]) for row in spare] == [(f"spare{n}", [population.SPARE_TENANT]) for n in range(3)]
    assert len(manifest["endpoints"]) == 23


@pytest.fixture
def changes(monkeypatch):
    """The list of changes that the churn makes, as (kind, id), in place of a registry."""
    made = []
    for name in ("disable", "enable"):
        monkeypatch.setattr(churn.endpoint_status, name, lambda _, row, *_why, name=name: made.append((name, row)))
    monkeypatch.setattr(
        churn.apply, "apply_rows", lambda _, wanted, _ring: made.extend((row.status, row.id) for row in wanted.subscriptions)
    )
    monkeypatch.setattr(churn.keyring.KeyRing, "from_settings", lambda _: None)
    monkeypatch.setattr(churn.connect, "connect", lambda _: contextlib.nullcontext(mock.MagicMock()))
    monkeypatch.setattr(churn.registry_reader, "revisions", lambda _: mock.Mock(newest=len(made)))
    return made


def test_four_rounds_of_churn_leave_the_registry_as_it_was(changes):
    changer = churn._Changer(settings.Settings(), spare=2)
    for count in range(8):
        changer.change(mock.MagicMock(), count)
    kinds = ("disable", "paused", "enable", "active")
    assert changes == [(kind, f"spare{number}") for kind in kinds for number in range(2)]


def test_churn_records_each_change_and_ends_with_its_context(changes):
    with churn.Churn(config=settings.Settings(), per_s=1_000, spare=100, now_s=lambda: 0.0) as changing:
        while len(changes) < 20:
            time.sleep(0.001)
    assert len(changing.changes) == len(changes)
    assert [change.revision for change in changing.changes] == sorted(change.revision for change in changing.changes)


def test_churn_raises_the_error_of_a_change_at_its_end(changes, monkeypatch):
    del changes
    monkeypatch.setattr(churn.endpoint_status, "disable", mock.Mock(side_effect=errors.RegistryUnavailable("gone")))
    changing = churn.Churn(config=settings.Settings(), per_s=1_000, spare=100, now_s=lambda: 0.0)
    changing.__enter__()
    for thread in changing._threads:
        thread.join()
    with pytest.raises(errors.RegistryUnavailable, match="gone"):
        changing.__exit__(None, None, None)


def report(*arrived):
    made = receiver.ReceiverReport()
    for number, age_ms in arrived:
        made.numbers.append(number)
        made.ages_ms.append(age_ms)
    return made


def test_only_an_events_first_arrival_counts_for_its_latency():
    ages = timeline.first_ages_ms(report((1, 20.0), (0, 5.0), (1, 900.0), (9, 1.0)), 3)
    assert list(ages)[:2] == [5.0, 20.0]
    assert math.isnan(ages[2])


def test_latency_is_shown_at_the_time_of_publishing():
    marks = [timeline.Mark(0.0, 2), timeline.Mark(1.0, 4), timeline.Mark(2.5, 5)]
    ages, due = array.array("d", [9.0, 9.0, 10.0, 30.0, 50.0, math.nan]), [0, 0, 0, 1, 0, 0]
    rows = timeline.latency(marks, ages, due, lambda endpoint: endpoint == 0, 1.0)
    assert [(row["at_s"], row["count"], row["max"]) for row in rows] == [(0.0, 1, 10), (1.0, 1, 50)]


def test_cores_are_cpu_seconds_between_samples():
    samples = [sample(0.0), sample(0.4, jvm_s=0.4), sample(1.0, jvm_s=0.5), sample(3.0, jvm_s=3.5)]
    assert timeline.cores(samples, 1.0) == [{"at_s": 1.0, "jvm": 0.5}, {"at_s": 3.0, "jvm": 1.5}]


def test_a_spike_is_over_after_the_last_sample_above_the_threshold():
    samples = [sample(float(at_s), published=published) for at_s, published in enumerate([500, 90, 120, 80, 100])]
    assert timeline.recovered_s(samples, 1.0, 100) == 1.0
    assert timeline.recovered_s(samples, 1.0, 500) == 0.0


def test_the_registry_is_behind_until_the_job_routes_by_a_change():
    changes = [Change(1.0, 11), Change(2.0, 12), Change(3.0, 13), Change(5.0, 15)]
    samples = [sample(0.5, revision=10), sample(2.5, revision=10), sample(3.0, revision=12), sample(5.0, revision=15)]
    found = timeline.behind_s(samples, changes)
    assert (found["max"], found["p50"]) == (1.5, 0.0)


def test_growth_compares_the_last_quarter_with_the_second():
    sizes = [10, 20, 100, 100, 110, 130, 150, 150]
    samples = [sample(float(at_s), memory_mb=size) for at_s, size in enumerate(sizes)]
    grown = timeline.growth(samples, [{"p50": 5, "p99": 9}] * 8)
    assert (grown["memory_mb"], grown["files"], grown["latency_ms"]) == ({"jvm": 1.5}, {"jvm": 1.0}, {"p50": 1.0, "p99": 1.0})


def test_a_bound_on_growth_is_broken_with_too_few_samples():
    grown = timeline.growth([sample(0.0)], [])
    [verdict] = bounds.check([Bound(figure="growth.memory_mb.jvm", at_most=1.1)], {"growth": grown})
    assert not verdict.holds


def test_the_cost_model_is_the_line_through_three_sizes():
    """Idle 0.2 cores and 100 µs a delivery in the JVM: 0.3, 0.4 and 0.6 cores at 1,000, 2,000 and 4,000 a second."""
    sizes = [
        cost_model.MeasuredSize(per_s=per_s, cores={"jvm": jvm, "driver": 0.1, "worker": per_s * 50e-6, "kafka": 0.2})
        for per_s, jvm in ((1_000, 0.3), (2_000, 0.4), (4_000, 0.6))
    ]
    found = cost_model.document(sizes, 50_000)
    expected = {"idle_cores": 0.2, "us_per_delivery": 100.0, "cores_at_full_load": 5.2, "worst_error": 0.0}
    assert found["jvm"] == pytest.approx(expected)
    # 5.2 + 0.1 + 50,000 × 50 µs; Kafka is shown and does not count
    assert found["total"]["cores_at_full_load"] == pytest.approx(7.8)
    assert found["times_largest_size"] == 12.5


def test_a_process_whose_cores_fall_with_the_load_counts_as_constant():
    sizes = [
        cost_model.MeasuredSize(per_s=per_s, cores={"jvm": 0.5, "driver": driver, "worker": 0.1})
        for per_s, driver in ((1_000, 0.05), (2_000, 0.04), (4_000, 0.03))
    ]
    found = cost_model.fitted(sizes, 50_000)["driver"]
    assert found["us_per_delivery"] == 0.0
    assert found["idle_cores"] == pytest.approx(0.04)


def test_a_cost_model_of_cores_that_are_no_line_has_an_error():
    sizes = [
        cost_model.MeasuredSize(per_s=per_s, cores={"jvm": jvm, "driver": 0.0, "worker": 0.0})
        for per_s, jvm in ((1_000, 0.1), (2_000, 0.2), (4_000, 1.6))
    ]
    assert cost_model.fitted(sizes, 5_000)["total"]["worst_error"] > 0.15


@pytest.mark.parametrize(
    ("undelivered", "is_growing"), [([900] * 9, False), ([0, 0, 0, 900, 900, 900, 2000, 2500, 3000], True)]
)
def test_a_share_is_not_carried_while_undelivered_events_keep_growing(undelivered, is_growing):
    samples = [sample(float(at_s), published=waiting) for at_s, waiting in enumerate(undelivered)]
    assert phase_run.is_growing(samples, 1_000) is is_growing


def figures_of_a_run(**more):
    latency = {"p50": 5, "p90": 7, "p99": 9, "max": 10}
    samples = [sample(float(at_s), published=10 * at_s, delivered=9 * at_s, jvm_s=0.5 * at_s) for at_s in range(5)]
    phase = {
        "published": 50,
        "deliveries_per_s": 9.0,
        "others_latency_ms": latency,
        "batch_age_ms": latency,
        "cores": {"jvm": 0.5, "driver": 0.1, "worker": 0.2},
        "cpu_us_per_delivery": {"total": 88.9},
    }
    return {
        "scenario": "spike",
        "question": "Is <this> escaped?",
        "per_s": 10.0,
        "shape": {"topics": 5},
        "phases": {"before": phase},
        "verdicts": [{"bound": "lost ≤ 0", "value": 0.0, "holds": True}],
        "series": {
            "phases": [{"name": "before", "from_s": 0.0, "to_s": 4.0}],
            "samples": [taken.document() for taken in samples],
            "latency_ms": {"others": [{"at_s": 0.0, "count": 3, **latency}, {"at_s": 1.0, "count": 3, **latency}]},
            "cores": timeline.cores(samples, 1.0),
        },
    } | more


def test_the_page_loads_nothing_and_shows_broken_bounds():
    page = html_report.page(figures_of_a_run())
    assert ("all bounds hold" in page, page.count("<svg"), "&lt;this&gt;" in page) == (True, 7, True)
    assert "<script" not in page
    assert not re.search(r'(src|href)="(?!#)', page)
    broken = {"bound": "growth.files.jvm ≤ 1.1", "value": None, "holds": False}
    assert '<td>missing</td><td class="broken">' in html_report.page(figures_of_a_run(verdicts=[broken]))


def test_the_page_of_a_capacity_search_draws_the_cost_model():
    plain = figures_of_a_run()
    size = {"is_carried": True, **plain["phases"]["before"]}
    model = cost_model.document([cost_model.MeasuredSize(per_s=9.0, cores=size["cores"])], 5_000)
    page = html_report.page(figures_of_a_run(phases={}, sizes={"0.5": size}, cost_model=model))
    assert (page.count("<svg"), "cores at 5,000 a second" in page) == (8, True)


@pytest.mark.parametrize("holds", [True, False])
def test_the_command_reports_whether_all_bounds_hold(monkeypatch, tmp_path, holds):
    verdict = {"bound": "lost ≤ 0", "value": 0.0 if holds else 3.0, "holds": holds}
    monkeypatch.setattr(running, "run", lambda *_: figures_of_a_run(verdicts=[verdict]))
    all_hold = command.run(
        table.SCENARIOS["spike"],
        stage.Terms(say=lambda _: None),
        json_file=tmp_path / "figures.json",
        html_file=tmp_path / "page.html",
    )
    assert all_hold is holds
    assert orjson.loads((tmp_path / "figures.json").read_bytes())["series"]["samples"]
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
