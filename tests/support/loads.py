"""Build the input of the decision on the number of executors."""

from delivery.stages.scaling import decision, load


def policy(**fields):
    return decision.Policy(**{"min_executors": 1, "max_executors": 10, "cores": 2, **fields})


def seen(at_s, lag=0, **fields):
    return load.Load(**{"at_s": at_s, "lag": lag, "handled": 0, "handled_at_s": at_s, "partitions": 100, **fields})


def measured(now_s=1000.0, *, lag=0, arrival_per_s=0, per_executor=1000.0, executors=1, partitions=100):
    """Return the measurements of a lane with these rates, observed for `load.WINDOW_S`."""
    before = now_s - load.WINDOW_S
    window = tuple(
        seen(at_s, lag, handled=round(arrival_per_s * (at_s - before)), partitions=partitions) for at_s in (before, now_s - 5)
    )
    return load.Measured(window=window, per_executor=per_executor, measured_at_s=now_s, executors=executors)


def decide(known, executors=1, now_s=1000.0, *, sufficed=(), fell_at_s=float("-inf"), rules=None, **fields):
    """Return the decision after one more observation of the lane `direct`, at the same rates as before."""
    first, last = known.window[0], known.window[-1]
    per_s = (last.handled - first.handled) / (last.at_s - first.at_s)
    given = {"lag": last.lag, "handled": last.handled + round(5 * per_s), "partitions": last.partitions, **fields}
    state = decision.ScalingState(wanted=executors, lanes={"direct": known}, sufficed=tuple(sufficed), fell_at_s=fell_at_s)
    return decision.decide(state, {"direct": seen(now_s, **given)}, rules or policy(), executors=executors, now_s=now_s)
