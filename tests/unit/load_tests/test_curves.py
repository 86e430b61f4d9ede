"""The curves: their axes, the populations of the points, the fit and the knee, and the figures, pages and plots."""

import collections
import math
import random

import orjson
import pytest

from delivery import errors
from load_tests.curves import axes, command, curve_pages, curve_plots, fit, measuring, shape_registry, summary
from load_tests.curves.axes import AXES, Axis, CurveShape
from load_tests.curves.measuring import JobRun, Pass
from load_tests.harness import stage, usage

AXIS = Axis(name="endpoints", variable="endpoints", values=(10, 100), label="endpoints", because="A reason.")
RIGHT = {"lost": 0, "duplicates": 0, "unexpected": 0, "unverified": 0, "reconciled": True}


def done(value, *, jvm_s=0.01, workers_s=0.04, events=1_000, fan_out=1):
    return Pass(
        value=value,
        events=events,
        deliveries=events * fan_out,
        took_s=0.5,
        used=usage.Usage(jvm_s=jvm_s, driver_s=0.0, workers_s=workers_s),
        micro_batches=1,
        slowdown=1.5,
    )


def job(value, *passes, checks=RIGHT, **fields):
    given = {"ready_s": 9.0, "registered_s": 2.0, "broadcast_mb": 0.1, "peak_mb": {"jvm": 900, "driver": 180, "worker": 140}}
    return JobRun(values=(value,), passes=list(passes), checks=checks, **{**given, **fields})


def figures_of(*jobs, axis=AXIS):
    return summary.document(axis, jobs)


# --- axes -----------------------------------------------------------------------------------------------------------------


def test_the_axes_have_the_ranges_of_the_issue():
    ends = {name: (axis.values[0], axis.values[-1]) for name, axis in AXES.items()}
    assert ends == {
        "fan_out": (1, 50),
        "endpoints": (10, 10_000),
        "topics": (1, 2_000),
        "subscriptions": (1_000, 1_000_000),
        "filters": (0, 1_000),
        "payload": (125, 100_000),
        "executors": (1, 4),
    }


@pytest.mark.parametrize("axis", AXES.values(), ids=lambda axis: axis.name)
def test_the_values_ascend_and_each_shape_differs_in_its_variable_only(axis):
    assert list(axis.values) == sorted(set(axis.values))
    assert [value for job in axis.jobs() for value in job] == list(axis.values)
    for value in axis.values:
        shape = axis.shape(value)
        changed = {name for name in CurveShape.__slots__ if getattr(shape, name) != getattr(axis.base, name)}
        assert changed <= {axis.variable}


def test_larger_values_of_an_axis_can_be_left_out_but_not_the_smallest():
    assert AXES["topics"].up_to(100).values == (1, 10, 100)
    assert AXES["payload"].up_to(1).values == (125,)


def test_a_name_that_is_no_axis_is_refused_with_the_names_of_all_axes():
    with pytest.raises(errors.RegistrationError, match="the axes are: fan_out, endpoints"):
        command.chosen(["fanout"], None)
    assert [axis.name for axis in command.chosen([], None)] == list(AXES)


# --- populations ----------------------------------------------------------------------------------------------------------


def due_by_the_manifest(manifest, event_type, tenant):
    """Return the endpoints to which an event without matching filters is due by the manifest."""
    return sorted(
        int(row["endpoint"].removeprefix("ep"))
        for row in manifest["subscriptions"]
        if "filter" not in row and event_type.startswith(row["event_type"].removesuffix("*")) and f"t{tenant}" in row["tenants"]
    )


@pytest.mark.parametrize("name", ["fan_out", "filters", "payload", "endpoints"])
def test_an_event_is_due_to_its_drawn_endpoint_and_the_following_ones(name):
    axis = AXES[name].up_to(100)
    made = shape_registry.CurvePopulation(shapes=[axis.shape(value) for value in axis.values])
    manifest = made.registry("http://127.0.0.1:1")
    rng = random.Random(1)
    for number, shape in enumerate(made.shapes):
        drawn = made.draw(rng, made.types_of(number), 0.0)
        event_type = made.event_types[drawn.type_number]
        expected = list(range(drawn.endpoint, drawn.endpoint + made.fan_out_of(drawn.type_number)))
        assert due_by_the_manifest(manifest, event_type, drawn.tenant) == expected
        assert len(expected) == shape.fan_out
        assert drawn.event_bytes == shape.event_bytes


def test_all_endpoints_get_events_and_all_tenants_are_registered():
    made = shape_registry.CurvePopulation(shapes=[CurveShape(fan_out=5), CurveShape()])
    rng = random.Random(1)
    drawn = [made.draw(rng, range(len(made.event_types)), 0.0) for _ in range(5_000)]
    assert {event.endpoint + place for event in drawn for place in range(made.fan_out_of(event.type_number))} == set(range(100))
    assert {f"t{event.tenant}" for event in drawn} <= {row["id"] for row in made.registry("http://127.0.0.1:1")["tenants"]}


def test_shapes_of_one_job_share_no_event_type():
    made = shape_registry.CurvePopulation(shapes=[CurveShape(topics=3), CurveShape(topics=2)])
    assert len(set(made.event_types)) == 5
    assert (made.types_of(0), made.types_of(1)) == (range(3), range(3, 5))


def test_subscriptions_are_spread_over_event_types_tenants_and_endpoints():
    shape = CurveShape(subscriptions=10_000)
    made = shape_registry.CurvePopulation(shapes=[shape])
    assert shape.tenants * shape.topics == 10_000
    assert made.registry("http://127.0.0.1:1")["subscriptions"] == []
    rng = random.Random(1)
    counts = collections.Counter(made.draw(rng, made.types_of(0), 0.0).endpoint for _ in range(5_000))
    assert set(counts) == set(range(100))


# --- fit and knee ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("costs", "form", "constant", "slope"),
    [
        ([60.0, 150.0, 1_050.0], "x", 50.0, 1.0),
        ([50 + 10 * math.log10(11), 50 + 10 * math.log10(101), 50 + 10 * math.log10(1_001)], "log10(1 + x)", 50.0, 10.0),
        ([70.0, 70.0, 70.0], "x", 70.0, 0.0),
    ],
)
def test_the_form_with_the_smaller_residual_is_the_fit(costs, form, constant, slope):
    found = fit.fitted([10, 100, 1_000], costs)
    assert found.form == form
    assert (found.constant, found.slope, found.residual) == (
        pytest.approx(constant),
        pytest.approx(slope, abs=1e-9),
        pytest.approx(0, abs=1e-9),
    )
    assert found.at(100) == pytest.approx(costs[1])


def test_the_residual_is_the_root_of_the_mean_square():
    found = fit.fitted([0, 1, 0, 1], [10.0, 10.0, 12.0, 12.0])
    assert (found.constant, found.slope, found.residual) == (11.0, 0.0, 1.0)


def test_a_single_value_is_fitted_by_a_constant():
    found = fit.fitted([5], [42.0])
    assert (found.at(5), found.slope, found.residual) == (42.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="needs a measured value"):
        fit.fitted([], [])


def test_the_text_of_a_fit_has_its_signs():
    assert fit.Fit(form="x", constant=50.12, slope=-0.25, residual=0.0).text() == "50.12 - 0.25 · x"


@pytest.mark.parametrize(
    ("costs", "value"),
    [
        ([100, 110, 125], None),  # 125 is 1.25 × 100, not more
        ([100, 126, 90], 10),
        ([100, 110, 126], 100),
        ([100], None),
    ],
)
def test_the_knee_is_the_first_value_that_costs_a_quarter_more(costs, value):
    assert fit.knee([1, 10, 100][: len(costs)], costs) == value


# --- figures --------------------------------------------------------------------------------------------------------------


def test_a_point_has_the_cost_of_all_passes_and_the_figures_of_its_job():
    point = figures_of(job(10, done(10), done(10, workers_s=0.06)))["points"][0]
    assert point["cpu_us"] == {"jvm": 10.0, "driver": 0.0, "worker": 50.0, "total": 60.0}
    assert point["cpu_us_by_pass"] == [50.0, 70.0]
    assert (point["deliveries"], point["deliveries_per_s"], point["ready_s"]) == (2_000, 2_000, 9.0)
    assert point["checks"] == RIGHT


def test_the_cost_of_an_event_counts_all_of_its_deliveries():
    axis = Axis(name="fan_out", variable="fan_out", values=(1, 5), label="", because="", unit="event", one_job=True)
    jobs = [JobRun(values=(1, 5), passes=[done(1), done(5, fan_out=5, workers_s=0.2)], checks=RIGHT)]
    assert [point["cpu_us"]["total"] for point in figures_of(*jobs, axis=axis)["points"]] == [50.0, 210.0]


def test_the_knee_names_the_process_that_grew_most():
    found = figures_of(job(10, done(10)), job(100, done(100, jvm_s=0.02, workers_s=0.07)))
    assert found["knee"] == {"value": 100, "grew_most": "worker", "share": 0.75}


def test_an_interrupted_job_leaves_its_points_without_checks():
    found = figures_of(job(10, done(10)), job(100, done(100), checks=None, ready_s=None, broadcast_mb=None, peak_mb={}))
    assert [point["value"] for point in found["points"]] == [10, 100]
    assert summary.broken({"endpoints": found}) == [
        (
            "endpoints 100: the job was interrupted before its deliveries were compared, so its figures are not proven: "
            "measure this value again"
        )
    ]


@pytest.mark.parametrize("wrong", [{"lost": 1}, {"duplicates": 1}, {"unexpected": 2}, {"unverified": 1}, {"reconciled": False}])
def test_a_wrong_delivery_makes_a_value_wrong(wrong):
    assert summary.broken({"endpoints": figures_of(job(10, done(10)))}) == []
    assert len(summary.broken({"endpoints": figures_of(job(10, done(10), checks={**RIGHT, **wrong}))})) == 1


# --- the command, with jobs that measure nothing --------------------------------------------------------------------------


def terms(said):
    return stage.Terms(say=said.append)


def measured_without_a_platform(monkeypatch, ends=None):
    """Let each job have a pass of its values; `ends` raises an exception or sets a problem at a value."""

    def run(_axis, found, deliveries, _terms):
        for value in found.values:
            if value in (ends or {}):
                if isinstance(ends[value], str):
                    found.problem = ends[value]
                    return
                raise ends[value]
            found.passes.append(done(value, events=deliveries))
        found.checks = RIGHT

    monkeypatch.setattr(measuring, "run", run)


def test_ctrl_c_leaves_what_was_measured(monkeypatch, tmp_path):
    measured_without_a_platform(monkeypatch, {100: KeyboardInterrupt()})
    files = command.Files(json_file=tmp_path / "curves.json", html_file=tmp_path / "page.html", svg_folder=tmp_path / "svg")
    with pytest.raises(KeyboardInterrupt):
        command.measure([AXIS], 500, terms([]), files)
    found = command.read(tmp_path / "curves.json")
    assert [(point["value"], point["deliveries"]) for point in found["endpoints"]["points"]] == [(10, 500)]
    assert (tmp_path / "svg" / "endpoints.svg").exists()
    assert "<svg" in (tmp_path / "page.html").read_text()


def test_values_that_do_not_fit_the_machine_are_left_out_and_named(monkeypatch):
    measured_without_a_platform(monkeypatch, {100: "not registered and ready within 180 s"})
    said = []
    assert command.measure([AXIS], None, terms(said), command.Files()) == []
    assert "endpoints: 100 is left out: not registered and ready within 180 s." in said


def test_an_axis_that_is_not_measured_again_stays_in_the_file(monkeypatch, tmp_path):
    measured_without_a_platform(monkeypatch)
    files = command.Files(json_file=tmp_path / "curves.json")
    command.measure([AXIS], None, terms([]), files)
    command.measure([AXES["executors"]], None, terms([]), files)
    assert set(command.read(tmp_path / "curves.json")) == {"endpoints", "executors"}


def test_an_earlier_run_is_drawn_again_to_the_same_bytes(monkeypatch, tmp_path):
    measured_without_a_platform(monkeypatch)
    files = command.Files(json_file=tmp_path / "curves.json", svg_folder=tmp_path / "first")
    command.measure([AXIS, AXES["filters"], AXES["executors"]], None, terms([]), files)
    command.write(command.read(tmp_path / "curves.json"), command.Files(svg_folder=tmp_path / "second"))
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == ["curves.md", "endpoints.svg", "executors.svg", "filters.svg"]
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"no json"])
def test_a_file_without_figures_of_curves_is_refused(tmp_path, text):
    (tmp_path / "other.json").write_bytes(text)
    with pytest.raises(errors.RegistrationError, match="name a file that --json has written"):
        command.read(tmp_path / "other.json")


def test_the_page_says_fit_and_knee_and_has_a_row_for_each_value():
    figures = figures_of(job(10, done(10)), job(100, done(100, workers_s=0.09)))
    page = curve_pages.markdown({"endpoints": orjson.loads(orjson.dumps(figures))})
    assert (
        "Knee: from 100 on, a value costs more than 1.25 times as much as the smallest value; 100% of the growth is in the "
        "workers."
    ) in page
    assert "CPU µs of one delivery, with x = endpoints: 44.44 + 0.556 · x (residual 0 µs)." in page
    assert "| 100 | 10.0 | 0.0 | 90.0 | 100.0 | 100.0 | 2,000 | 9.0 | 0.1 | 900 | 180 | 140 | 0 | 0 |" in page
    assert curve_plots.svg(figures).count("<svg") == 1


def test_a_unit_is_an_event_or_a_delivery():
    assert {axis.unit for axis in AXES.values()} <= set(axes.Unit.__args__)
