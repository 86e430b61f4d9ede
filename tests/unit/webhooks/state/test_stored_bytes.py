"""The lanes write messages, indexes and segments as the same bytes as before, and read the bytes of earlier versions."""

import msgspec
import pytest

from delivery.webhooks.retries import retry_messages
from tests.support import stored_samples

STORED = stored_samples.stored()
NEWEST = STORED[max(STORED)]
SAMPLES = stored_samples.samples()


@pytest.mark.parametrize("name", NEWEST)
def test_the_bytes_of_stored_samples_do_not_change(name):
    """A test of decoding alone would not notice another order, or another type, that both ends agree on."""
    assert SAMPLES[name].written == NEWEST[name]


def test_every_sample_has_stored_bytes():
    assert SAMPLES.keys() == NEWEST.keys()


@pytest.mark.parametrize(("form", "name"), [(form, name) for form, stored in STORED.items() for name in stored])
def test_stored_bytes_of_every_form_can_be_read(form, name):
    """An element that was added later has its default in an earlier form."""
    read = SAMPLES[name].read(STORED[form][name])
    assert read is not None
    if form == max(STORED):
        assert read == SAMPLES[name].read(SAMPLES[name].written)


@pytest.mark.parametrize("kind", ["deferral", "report", "lease"])
def test_a_sample_sets_each_element(kind):
    """An element with its default would hide a change of its type."""
    name = kind if kind == "lease" else f"retries topic: {kind}"
    read = SAMPLES[name].read(SAMPLES[name].written)
    parts = [read, *getattr(read, "entries", [])[:1]] if kind != "report" else [read, *read.requeued]
    left = {
        f"{type(part).__name__}.{field.name}"
        for part in parts
        for field in msgspec.structs.fields(part)
        if field.default is not msgspec.NODEFAULT and getattr(part, field.name) == field.default
    }
    of_other_kinds = {f"{retry_messages.Postponed.__name__}.{name}" for name in ("settled", "accepts", "at_ms")}
    assert left - of_other_kinds == set()
