"""The account of `fanout reconcile` as an operator reads it."""

import io

from fanout.reconcile import proving
from fanout.terminal import commands
from tests.support.written_topics import NOW_MS, WrittenTopics, outcome, receipt


def test_records_that_are_too_new_to_judge_are_named_so():
    """Regression: a delivery of just now was "not handled yet", beside `delivered 0` and "Everything adds up"."""
    topics = WrittenTopics()
    topics.write(outcome(0), receipts=[receipt(0, 9, due=1)])
    account = topics.account(until_ms=NOW_MS - 10_000)
    console = commands.Console(file=io.StringIO(), width=200)
    proving.show(console, proving.Proof(account, []))
    [row] = [line for line in console.file.getvalue().splitlines() if "not handled yet" in line]
    assert "records not handled yet, or newer than --settle" in row


def test_topics_without_a_record_of_any_lane_are_no_proof():
    """Regression: "Everything adds up.", with exit code 0, for a job that had stood still since before --since."""
    proof = proving.Proof(WrittenTopics().account(), [])
    console = commands.Console(file=io.StringIO(), width=200)
    proving.show(console, proof)
    assert (proof.exit_code, "Nothing was checked" in console.file.getvalue()) == (2, True)
    topics = WrittenTopics()
    topics.write(outcome(0), receipts=[receipt(0, 9, due=1)])
    assert proving.Proof(topics.account(), []).exit_code in {0, 1}
