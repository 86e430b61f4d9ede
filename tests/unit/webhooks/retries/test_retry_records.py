"""A message of the retries topic is followed by padding, which bounds a micro-batch in bytes. No reader sees padding."""

import pytest

from delivery.webhooks.retries import retry_messages, retry_records
from tests.support import retries

SMALL = retries.postponed(retries.entry())
LARGE = retries.postponed(retries.entry(payload=b'"%s"' % (b"x" * 3 * retry_records.PADDED_BYTES)))


@pytest.mark.parametrize(("written", "padding"), [(SMALL, 0), (LARGE, 3)])
def test_one_padding_record_follows_for_every_4_kib(written, padding):
    first, *others = retry_records.records(b"ep1", written)
    assert (first.key, first.value) == (b"ep1", written)
    assert others == [retry_records.RetryRecord(b"ep1", None)] * padding
    assert len(written) < (1 + padding) * retry_records.PADDED_BYTES == (1 + padding) * 4096


def test_readers_get_the_messages_without_padding():
    values = [record.value for written in (LARGE, SMALL) for record in retry_records.records(b"ep1", written)]
    assert list(retry_records.messages(*values)) == [retry_messages.message(LARGE), retry_messages.message(SMALL)]


def test_padding_has_no_headers():
    note = ("redriven", b"{}")
    headers = [record.headers for record in retry_records.records(b"ep1", LARGE, (note,))]
    assert headers == [(note,), (), (), ()]
