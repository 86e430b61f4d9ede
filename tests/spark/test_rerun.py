"""A checkpoint says which micro-batch was broken off: the one with offsets and without a commit."""

from unittest.mock import ANY

import pytest

from delivery.stages.checkpoint import recovery

pytestmark = [
    pytest.mark.spark,
    # py4j leaves its sockets for the garbage collector to close.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def run(spark, checkpoint, *, failing):
    """Run a stream of one micro-batch, which may fail."""

    def handle(*_):
        if failing:
            raise RuntimeError("broken off")

    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
    writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(handle).trigger(once=True)
    query = writer.start()
    if failing:
        with pytest.raises(Exception, match="broken off"):
            query.awaitTermination()
    else:
        query.awaitTermination()


def test_it_is_known_from_when_it_was_begun_until_it_is_committed(spark, tmp_path):
    assert recovery.uncommitted(spark, str(tmp_path)) is None
    run(spark, tmp_path, failing=True)
    found = recovery.uncommitted(spark, str(tmp_path))
    assert found.batch_id == 0
    assert abs(found.since_ms / 1000 - (tmp_path / "offsets" / "0").stat().st_mtime) < 60
    run(spark, tmp_path, failing=True)
    assert recovery.uncommitted(spark, str(tmp_path)) == found
    assert found.ends == recovery.ends_of(spark, str(tmp_path), 0) == {"offset": 1, "timestamp": ANY}
    run(spark, tmp_path, failing=False)
    assert recovery.uncommitted(spark, str(tmp_path)) is None
