"""Several devices train what one trains: the same batches, divided."""

import pytest

from headcount.errors import RequestError
from headcount.study.run import execute
from headcount.study.store import Study
from headcount.training.journal import read_rows


def rows(config):
    record = execute(config)
    assert record.status == "completed", record.error
    return record, read_rows(Study.of(config).run_folder(record.run_id) / "metrics.jsonl")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_lose_what_one_loses(small, accumulate):
    common = ("trainer.max_steps=12", f"trainer.accumulate_grad_batches={accumulate}")
    one, alone = rows(small(*common, "study=one"))
    two, divided = rows(small(*common, "study=two", "trainer=ddp", "trainer.max_steps=12"))
    assert one.run_id == two.run_id  # how many devices train is no part of what a run is
    assert [r["step"] for r in divided] == [r["step"] for r in alone]
    for ours, theirs in zip(divided, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert two.quality.test_loss == pytest.approx(one.quality.test_loss, rel=1e-5)
    assert two.training.tokens == one.training.tokens


def test_devices_that_cannot_divide_the_batch_are_refused(small):
    with pytest.raises(
        RequestError, match=r"trainer\.devices=3 does not divide task\.batch_size=4"
    ):
        small("trainer=ddp", "trainer.devices=3")
