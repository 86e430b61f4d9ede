"""The statements by which the job reads the registry name only columns that deliveries need, because each takes memory."""

import re

import pytest

from subscriptions_db.postgres.sql import query


@pytest.mark.parametrize("name", ["endpoints", "subscriptions"])
def test_the_job_reads_no_descriptions_and_times(name):
    assert not re.search(r"\bdescription\b|\bmetadata\b|\bcreated_at\b|\bupdated_at\b|\*", query(name).partition("select")[2])
