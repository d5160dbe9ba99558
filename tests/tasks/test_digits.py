"""Digits: the images scikit-learn ships, and accuracy a class as torchmetrics counts it."""

import pytest
import torch
from sklearn.datasets import load_digits
from torchmetrics.classification import MulticlassAccuracy

from headcount.training.evaluation import evaluate


def test_patches_are_the_images(task_of):
    task = task_of("digits")
    images = {tuple(image.flatten().tolist()) for image in load_digits().images}
    test = task.splits["test"]
    for row in test.inputs[:20]:
        patches = row[:-1, :4].view(4, 4, 2, 2) * 16
        image = patches.permute(0, 2, 1, 3).reshape(64)
        assert tuple(image.tolist()) in images
        assert row[-1].tolist() == [0, 0, 0, 0, 1]


def test_every_image_is_in_one_split(task_of):
    splits = task_of("digits").splits
    assert {name: len(s.inputs) for name, s in splits.items()} == {
        "train": 1439,
        "val": 179,
        "test": 179,
    }
    rows = [tuple(r.flatten().tolist()) for s in splits.values() for r in s.inputs]
    expected = [tuple(i.flatten().tolist()) for i in load_digits().images]
    assert len(set(rows)) == len(set(expected))
    assert len(rows) == len(expected) == 1797


@pytest.mark.parametrize("eval_batch_size", [1, 7, 180])
def test_accuracy_a_class_agrees_with_torchmetrics(task_of, model_of, eval_batch_size):
    task, model = task_of("digits", eval_batch_size=eval_batch_size), model_of("digits")
    scored = evaluate(model, task, "test")
    metric = MulticlassAccuracy(num_classes=10, average=None)
    for batch in task.eval_batches("test"):
        with torch.inference_mode():
            metric.update(model(batch.inputs)[:, -1], batch.targets[:, -1])
    found = [scored.slices[f"class_{k}"].accuracy for k in range(10)]
    assert found == pytest.approx(metric.compute().tolist())
    assert sum(s.count for s in scored.slices.values()) == 179


def test_an_encoder_sees_the_whole_image(model_of):
    model = model_of("digits")
    x = torch.rand(1, 17, 5)
    changed = x.clone()
    changed[0, -1] += 1
    assert not torch.allclose(model(x)[0, 0], model(changed)[0, 0])
