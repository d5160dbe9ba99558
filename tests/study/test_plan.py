"""Which points of a request become runs, and why the others do not."""

import json

import pytest

from headcount.errors import RequestError
from headcount.hydra_app import compose
from headcount.study import grid
from headcount.study.estimate import estimate
from headcount.study.plan import make_plan


def expand(arguments, params=(), grids=()):
    return list(grid.points(arguments, dict(params), grids, loader=None))


def test_a_grid_with_invalid_and_equal_points(small):
    points = [
        (f"model.n_heads={h}", f"model.n_kv_heads={kv}") for h in (2, 3, 8) for kv in (1, 2, 4)
    ]
    plan = make_plan(points, lambda p: small("model.d_model=48", *p))
    labels = [p.config.layout.label for p in plan.points]
    # The dearest first: the fewer KV heads of a width, the fewer parameters and FLOPs.
    assert labels == [
        "mha h2",
        "mqa h2/kv1",
        "gqa h8/kv4",
        "mqa h3/kv1",
        "gqa h8/kv2",
        "mqa h8/kv1",
    ]
    assert [o for o, _ in plan.skipped] == [
        ("model.n_heads=2", "model.n_kv_heads=4"),
        ("model.n_heads=3", "model.n_kv_heads=2"),
        ("model.n_heads=3", "model.n_kv_heads=4"),
    ]
    assert "model.n_kv_heads=2 does not divide model.n_heads=3" in plan.skipped[1][1]


def test_equal_layouts_are_planned_once(small):
    points = [("attention=mha",), ("attention=gqa", "model.kv_group_size=1"), ("attention=mqa",)]
    plan = make_plan(points, small_of(small))
    assert [p.overrides for p in plan.points] == [points[0], points[2]]
    assert plan.duplicates == [(points[1], points[0])]
    assert plan.swept(points[1]) == "attention=gqa model.kv_group_size=1"


def test_nothing_valid_is_a_wrong_request(small):
    with pytest.raises(RequestError, match=r"model\.n_heads=3 does not divide model\.d_model=16"):
        make_plan([("model.n_heads=3",), ("model.n_heads=5",)], small_of(small))


def test_a_wrong_key_is_not_a_skipped_point(small):
    with pytest.raises(RequestError, match=r"did you mean model\.n_heads\?"):
        make_plan([("model.n_heads=2",), ("++model.n_head=2",)], small_of(small))


def test_one_sweep_is_one_study(small):
    with pytest.raises(RequestError, match="one sweep is one study"):
        make_plan([("study=a",), ("study=b",)], small_of(small))


def test_the_plan_is_written(small):
    plan = make_plan([("seed=0",), ("seed=1",)], small_of(small))
    plan.save(estimate([p.config for p in plan.points], []))
    document = json.loads(plan.study.plan_path.read_text())
    assert [p["seed"] for p in document["points"]] == [0, 1]
    assert plan.study.planned() == document["points"]


def test_grids_are_joined_over_the_common_axes():
    found = expand(["c=6"], {"seed": "0,1"}, [{"a": "1,2"}, {"a": "3", "b": "4,5"}])
    assert found == [
        *[(f"seed={s}", f"a={a}", "c=6") for s in (0, 1) for a in (1, 2)],
        *[(f"seed={s}", "a=3", f"b={b}", "c=6") for s in (0, 1) for b in (4, 5)],
    ]


def test_the_command_line_replaces_an_axis():
    found = expand(["seed=7", "a=3,4"], {"seed": "0,1", "a": "1,2"})
    assert found == [("seed=7", "a=3"), ("seed=7", "a=4")]


def test_an_axis_given_twice_is_refused_and_not_lost():
    for twice in (["a=1,2", "a=3"], ["a=3", "a=1,2"], ["a=1,2", "a=3,4"]):
        with pytest.raises(RequestError, match="a: given twice"):
            expand(twice)


def test_of_a_value_given_twice_the_last_holds():
    assert expand(["a=1", "a=2"]) == [("a=2",)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a=range(1,4)", ["a=1", "a=2", "a=3"]),
        ("a=choice(x,y)", ["a=x", "a=y"]),
        ("a=[1,2]", ["a=[1,2]"]),
        ("a=[1,2],[3]", ["a=[1,2]", "a=[3]"]),
        ("+a=-1,-2", ["+a=-1", "+a=-2"]),
        ("a='x,y'", ["a='x,y'"]),
        ("a='k=v'", ["a='k=v'"]),
        ("~a", ["~a"]),
        ("a=null", ["a=null"]),
        ("a=" + "x" * 300, ["a=" + "x" * 300]),
    ],
)
def test_values_survive_the_expansion(given, expected):
    assert [point[0] for point in expand([given])] == expected


@pytest.mark.parametrize("name", ["head_count", "why_heads"])
def test_every_experiment_composes(name):
    assert compose([f"experiment={name}"]).study == name


def small_of(small):
    return lambda point: small(*point)
