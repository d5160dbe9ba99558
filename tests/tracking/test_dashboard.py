"""The dashboard: panels over keys that runs log, saved to a server and read back as intended."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from headcount import cli
from headcount.errors import HeadcountError
from headcount.hydra_app import compose
from headcount.study.run import execute
from headcount.study.store import Study
from headcount.tracking import dashboard
from tests.conftest import SMALL
from tests.tracking.conftest import forget_session, give_cost
from tests.tracking.datastore import Offline, read


@pytest.fixture
def study(copy_of) -> Study:
    def build(results: Path) -> None:
        config = compose([*SMALL, f"paths.results={results}", "study=boards", "logger=wandb"])
        give_cost(config)
        execute(config)

    return copy_of("boards", build)


def sections(workspace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """A workspace's panels by section, as stored."""
    found = workspace["section"]["panelBankConfig"]["sections"]
    return {section["name"]: section["panels"] for section in found}


def grids(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [block["metadata"] for block in report["blocks"] if block["type"] == "panel-grid"]


def panels(documents: dict[str, Any]) -> list[dict[str, Any]]:
    of_workspace = [p for s in sections(documents["workspace"]).values() for p in s]
    of_report = [
        p for g in grids(documents["report"]) for p in g["panelBankSectionConfig"]["panels"]
    ]
    return of_workspace + of_report


def by_title(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    named = ((p["config"].get("chartTitle") or p["viewType"], p["config"]) for p in found)
    return dict(named)


def keys_of(panel: dict[str, Any]) -> set[tuple[str, str]]:
    """Every key that a stored panel looks up, with the section it looks in."""
    config, kind = panel["config"], panel["viewType"]
    where = "history" if kind == "Run History Line Plot" else "summary"
    found = {(where, metric) for metric in config.get("metrics", [])}
    if kind == "Run History Line Plot":
        found.add(("history", config["xAxis"]))
    if kind == "Scatter Plot":
        found |= {tuple(config[axis].split(":", 1)) for axis in ("xAxis", "yAxis")}
    if kind == "Parallel Coordinates Plot":
        found |= {tuple(column["accessor"].split(":", 1)) for column in config["columns"]}
    if kind == "Parameter Importance":
        found.add(("summary", config["targetKey"]))
    if kind == "Weave":
        table = re.search(
            r'"key": \{"nodeType": "const", "type": "string", "val": "([^"]+)"', json.dumps(config)
        )
        found.add(("summary", table[1]))
    if "groupBy" in config:
        found.add(("config", config["groupBy"]))
    return found


def is_logged(run: Offline, section: str, key: str) -> bool:
    if section == "config":
        first, value, *rest = key.split(".")  # W&B stores each top key's value under `value`
        assert value == "value"
        found = run.config[first]
        for part in rest:
            if part not in found:
                return False
            found = found[part]
        return isinstance(found, int | float | str)
    if section == "history":
        return any(key in row for row in run.history)
    return key in run.summary


def test_every_key_of_a_panel_is_one_that_runs_log(study):
    [record] = study.records()
    run = read(study.run_folder(record.run_id))
    used = set.union(*map(keys_of, panels(dashboard.Dashboard("boards", "p", "e").documents())))
    assert len(used) >= 15
    missing = {(section, key) for section, key in used if not is_logged(run, section, key)}
    assert not missing


def test_a_renamed_key_would_be_noticed(study):
    [record] = study.records()
    run = read(study.run_folder(record.run_id))
    run.summary["quality/renamed"] = run.summary.pop("quality/val_loss")
    assert not is_logged(run, "summary", "quality/val_loss")
    assert not is_logged(run, "config", "layout.value.renamed")
    assert not is_logged(run, "history", "val/renamed")


def test_saved_and_read_back(study, server):
    from wandb_workspaces.reports.v2 import Report
    from wandb_workspaces.workspaces import Workspace

    urls = dashboard.save(study, None, None)
    assert all(url.startswith(f"{server.url}/tester/headcount") for url in urls.values())
    stored = {view["type"]: view for view in server.views.values()}
    assert set(stored) == {"project-view", "runs"}
    assert all(v["displayName"] == "Headcount: boards" for v in stored.values())
    documents = {
        "workspace": json.loads(stored["project-view"]["spec"]),
        "report": json.loads(stored["runs"]["spec"]),
    }

    by_section = sections(documents["workspace"])
    assert list(by_section) == [
        "Quality by head count",
        "Quality against cost",
        "Learning curves",
        "What matters, and what differs",
    ]
    for found in by_section.values():
        assert found[0]["viewType"] == "Markdown Panel"  # how to read them
        assert len(found[0]["config"]["value"]) > 80

    titled = by_title(panels(documents))
    heads = titled["Validation loss by query heads"]
    assert heads["xAxis"] == "config:layout.value.n_heads"
    assert heads["yAxis"] == "summary:quality/val_loss"
    front = titled["Front of quality and decode latency"]
    assert front["xAxis"] == "summary:latency/decode_ms_per_token_p50"
    assert front["yAxis"] == "summary:quality/val_loss"
    assert front["showMinYAxisLine"]
    kv_bytes = titled["KV-cache bytes per token by layout"]
    assert kv_bytes["metrics"] == ["kv_cache/bytes_per_token"]
    assert kv_bytes["groupBy"] == "layout.value.label"
    curve = titled["Validation loss"]
    assert (curve["xAxis"], curve["metrics"]) == ("tokens", ["val/loss"])
    assert curve["groupBy"] == "layout.value.label"
    columns = titled["From layout to quality and cost"]["columns"]
    assert columns[0]["accessor"] == "config:layout.value.n_heads"
    assert columns[-1]["accessor"] == "summary:quality/val_loss"
    assert titled["Parameter Importance"]["targetKey"] == "quality/val_loss"
    assert titled["Run Comparer"]["diffOnly"] == "split"

    # One group a layout, over its seeds; only this study's runs, and none that failed.
    run_sets = [documents["workspace"]["section"]["runSets"][0]]
    run_sets += [grid["runSets"][0] for grid in grids(documents["report"])]
    assert len(run_sets) == 5
    for run_set in run_sets:
        filters = run_set["filters"]["filters"]
        conditions = {(f["key"]["name"], f["op"], json.dumps(f["value"])) for f in filters}
        assert conditions == {
            ("group", "=", '"boards"'),
            ("state", "IN", '["finished", "running"]'),
        }
        assert run_set["grouping"] == [{"section": "config", "name": "layout.value.label"}]

    # W&B's own reader takes both.
    workspace = Workspace.from_url(urls["workspace"])
    assert [s.name for s in workspace.sections] == list(by_section)
    report = Report.from_url(urls["report"])
    assert report.title == "Headcount: boards"

    # Saved again, both are replaced, not doubled.
    assert dashboard.save(study, None, None) == urls
    assert len(server.views) == 2


def test_dry_run_writes_json_and_asks_no_server(study, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    argv = ["headcount", "dashboard", str(study.folder), "--dry-run"]
    monkeypatch.setattr(sys, "argv", argv)
    cli.main()
    paths = capsys.readouterr().out.split()
    assert paths == [str(study.report / f"wandb_{kind}.json") for kind in ("workspace", "report")]
    documents = [json.loads(Path(path).read_text()) for path in paths]
    assert len(sections(documents[0])) == 4
    assert len(grids(documents[1])) == 4


def test_a_server_that_does_not_answer_is_told_in_one_line(study, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", "/nonexistent")
    forget_session()
    with pytest.raises(HeadcountError, match="no API key") as told:
        dashboard.save(study, None, None)
    assert "\n" not in str(told.value)
    forget_session()


def test_without_the_extra_it_says_what_to_install(study, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    for name in [m for m in sys.modules if m.startswith("wandb_workspaces.")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "headcount.tracking.panels", raising=False)
    with pytest.raises(HeadcountError, match=r"pip install 'headcount\[dashboard\]'"):
        dashboard.Dashboard("s", "p", "e")
