"""Points put together fast are what Hydra composes, key by key."""

import itertools

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra

from headcount.config import parse
from headcount.errors import RequestError
from headcount.hydra_app import CONF, VERSION_BASE
from headcount.study.compose import Composer, run_part

REQUESTS = [
    (),
    ("model.n_heads=8",),
    ("model.n_heads=8", "seed=3", "optim.lr=1e-3"),
    ("attention=gqa", "model.kv_group_size=2", "model.n_heads=4"),
    ("model.kv_group_size=2", "attention=gqa", "model.n_heads=4"),
    ("task=endpoint_selection", "task.n_vertices=5"),
    ("task.n_vertices=5", "task=endpoint_selection", "model.d_model=32"),
    ("measure.contexts=[16,32]",),
    ("measure.contexts=[16,32]", "measure.batch_sizes=[2]"),
    ("trainer.precision=bf16-mixed", "trainer=gpu"),
    ("trainer=gpu", "trainer.precision=32-true"),
    ("++model.n_heads=2", "model.d_model=32"),
    ("model={n_heads: 2, d_model: 32}",),
    ("model={n_heads: 2}", "model.n_heads=8"),
    ("model.n_heads=8", "model={n_heads: 2}"),
    ("model.d_ff=${model.d_model}", "model.d_model=32"),
    ("model.d_model=32", "model.d_ff=${model.d_model}"),
    ("paths.results='a folder, with=signs'",),
    ("paths.results=" + "x" * 300,),
    ("model.n_kv_heads=null",),
    ("~logger.project",),
    ("logger.project=a-b", "logger=wandb"),
]


@pytest.fixture
def composer():
    with hydra.initialize_config_dir(version_base=VERSION_BASE, config_dir=str(CONF)):
        loader = GlobalHydra.instance().config_loader()

        def build(*overrides):
            from hydra.types import RunMode

            master = loader.load_configuration("config", list(overrides), RunMode.MULTIRUN)
            return Composer(loader, master)

        yield build


def by_hydra(composer, overrides):
    return parse(
        run_part(composer.loader.load_sweep_config(composer.master, overrides), resolve=True)
    )


def test_every_kind_of_override_comes_out_as_hydra_has_it(composer):
    fast = composer("experiment=why_heads")
    for request in REQUESTS:
        request = ("experiment=why_heads", *request)
        assert fast(request) == by_hydra(fast, list(request)), request


def test_a_grid_comes_out_as_hydra_has_it_and_is_composed_once_a_group(composer):
    fast = composer()
    axes = (
        ["attention=mha", "attention=mqa"], ["model.n_heads=2", "model.n_heads=8"],
        ["seed=0", "seed=1"], ["task.seq_len=32", "task.seq_len=64"],
    )  # fmt: skip
    for request in itertools.product(*axes):
        assert fast(request) == by_hydra(fast, list(request))
    assert len(fast._bases) == 2


def test_sections_that_no_axis_touches_are_shared(composer):
    fast = composer()
    assert fast(("model.n_heads=2",)).optim is fast(("model.n_heads=8",)).optim


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (("model.n_head=2",), "Could not override 'model.n_head'"),
        (("model=nope",), "nope"),
        (("model.n_heads.x=2",), "model.n_heads"),
        (("model=3",), "must be a string"),
    ],
)
def test_what_hydra_refuses_is_refused(composer, request_, told):
    with pytest.raises(Exception, match=told):
        composer()(request_)


def test_a_swept_choice_that_sets_the_sweeper_is_refused(composer):
    with pytest.raises(RequestError, match=r"experiment=why_heads: sets hydra\.sweeper"):
        composer()(("experiment=why_heads",))
    chosen = ("experiment=why_heads", "model.n_heads=2")
    assert composer("experiment=why_heads")(chosen).study == "why_heads"


def test_globs_and_ranges_are_what_hydra_makes_of_them(composer):
    from headcount.study import grid

    loader = composer().loader
    found = list(grid.points(["attention=glob(m*)", "seed=range(0,2)"], {}, [], loader))
    assert set(found) >= {("attention=mha", "seed=0"), ("attention=mqa", "seed=1")}
    assert not any("gqa" in point[0] for point in found)
