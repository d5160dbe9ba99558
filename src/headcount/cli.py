"""The command line: one verb a function, each handing over to its room.

Nothing heavy is imported before the verb is known, so `headcount --help` answers at once.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from headcount.errors import HeadcountError

app = typer.Typer(
    name="headcount",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="How many attention heads, and how many key/value heads, should a transformer have?",
    epilog="Examples: `headcount train -m experiment=head_count` · `headcount report head_count` · "
    "`headcount account model.d_model=512 model.n_heads=8`",
)

HYDRA = {"allow_extra_args": True, "ignore_unknown_options": True}

Results = Annotated[Path, typer.Option("--results", help="Where studies lie.")]
StudyName = Annotated[str, typer.Argument(help="A study's name under --results, or its folder.")]


@app.command(context_settings=HYDRA, options_metavar="[-m] [KEY=VALUE]...")
def train(context: typer.Context) -> None:
    """Train and measure: one run, or with `-m` a whole study.

    Running a command again finishes what is missing.

    Examples:

        headcount train task=moby_dick model.n_heads=4 trainer.max_steps=200

        headcount train -m model.n_heads=1,2,4,8 seed=0,1,2 study=mine

        headcount train -m experiment=head_count

        headcount train --cfg job        (shows every key)
    """
    from headcount import hydra_app
    from headcount.tracking import agent

    agent.refuse_multirun(context.args)
    hydra_app.run(hydra_app.train, context.args, "headcount train")


@app.command(context_settings=HYDRA, options_metavar="[-m] [KEY=VALUE]...")
def measure(context: typer.Context) -> None:
    """Measure what layouts cost to serve: latency, memory, KV cache. No training.

    Examples:

        headcount measure model.n_heads=8 measure.contexts=[128,1024]

        headcount measure -m model.n_heads=8 model.n_kv_heads=1,2,8
    """
    from headcount import hydra_app

    waves = ["hydra.sweeper.waves=[cost]"] if {"-m", "--multirun"} & set(context.args) else []
    hydra_app.run(hydra_app.measure, [*context.args, *waves], "headcount measure")


@app.command(context_settings=HYDRA, options_metavar="[--json] [KEY=VALUE]...")
def account(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Count parameters, FLOPs and KV-cache bytes of a configuration. No training, no measuring.

    Examples:

        headcount account model.d_model=512 model.n_heads=8 --json

        headcount account attention=gqa model.kv_group_size=2 account.dtype=bf16

        headcount account model=llama-3-8b account.dtype=bf16 account.seq_len=8192 hardware=H200
    """
    from headcount import hydra_app

    config = hydra_app.compose(context.args)
    figures = config.shape.account(
        config.account.dtype, config.account.seq_len or config.task.seq_len
    )
    figures |= config.matched.figures() if config.matched else {}
    if config.hardware is not None:
        from headcount.measure.hardware import predicted

        seq_len = config.account.seq_len or config.task.seq_len
        figures |= predicted(config.shape, config.account.dtype, seq_len, 1, config.hardware)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    for key, value in figures.items():
        print(f"{key:40} {value:>20,}" if isinstance(value, int) else f"{key:40} {value!s:>20}")


@app.command()
def status(study: StudyName, results: Results = Path("results")) -> None:
    """Show how far a study is: every run that is not complete, and why. Live on a terminal.

    Example:

        headcount status head_count
    """
    from headcount.study.status import show
    from headcount.study.store import Study

    show(Study.find(study, results))


@app.command()
def report(
    studies: Annotated[list[str], typer.Argument(help="Names under --results, or folders.")],
    results: Results = Path("results"),
    reference: Annotated[
        str | None, typer.Option(help="Label of the layout that others are compared with.")
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="Differences below it do not matter, in each metric's unit; default 0.01."
        ),
    ] = None,
) -> None:
    """Analyse the records of one study or several: the table, the page and the pictures.

    Examples:

        headcount report head_count

        headcount report head_count --reference "mha h8" --margin 0.02
    """
    from headcount.analysis.report import build, summary_table
    from headcount.study.store import Study
    from headcount.study.watch import console

    found = [Study.find(study, results) for study in studies]
    page = build(found, reference=reference, margin=margin)
    out = console()
    for study in found:
        out.print(summary_table(study))
    out.print(f"report: {page}", soft_wrap=True)


@app.command()
def recommend(
    study: StudyName,
    results: Results = Path("results"),
    latency_ms: Annotated[
        float | None, typer.Option(help="Most milliseconds a decode step may take (median).")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Most memory while decoding, such as 2GiB.")
    ] = None,
    kv: Annotated[str | None, typer.Option(help="Largest KV cache, such as 512MiB.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of context to serve.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences served at once.")] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Part of the name of a measured device.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Loss that may be given up for a lower cost; default 0.01.")
    ] = None,
    condition: Annotated[
        str | None, typer.Option(help="Of a study with several, such as 'd_model 64'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which layout to use within limits, why, how surely, and what would change it.

    Examples:

        headcount recommend head_count

        headcount recommend head_count --context 1024 --kv 64KiB --json
    """
    from headcount.analysis.recommend import Limits, bytes_of
    from headcount.analysis.recommend import recommend as choose
    from headcount.study.store import Study

    limits = Limits(
        latency_ms=latency_ms,
        memory_bytes=None if memory is None else bytes_of("memory", memory),
        kv_bytes=None if kv is None else bytes_of("kv", kv),
        context=context,
        batch_size=batch_size,
        hardware=hardware,
        tolerance=tolerance,
    )
    choice = choose(Study.find(study, results), limits, condition=condition)
    print(json.dumps(choice.to_json(), indent=1) if as_json else choice.words)


Project = Annotated[str | None, typer.Option(help="W&B project; default: the runs' own.")]
Entity = Annotated[str | None, typer.Option(help="W&B user or team; default: yours.")]


@app.command()
def sync(
    study: StudyName,
    results: Results = Path("results"),
    project: Project = None,
    entity: Entity = None,
) -> None:
    """Upload a study's runs to Weights & Biases, each once; run again, it sends what is missing.

    Examples:

        headcount sync head_count

        headcount sync head_count --project my-heads --entity my-team
    """
    from headcount.study.store import Study
    from headcount.tracking.sync import sync as upload

    outcome = upload(Study.find(study, results), project, entity)
    print(f"study {study}: {outcome}")
    if outcome.failed:
        sys.exit(1)


@app.command()
def dashboard(
    study: StudyName,
    results: Results = Path("results"),
    project: Project = None,
    entity: Entity = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the JSON, save nothing.")
    ] = False,
) -> None:
    """Build a study's workspace and report in Weights & Biases.

    Examples:

        headcount dashboard head_count

        headcount dashboard head_count --dry-run
    """
    from headcount.study.store import Study
    from headcount.tracking import dashboard as room

    found = Study.find(study, results)
    if dry_run:
        for path in room.dry_run(found, project, entity):
            print(path)
        return
    for name, url in room.save(found, project, entity).items():
        print(f"{name}: {url}")


RunName = Annotated[str, typer.Argument(help="A run's folder, or its id in a study.")]


@app.command()
def replay(run: RunName, results: Results = Path("results")) -> None:
    """Run a completed run again from its record alone, and compare every figure, bit for bit.

    Ends with status 0 where all are the same, with 1 where one differs.

    Example:

        headcount replay results/head_count/runs/0a1b2c3d4e5f
    """
    from headcount.study.replay import find_run
    from headcount.study.replay import replay as replay_run

    sys.exit(replay_run(find_run(run, results)))


@app.command()
def inspect(
    run: RunName,
    results: Results = Path("results"),
    sequences: Annotated[
        int, typer.Option(help="Sequences of the validation split to look at.")
    ] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look inside a run's heads: maps, scores, ablation of each head and pair, importance; one page.

    Examples:

        headcount inspect results/head_count/runs/0a1b2c3d4e5f

        headcount inspect results/head_count/runs/0a1b2c3d4e5f --sequences 16 --json
    """
    from headcount.heads.commands import inspect_run
    from headcount.study.replay import find_run

    seen, page = inspect_run(find_run(run, results), sequences)
    if as_json:
        print(seen.model_dump_json(by_alias=True, indent=1))
        return
    from headcount.heads.words import sentences

    for sentence in sentences(seen):
        print(sentence)
    print(f"page: {page}")


@app.command()
def prune(
    run: RunName,
    request: Annotated[
        list[str] | None,
        typer.Argument(metavar="heads=…|keep=…|by=…", help="Which heads go; alpha=0.05 trains on."),
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Cut heads out of a run's model: a smaller run in the same study, its quality and cost measured.

    `heads=0.1,1.3` names them (layer.head). `keep=4` keeps the four most important, `by=greedy` those
    that a greedy search keeps. `by=importance` alone keeps as few as lose less than 0.01 of loss.
    `alpha=0.05` trains the rest on for a twentieth of the run's steps.

    Examples:

        headcount prune results/head_count/runs/0a1b2c3d4e5f heads=0.1,1.3

        headcount prune results/head_count/runs/0a1b2c3d4e5f keep=4 by=greedy alpha=0.05
    """
    from headcount.heads.commands import prune_run
    from headcount.study.replay import find_run

    sys.exit(prune_run(find_run(run, results), request or []))


@app.command()
def uptrain(
    run: RunName,
    request: Annotated[
        list[str] | None,
        typer.Argument(metavar="model.n_kv_heads=N", help="And how=mean|first|random, alpha=0.05."),
    ] = None,
    results: Results = Path("results"),
) -> None:
    """Give a trained model fewer KV heads (MHA to GQA or MQA) and train it on for a share of its steps.

    `how=` says what becomes of the KV heads of a group: their mean, the first, or a new random one.
    `alpha=0` only converts.

    Examples:

        headcount uptrain results/head_count/runs/0a1b2c3d4e5f model.n_kv_heads=2

        headcount uptrain results/head_count/runs/0a1b2c3d4e5f model.n_kv_heads=1 how=first alpha=0
    """
    from headcount.heads.commands import uptrain_run
    from headcount.study.replay import find_run

    sys.exit(uptrain_run(find_run(run, results), request or []))


def main() -> None:
    """Run the command line; wrong requests end with status 2, an interrupt with 130."""
    try:
        app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        print("headcount: interrupted", file=sys.stderr)
        sys.exit(130)
    except HeadcountError as error:
        from headcount.hydra_app import tell

        sys.exit(tell(error))
    except Exception as error:
        # Wrong usage, as Typer tells it: by a click of its own, whose errors have no public name.
        if usage := getattr(error, "format_message", None):
            line = " ".join(usage().split())
            print(f"headcount: error: {line} (see headcount --help)", file=sys.stderr)
            sys.exit(2)
        if isinstance(error, OSError) and error.filename is not None:
            print(f"headcount: error: {error.filename}: {error.strerror}", file=sys.stderr)
            sys.exit(2)
        if type(error).__module__.split(".")[0] not in ("hydra", "omegaconf"):
            raise
        from headcount.hydra_app import tell

        sys.exit(tell(error))


if __name__ == "__main__":
    main()
