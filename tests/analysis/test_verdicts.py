"""Verdicts on studies whose truth is plain."""

from collections.abc import Callable

import numpy as np
import pytest

from headcount.analysis import evidence, verdicts
from headcount.errors import RequestError
from headcount.study.store import Study

from .conftest import layout_of, make_record

Make = Callable[..., Study]


def study_of(make_study: Make, values: dict[int, list[float]], **more: object) -> Study:
    """MHA layouts by n_heads, each with its values by seed."""
    return make_study(
        [
            make_record(layout_of(h), s, v, **more)
            for h, column in values.items()
            for s, v in enumerate(column)
        ]
    )


def verdict_of(study: Study, label: str, **options: object) -> verdicts.Comparison:
    judgement = verdicts.judge(evidence.load(study), **options)  # type: ignore[arg-type]
    return next(c for c in judgement.comparisons if c.arm.label == label)


SEEDS = [0.0, 0.02, -0.015, 0.005]
WIGGLE = [0.001, -0.001, 0.0005, -0.0005]


def test_plain_verdicts(make_study: Make) -> None:
    study = study_of(
        make_study,
        {
            2: [1.90 + s + w for s, w in zip(SEEDS, WIGGLE, strict=True)],
            4: [1.95 + s - w for s, w in zip(SEEDS, WIGGLE, strict=True)],
            8: [2.05 + s + 0.5 * w for s, w in zip(SEEDS, WIGGLE, strict=True)],
            16: [1.951 + s + 0.2 * w for s, w in zip(SEEDS, WIGGLE, strict=True)],
        },
    )
    options = {"reference": "mha h4"}
    assert verdict_of(study, "mha h2", **options).verdict == "better"
    assert verdict_of(study, "mha h8", **options).verdict == "worse"
    assert verdict_of(study, "mha h16", **options).verdict == "equivalent"
    assert verdict_of(study, "mha h4", **options).verdict == "reference"


def test_pairing_takes_the_seed_out(make_study: Make) -> None:
    rng = np.random.default_rng(0)
    effect = rng.normal(0, 0.5, 5)
    study = study_of(
        make_study,
        {
            2: list(2.0 + effect + rng.normal(0, 0.002, 5)),
            4: list(2.02 + effect + rng.normal(0, 0.002, 5)),
        },
    )
    assert verdict_of(study, "mha h2", reference="mha h4").verdict == "better"


def test_undecided_says_how_many_seeds_would(make_study: Make) -> None:
    rng = np.random.default_rng(2)
    study = study_of(
        make_study, {2: list(rng.normal(2.0, 0.02, 3)), 4: list(rng.normal(2.0, 0.02, 3))}
    )
    found = verdict_of(study, "mha h2", reference="mha h4")
    assert found.verdict == "undecided"
    assert found.more_seeds is not None
    assert f"{found.more_seeds} more seeds would" in found.words


def test_one_seed_is_never_decided(make_study: Make) -> None:
    study = study_of(make_study, {2: [1.0], 4: [2.0]})
    judgement = verdicts.judge(evidence.load(study))
    assert {c.verdict for c in judgement.comparisons} == {"reference", "undecided"}
    assert "at least 2 more seeds" in " ".join(verdicts.sentences(judgement))


def test_accuracy_turns_better_around(make_study: Make) -> None:
    records = [
        make_record(layout_of(h), s, 0.1, accuracy=value)
        for h, values in ((1, [0.50, 0.52, 0.51]), (2, [1.0, 1.0, 1.0]), (4, [1.0, 1.0, 1.0]))
        for s, value in enumerate(values)
    ]
    study = make_study(records)
    assert verdict_of(study, "single h1", reference="mha h2").verdict == "worse"
    # The same on every seed: nothing is left to vary.
    assert verdict_of(study, "mha h4", reference="mha h2").verdict == "equivalent"
    text = " ".join(verdicts.sentences(verdicts.judge(evidence.load(study))))
    assert "Highest mean test accuracy" in text


def test_a_far_noisier_layout_is_judged_by_its_own_pairs_alone(make_study: Make) -> None:
    rng = np.random.default_rng(5)
    values = {h: list(2.0 + rng.normal(0, 0.001, 6)) for h in (1, 2, 4, 8)}
    values[16] = list(2.0 + rng.normal(0, 0.2, 6))
    study = study_of(make_study, values)
    found = verdict_of(study, "mha h16", reference="mha h4")
    own = np.array(values[16]) - np.array(values[4])
    # The plain paired t interval: t(0.975, 5) = 2.5706.
    assert found.difference.half_width == pytest.approx(2.5706 * own.std(ddof=1) / 6**0.5, rel=1e-4)
    # The others are pooled without it: 3 layouts beside the reference, 15 degrees of freedom.
    judgement = verdicts.judge(evidence.load(study), reference="mha h4")
    assert judgement.df == 15
    assert judgement.spread.pooled**0.5 < 0.002
    # As reference it makes every comparison one of pairs.
    noisy = verdict_of(study, "mha h4", reference="mha h16")
    assert noisy.difference.half_width == pytest.approx(found.difference.half_width)


def test_pairs_are_the_seeds_that_both_have(make_study: Make) -> None:
    records = [make_record(layout_of(4), s, 2.0 + s) for s in range(4)]
    records += [make_record(layout_of(2), s, 1.5 + s) for s in (1, 3, 7)]
    found = verdict_of(make_study(records), "mha h2", reference="mha h4")
    assert found.n_pairs == 2
    assert found.difference.estimate == pytest.approx(-0.5)


def test_diverged_layout_has_no_data(make_study: Make) -> None:
    records = [make_record(layout_of(h), s, 2.0) for h in (2, 4) for s in range(2)]
    records += [make_record(layout_of(8), s, None, status="diverged") for s in range(2)]
    assert verdict_of(make_study(records), "mha h8").verdict == "no data"


def test_default_reference_is_the_middle_mha_that_others_vary(novel: Study) -> None:
    reference = verdicts.judge(evidence.load(novel)).reference
    assert reference is not None
    assert reference.label == "mha h4"


def test_wrong_requests_name_what_would_be_valid(novel: Study) -> None:
    found = evidence.load(novel)
    with pytest.raises(RequestError, match=r"reference=mha h3.*valid: single h1, mha h2"):
        verdicts.judge(found, reference="mha h3")
    with pytest.raises(RequestError, match="margin=0"):
        verdicts.judge(found, margin=0)


def test_margin_decides_equivalence(novel: Study) -> None:
    found = evidence.load(novel)
    wide = verdicts.judge(found, margin=0.5)
    assert {c.verdict for c in wide.comparisons} == {"reference", "equivalent"}
    assert wide.margin_stated
