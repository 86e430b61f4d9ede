"""Bytes of a known version are read. Bytes of another version are refused, with the name of what was read."""

import pytest

from delivery import errors
from delivery.webhooks.batching import batcher, segment
from delivery.webhooks.retries import retry_messages, shard_scheduler
from delivery.webhooks.state import versioning


def test_marked_bytes_are_read():
    assert bytes(versioning.read(versioning.versioned(3, b"kept"), 3, "a thing")) == b"kept"


@pytest.mark.parametrize(
    ("read", "name", "formats"),
    [
        (batcher.decoded, "an index of the batch lane", "format 1"),
        (segment.decoded, "a segment of the batch lane", "format 1"),
        (segment.decoded_batch, "a batch that left its shard", "format 1"),
        (shard_scheduler.decoded, "an index of the retry lane", "formats 1 to 2"),
        (retry_messages.message, "a record of the retries topic", "format 1"),
        (retry_messages.lease, "a lease of the retry lane", "format 1"),
    ],
)
def test_bytes_of_another_version_are_refused_by_name(read, name, formats):
    with pytest.raises(
        errors.StateUnreadable, match=f"{name} has format 99, and this version of fanout reads {formats}. Nothing was changed"
    ):
        read(b"\x63rest")


@pytest.mark.parametrize("read", [segment.decoded, segment.decoded_batch, retry_messages.message, retry_messages.lease])
def test_empty_bytes_are_refused(read):
    with pytest.raises(errors.StateUnreadable, match="is empty, and no version of fanout writes that"):
        read(b"")
