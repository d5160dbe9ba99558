"""`headcount dashboard`: a study's workspace and report in W&B, as code.

Saving again replaces what was saved before: their ids are kept in the study's folder.
"""

import json
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError, RequestError
from headcount.study.store import Study, write_atomically
from headcount.tracking import connection

SHOWN_STATES = ["finished", "running"]
"""Runs in these states are drawn: not the failed, the diverged and those that were stopped."""


class Dashboard:
    """The workspace and the report of a study, not yet saved anywhere."""

    def __init__(self, study: str, project: str, entity: str) -> None:
        """Build both. Raises RequestError where wandb-workspaces is not installed."""
        try:
            import wandb_workspaces.expr as ex
            import wandb_workspaces.reports.v2 as wr
            import wandb_workspaces.workspaces as ws

            from headcount.tracking.panels import LAYOUT, parts
        except ModuleNotFoundError as error:
            raise RequestError(
                f"dashboard: {error.name} is not installed; pip install 'headcount[dashboard]'"
            ) from None
        filters = [ex.Metric("Group") == study, ex.Metric("State").isin(SHOWN_STATES)]
        self.workspace = ws.Workspace(
            entity=entity,
            project=project,
            name=f"Headcount: {study}",
            sections=[
                ws.Section(
                    part.title,
                    panels=[wr.MarkdownPanel(part.text, layout=wr.Layout(w=24, h=3)), *part.panels],
                    is_open=True,
                )
                for part in parts()
            ],
            runset_settings=ws.RunsetSettings(filters=filters, groupby=[ex.Config(LAYOUT)]),
        )
        self.report = wr.Report(
            entity=entity,
            project=project,
            title=f"Headcount: {study}",
            description="How many attention heads, and how many key/value heads?",
            width="fluid",
            blocks=[
                wr.TableOfContents(),
                wr.P(
                    f"Runs of the study {study}, grouped by head layout; all seeds of a layout are "
                    "one group. For intervals and verdicts see the page that `headcount report` "
                    "makes from the same records."
                ),
                *(
                    block
                    for part in parts()
                    for block in (
                        wr.H2(part.title),
                        wr.P(part.text),
                        wr.PanelGrid(
                            # Without a project of its own, a run set shows the report's project.
                            runsets=[
                                wr.Runset(name=study, filters=filters, groupby=[f"config.{LAYOUT}"])
                            ],
                            panels=part.panels,
                        ),
                    )
                ),
            ],
        )

    def documents(self) -> dict[str, Any]:
        """Both as W&B stores them, without asking a server anything."""
        return {
            name: json.loads(
                built._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
            )
            for name, built in (("workspace", self.workspace), ("report", self.report))
        }

    def save(self, note: Path) -> dict[str, str]:
        """Save both to the server, over what `note` remembers of an earlier time; their addresses."""
        known = json.loads(note.read_text()) if note.exists() else {}
        where = [connection.server(), self.workspace.entity, self.workspace.project]
        if known.get("where") == where:
            self.workspace._internal_name = known["workspace_name"]
            self.workspace._internal_id = known["workspace_id"]
            self.report.id = known["report_id"]
        self.workspace.save()
        self.report.save()
        urls = {"workspace": self.workspace.url, "report": self.report.url}
        document = {
            "where": where,
            "workspace_name": self.workspace._internal_name,
            "workspace_id": self.workspace._internal_id,
            "report_id": self.report.id,
            **urls,
        }
        write_atomically(note, json.dumps(document, indent=1))
        return urls


def dry_run(study: Study, project: str | None, entity: str | None) -> list[Path]:
    """Write the JSON of both into the study's report folder."""
    dashboard = Dashboard(study.name, project or _project(study), entity or "")
    paths = []
    for name, document in dashboard.documents().items():
        paths.append(study.report / f"wandb_{name}.json")
        write_atomically(paths[-1], json.dumps(document, indent=1))
    return paths


def save(study: Study, project: str | None, entity: str | None) -> dict[str, str]:
    """Save both to W&B; HeadcountError, in one line, where the server does not take them."""
    import wandb

    project = project or _project(study)
    server = connection.server()
    try:
        connection.require_key()
        entity = entity or _entity(study) or wandb.Api().default_entity
        dashboard = Dashboard(study.name, project, str(entity))
        return dashboard.save(study.folder / "dashboard.json")
    except RequestError:
        raise
    except Exception as error:
        reason = connection.first_line(error)
        raise HeadcountError(f"W&B: {server} did not take the dashboard ({reason})") from error


def _project(study: Study) -> str:
    return str(_logger(study)["project"])


def _entity(study: Study) -> str | None:
    return _logger(study).get("entity")


def _logger(study: Study) -> dict[str, Any]:
    """The logger's settings of the study's runs."""
    for record in study.records({}):
        logger: dict[str, Any] = record.config["logger"]
        return logger
    raise RequestError(f"study {study.folder}: no runs in it yet")
