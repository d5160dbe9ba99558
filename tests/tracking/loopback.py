"""A W&B server for tests, on 127.0.0.1: what the real client and the real agent need of one.

It keeps what it is told (runs with their history by line offset, sweeps, views, files) and, like the
real one, writes a history line where the client says it belongs: a line sent twice stands once, and a
client that counts wrong overwrites or leaves a gap, which tests then see.
"""

import base64
import gzip
import itertools
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import yaml

KEY = "0123456789" * 4
ENTITY = "tester"


@dataclass
class Run:
    """A run as the server has it."""

    name: str
    project: str
    upserts: int = 0
    display_name: str | None = None
    group: str | None = None
    job_type: str | None = None
    tags: list[str] = field(default_factory=list)
    sweep: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    """For each streamed file its lines by offset."""
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None

    @property
    def state(self) -> str:
        if self.exit_code is None:
            return "running"
        return "finished" if self.exit_code == 0 else "failed"

    @property
    def history(self) -> list[dict[str, Any]]:
        """The history in order; fails where a line is missing."""
        lines = self.lines.get("wandb-history.jsonl", {})
        assert sorted(lines) == list(range(len(lines))), "a gap in the history"
        return [json.loads(lines[i]) for i in range(len(lines))]

    def series(self, key: str) -> dict[int, float]:
        """A metric's values by step."""
        return {row["_step"]: row[key] for row in self.history if key in row}

    def config_value(self, key: str) -> Any:
        return self.config[key]["value"]

    def streamed(self, body: dict[str, Any]) -> None:
        for name, chunk in (body.get("files") or {}).items():
            kept = self.lines.setdefault(name, {})
            for i, line in enumerate(chunk["content"]):
                kept[chunk["offset"] + i] = line
            if name == "wandb-summary.json":
                self.summary = json.loads(chunk["content"][-1])
        if body.get("complete"):
            self.exit_code = body["exitcode"]


@dataclass
class Sweep:
    """A sweep, and what its agents are still to be told."""

    name: str
    project: str
    config: dict[str, Any]
    waiting: list[dict[str, Any]] = field(default_factory=list)
    handed_out: int = 0


class Loopback:
    """The server. `stop_run(run)` may say that an agent's run is to be stopped early."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.sweeps: dict[str, Sweep] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.artifacts: list[str] = []
        self.operations: list[str] = []
        self.unknown: list[str] = []
        self.stop_run: Callable[[Run], bool] = lambda run: False
        self.on_stream: Callable[[Run], None] = lambda run: None
        self._lock = threading.RLock()
        self._http = _Quiet(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def environment(self, key: str = KEY) -> dict[str, str]:
        """What a process needs to find the server."""
        return {
            "WANDB_BASE_URL": self.url,
            "WANDB_API_KEY": key,
            "WANDB_ENTITY": ENTITY,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_MODE": "online",
        }

    def close(self) -> None:
        """Die: open connections break, new ones are refused."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    # -- GraphQL ---------------------------------------------------------------------------------

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        name = found[1] if found else "?"
        with self._lock:
            self.operations.append(name)
            method = getattr(self, f"_on_{name.lower()}", None)
            if method is None:
                self.unknown.append(f"{name}: {query}")
                return {"errors": [{"message": f"the loopback server does not know {name}"}]}
            try:
                return {"data": method(variables)}
            except Exception as error:
                self.unknown.append(f"{name}: {error!r}: {json.dumps(variables)}")
                return {"errors": [{"message": repr(error)}]}

    def _on_viewer(self, v: dict[str, Any]) -> dict[str, Any]:
        teams = {"edges": []}
        viewer = {"id": "1", "entity": ENTITY, "username": ENTITY, "flags": "{}", "teams": teams}
        return {"viewer": viewer}

    def _on_organizationcoreweaveorganizationid(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"entity": {"organization": None}}

    def _on_serverfeaturesquery(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _on_runresumestatus(self, v: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.get(v["name"])
        bucket = None
        if run is not None:
            history = run.lines.get("wandb-history.jsonl", {})
            events = run.lines.get("wandb-events.jsonl", {})
            bucket = {
                "id": run.name,
                "name": run.name,
                "summaryMetrics": json.dumps(run.summary),
                "displayName": run.display_name,
                "logLineCount": 0,
                "historyLineCount": len(history),
                "eventsLineCount": len(events),
                "historyTail": json.dumps([history[i] for i in sorted(history)[-1:]]),
                "eventsTail": json.dumps([events[i] for i in sorted(events)[-1:]]),
                "config": json.dumps(run.config),
                "tags": run.tags,
                "notes": "",
                # The client takes a run up only if this says which client started it.
                "wandbConfig": json.dumps({"t": run.config["_wandb"]["value"]["t"]}),
            }
        return {"model": {"id": "p", "name": v["project"], "entity": _entity(), "bucket": bucket}}

    def _on_upsertbucket(self, v: dict[str, Any]) -> dict[str, Any]:
        known = v["name"] in self.runs
        run = self.runs.setdefault(v["name"], Run(v["name"], v.get("project") or "uncategorized"))
        run.upserts += 1
        run.display_name = v.get("displayName") or run.display_name
        run.group = v.get("groupName") or run.group
        run.job_type = v.get("jobType") or run.job_type
        run.tags = v.get("tags") or run.tags
        run.sweep = v.get("sweep") or run.sweep
        if v.get("config"):
            run.config = json.loads(v["config"])
        if not known or v.get("state") == "running":
            run.exit_code = None
        bucket = {
            "id": run.name,
            "name": run.name,
            "displayName": run.display_name,
            "config": json.dumps(run.config),
            "sweepName": run.sweep,
            "project": {"id": "p", "name": run.project, "entity": _entity()},
            "historyLineCount": len(run.lines.get("wandb-history.jsonl", {})),
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": not known}}

    def _on_createrunfiles(self, v: dict[str, Any]) -> dict[str, Any]:
        files = [
            {"name": name, "uploadUrl": f"{self.url}/upload/{v['run']}/{name}"}
            for name in v["files"]
        ]
        return {"createRunFiles": {"runID": v["run"], "uploadHeaders": [], "files": files}}

    def _on_upsertsweep(self, v: dict[str, Any]) -> dict[str, Any]:
        name = f"sweep{len(self.sweeps)}"
        config = yaml.safe_load(v["config"])
        sweep = Sweep(name, v.get("projectName") or config.get("project"), config)
        self.sweeps[name] = sweep
        if config["method"] == "grid":
            axes = config["parameters"]
            values = [a["values"] if "values" in a else [a["value"]] for a in axes.values()]
            for point in itertools.product(*values):
                self.suggest(name, dict(zip(axes, point, strict=True)))
        project = {"name": sweep.project, "entity": _entity()}
        return {
            "upsertSweep": {
                "sweep": {"name": name, "project": project},
                "configValidationWarnings": [],
            }
        }

    def suggest(self, sweep: str, parameters: dict[str, Any]) -> None:
        """Have the next agent run this point."""
        kept = self.sweeps[sweep]
        kept.waiting.append({key: {"value": value} for key, value in parameters.items()})

    def _on_sweepwithruns(self, v: dict[str, Any]) -> dict[str, Any]:
        sweep = self.sweeps.get(v.get("sweep") or v.get("name"))
        if sweep is None:
            return {"project": {"sweep": None}}
        found = {
            "id": sweep.name,
            "name": sweep.name,
            "state": "RUNNING",
            "config": yaml.safe_dump(sweep.config),
            "runs": {"edges": []},
        }
        return {"project": {"sweep": found}}

    def _on_createagent(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"createAgent": {"agent": {"id": v["sweep"]}}}

    def _on_heartbeat(self, v: dict[str, Any]) -> dict[str, Any]:
        sweep = self.sweeps[v["id"]]
        working = json.loads(v["runState"] or "{}")
        commands: list[dict[str, Any]] = [
            {"type": "stop", "run_id": name}
            for name in working
            if name in self.runs and self.stop_run(self.runs[name])
        ]
        if not working and sweep.waiting:
            commands.append(
                {
                    "type": "run",
                    "run_id": f"{sweep.name}-run{sweep.handed_out}",
                    "program": sweep.config["program"],
                    "args": sweep.waiting.pop(0),
                }
            )
            sweep.handed_out += 1
        elif not working:
            commands.append({"type": "exit"})
        return {"agentHeartbeat": {"agent": {"id": v["id"]}, "commands": json.dumps(commands)}}

    # -- artifacts: the client wraps each table into one --------------------------------------------

    def _on_artifacttype(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"artifact": None}}

    def _on_createartifact(self, v: dict[str, Any]) -> dict[str, Any]:
        artifact = {
            "id": v["input"]["artifactCollectionName"],
            "digest": v["input"]["digest"],
            "state": "PENDING",
            "aliases": [],
            "artifactSequence": {"id": "s", "latestArtifact": None},
        }
        self.artifacts.append(artifact["id"])
        return {"createArtifact": {"artifact": artifact}}

    def _on_createartifactmanifest(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"createArtifactManifest": {"artifactManifest": self._manifest(v)}}

    def _on_updateartifactmanifest(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"updateArtifactManifest": {"artifactManifest": self._manifest(v)}}

    def _manifest(self, v: dict[str, Any]) -> dict[str, Any]:
        file = {"id": "f", "uploadUrl": f"{self.url}/artifact/manifest", "uploadHeaders": []}
        return {"id": "m", "file": file}

    def _on_createartifactfiles(self, v: dict[str, Any]) -> dict[str, Any]:
        nodes = [
            {
                "name": spec["name"],
                "storagePath": spec["name"],
                "uploadUrl": f"{self.url}/artifact/{spec['name']}",
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": spec["artifactID"]},
            }
            for spec in v["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}

    def _on_commitartifact(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"commitArtifact": {"artifact": {"id": v["artifactID"], "digest": ""}}}

    # -- workspaces and reports --------------------------------------------------------------------

    def _on_getdefaultentity(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"viewer": {"id": "1", "entity": ENTITY}}

    def _on_getprojects(self, v: dict[str, Any]) -> dict[str, Any]:
        nodes = [
            {
                "__typename": "Project",
                "id": "p",
                "name": name,
                "entityName": ENTITY,
                "createdAt": "2026-01-01T00:00:00Z",
                "isBenchmark": False,
                "user": None,
            }
            for name in sorted({run.project for run in self.runs.values()})
        ]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": [{"node": node} for node in nodes]}}

    def _on_createproject(self, v: dict[str, Any]) -> dict[str, Any]:
        project = {"id": "p", "name": v["input"]["name"], "entityName": ENTITY}
        project |= {"description": None, "access": None, "views": None}
        return {"result": {"project": project, "model": project, "inserted": True}}

    def _on_upsertview(self, v: dict[str, Any]) -> dict[str, Any]:
        """Reports, and by its other name workspaces."""
        known = v.get("id")
        view = {
            "id": known or base64.b64encode(f"View:{len(self.views):04}".encode()).decode(),
            "name": v["name"],
            "type": v["type"],
            "displayName": v["displayName"],
            "description": v["description"],
            "project": {"id": "p", "name": v["projectName"], "entityName": v["entityName"]},
            "createdAt": "2026-01-01T00:00:00Z",
            "updatedAt": "2026-01-01T00:00:00Z",
            "spec": v["spec"],
        }
        self.views[view["id"]] = view
        return {"upsertView": {"view": view, "inserted": known is None}}

    _on_upsertview2 = _on_upsertview

    def _on_view(self, v: dict[str, Any]) -> dict[str, Any]:
        edges = [
            {"node": {key: view[key] for key in ("id", "displayName", "spec")}}
            for view in self.views.values()
            if view["name"] == v["viewName"] and view["type"] == v["viewType"]
        ]
        return {"project": {"allViews": {"edges": edges}}}

    def _on_specificreport(self, v: dict[str, Any]) -> dict[str, Any]:
        return {"view": self.views[v["reportId"]]}

    # -- REST ------------------------------------------------------------------------------------

    def stream(self, run: str, body: dict[str, Any]) -> None:
        with self._lock:
            self.runs[run].streamed(body)
        self.on_stream(self.runs[run])

    def upload(self, kind: str, run: str, name: str, body: bytes) -> None:
        if kind == "upload":
            with self._lock:
                self.runs[run].files[name] = body


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, address: Any) -> None:
        """Clients come and go; a connection that breaks is theirs to mind."""


def _entity() -> dict[str, str]:
    return {"id": "e", "name": ENTITY}


def _handler(server: Loopback) -> type[BaseHTTPRequestHandler]:
    expected = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("Authorization") != expected:
                return self._send(401, {"errors": [{"message": "user is not logged in"}]})
            if self.path == "/graphql":
                asked = json.loads(body)
                return self._send(200, server.answer(asked["query"], asked.get("variables") or {}))
            stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
            if stream:
                server.stream(unquote(stream[1]), json.loads(body))
                return self._send(200, {})
            server.unknown.append(f"POST {self.path}")
            return self._send(404, {})

        def do_PUT(self) -> None:
            body = self._body()
            _, kind, run, *name = self.path.split("/", 3)
            server.upload(kind, unquote(run), unquote("".join(name)), body)
            self._send(200, {})

        def do_GET(self) -> None:
            server.unknown.append(f"GET {self.path}")
            self._send(404, {})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

        def _send(self, status: int, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler
