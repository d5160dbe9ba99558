"""What every generated task must keep, and each one's definition."""

import math

import pytest
import torch

from headcount.errors import RequestError
from headcount.tasks.base import IGNORE
from headcount.tasks.retrieval import variance_of_max

GENERATED = (
    "retrieval",
    "nearest_point",
    "farthest_point",
    "mqar",
    "compositional_mqar",
    "induction",
    "selective_copy",
    "needle",
)


def same(a, b):
    """Whether two batches are equal; the masked targets of a regression are NaN."""
    return all(
        x is y is None or torch.equal(x.nan_to_num(7.5), y.nan_to_num(7.5))
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("name", GENERATED)
def test_training_batches_are_a_function_of_seed_and_step(task_of, name):
    one, other = task_of(name), task_of(name, eval_batch_size=3, eval_sequences=5)
    list(other.eval_batches("val"))  # a validation in between moves nothing
    assert all(same(one.train_batch(1, step), other.train_batch(1, step)) for step in range(20))
    assert not same(one.train_batch(1, 0), one.train_batch(1, 1))
    assert not same(one.train_batch(1, 0), one.train_batch(2, 0))


@pytest.mark.parametrize("name", GENERATED)
def test_evaluation_data_are_fixed_whatever_the_batch_size(task_of, name):
    tasks = [task_of(name, eval_sequences=50, eval_batch_size=size) for size in (50, 7, 1)]
    whole = [torch.cat([b.inputs for b in task.eval_batches("test")]) for task in tasks]
    assert torch.equal(whole[0], whole[1])
    assert torch.equal(whole[0], whole[2])
    assert len({task.data_hash for task in tasks}) == 1
    validation = torch.cat([b.inputs for b in tasks[0].eval_batches("val")])
    assert not torch.equal(validation, whole[0])


@pytest.mark.parametrize("name", GENERATED)
def test_slices_of_a_criterion_cover_every_scored_position_once(task_of, name):
    task = task_of(name)
    batch = task.train_batch(0, 0)
    by_criterion: dict[str, int] = {}
    for slice_name, mask in task.slices(batch).items():
        assert mask.shape == (batch.n_scored,)
        criterion = slice_name.split("_")[0] + str(slice_name.count("_") > 4)
        by_criterion[criterion] = by_criterion.get(criterion, 0) + int(mask.sum())
    if name == "induction":  # two names of one criterion
        by_criterion = {"occurrence": sum(by_criterion.values())}
    assert set(by_criterion.values()) == {batch.n_scored}


def test_retrieval_sums_the_maxima_of_the_first_coordinates(task_of):
    task = task_of("retrieval", n_terms=3, seq_len=9)
    batch = task.train_batch(0, 0)
    for inputs, targets in zip(batch.inputs[:5], batch.targets[:5], strict=True):
        points = inputs[:8, :4]
        assert targets[-1].item() == pytest.approx(sum(points[:, i].max().item() for i in range(3)))
        assert targets[:-1].isnan().all()
        assert inputs[:8, 4:].tolist() == [[1, 0]] * 8
        assert inputs[8].tolist() == [0, 0, 0, 0, 0, 1]


def test_points_of_retrieval_are_standard_normal(task_of):
    points = torch.cat(
        [task_of("retrieval").train_batch(5, i).inputs[:, :-1, :4] for i in range(20)]
    )
    n = points.numel()
    # false alarm of each below 1e-5: 4.5 standard errors
    assert abs(points.mean().item()) < 4.5 / math.sqrt(n)
    assert abs(points.var().item() - 1) < 4.5 * math.sqrt(2 / n)


def test_variance_of_a_maximum():
    assert variance_of_max(1) == pytest.approx(1)
    assert variance_of_max(2) == pytest.approx(1 - 1 / math.pi)  # closed form
    # three: 1 + sqrt(3)/(2π) − 9/(4π) (order statistics of the normal)
    third = 1 + math.sqrt(3) / (2 * math.pi) - 9 / (4 * math.pi)
    assert variance_of_max(3) == pytest.approx(third)


def test_knowing_nothing_costs_one_and_the_answer_nothing(task_of):
    for name, mean in (("retrieval", None), ("nearest_point", 0.0)):
        task = task_of(name, eval_sequences=4096, eval_batch_size=4096)
        (batch,) = task.eval_batches("test")
        exact = batch.targets.nan_to_num()
        assert task.losses(exact, batch).max().item() == 0
        answers = batch.targets[batch.scored]
        guess = torch.full_like(exact, answers.mean().item() if mean is None else mean)
        # the standard error is about sqrt(3/4096) = 0.027 for a variance; 4.5 of them
        assert task.losses(guess, batch).mean().item() == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize(("name", "pick"), [("nearest_point", min), ("farthest_point", max)])
def test_the_answer_is_the_point_at_that_distance(task_of, name, pick):
    batch = task_of(name).train_batch(0, 0)
    for inputs, targets in zip(batch.inputs[:8], batch.targets[:8], strict=True):
        points, query = inputs[:-1, :-1], inputs[-1, :-1]
        assert points.norm(dim=1).tolist() == pytest.approx([1] * 8)
        assert inputs[:, -1].tolist() == [0] * 8 + [1]
        distance = (points - query).norm(dim=1).tolist()
        answer = points[distance.index(pick(distance))]
        assert torch.equal(targets[-1], answer)


def test_induction_repeats_a_round_and_scores_what_is_known(task_of):
    batch = task_of("induction").train_batch(0, 0)
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        first = int((targets != IGNORE).int().argmax())  # the first repeated token
        assert 16 <= first <= 32
        assert torch.equal(inputs[first:], inputs[:-first][: 64 - first])
        assert torch.equal(targets[first:-1], inputs[first + 1 :])
        assert (targets[:first] == IGNORE).all()
        assert (targets[first:] != IGNORE).all()


def test_selective_copy_asks_for_the_data_in_order(task_of):
    batch = task_of("selective_copy").train_batch(0, 0)
    for inputs, targets in zip(batch.inputs, batch.targets, strict=True):
        context = inputs[:56]
        data = context[context != 0]
        assert len(data) == 8
        assert data.min() >= 1
        assert data.max() <= 14
        assert inputs[56:].tolist() == [15] * 8
        assert torch.equal(targets[56:], data)
        assert (targets[:56] == IGNORE).all()


def test_the_places_of_data_are_even(task_of):
    task = task_of("selective_copy")
    seen = torch.zeros(56)
    for step in range(50):
        seen += (task.train_batch(0, step).inputs[:, :56] != 0).sum(0)
    expected = 50 * 64 * 8 / 56
    chi2 = ((seen - expected) ** 2 / (expected * 48 / 56)).sum().item()  # drawn without repeats
    assert chi2 < 109  # 1e-5 of the chi-squared with 55 degrees of freedom lies above


def test_needle_hides_one_fact_and_asks_for_it(task_of):
    task = task_of("needle")
    batch = task.train_batch(0, 0)
    seen = set()
    for i, (inputs, targets) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        length = (32, 64, 128)[i % 3]
        (end,) = (targets != IGNORE).nonzero().flatten().tolist()
        assert end == length - 1
        (place, again) = (inputs < 16).nonzero().flatten().tolist()
        assert again == end
        assert inputs[place] == inputs[end]
        assert inputs[place + 1] == targets[end]
        assert 16 <= targets[end] < 32
        assert place + 1 < end
        seen.add(place * 4 // (length - 2))
    assert seen == {0, 1, 2, 3}
    masks = task.slices(batch)
    assert torch.equal(masks["length_32"], torch.arange(64) % 3 == 0)
    both = sum(m.int() for k, m in masks.items() if k.startswith("length_64_depth"))
    assert torch.equal(both, masks["length_64"].int())


@pytest.mark.parametrize(
    ("name", "keys", "line"),
    [
        ("retrieval", {"n_terms": 5}, "task.n_terms=5: a point has task.d_point=4 coordinates"),
        ("mqar", {"n_pairs": "[17]"}, r"task.n_pairs=17 needs 4·17 places, but task.seq_len=64"),
        ("mqar", {"vocab_size": 20}, "task.vocab_size=20 has too few symbols for task.n_pairs=16"),
        ("compositional_mqar", {"n_pairs": "[5]"}, "square grid; nearest valid: 4 or 9"),
        ("selective_copy", {"n_data": 40}, "task.n_data=40 needs 80 places"),
        ("digits", {"seq_len": 16}, "task.seq_len=16: input should be 17"),
        ("text_files", {"path": "no/such"}, "task.path=no/such: no such file"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(task_of, name, keys, line):
    with pytest.raises(RequestError, match=line) as caught:
        task_of(name, **keys)
    assert "\n" not in str(caught.value)
