"""Records on disk: whole or absent, strict, and claimed by one process at a time."""

import json
import os

import pytest

from headcount.errors import HeadcountError, RequestError
from headcount.study.records import Record
from headcount.study.run import new_record
from headcount.study.store import Study, read_record, write_atomically


def test_a_record_survives_its_file(small):
    config = small()
    study = Study.of(config)
    record = new_record(config, study, None)
    study.write_record(record)
    assert list(study.records()) == [record]
    assert study.record(record.run_id) == record
    raw = json.loads((study.run_folder(record.run_id) / "record.json").read_text())
    assert list(raw) == [
        "schema", "run_id", "study", "status", "config", "layout", "quality", "training", "cost",
        "environment", "code", "error",
    ]  # fmt: skip


def test_a_damaged_record_is_named(tmp_path):
    path = tmp_path / "record.json"
    path.write_text('{"schema": 1, "run_id": 3}')
    with pytest.raises(HeadcountError, match=r"record\.json: not a record \(run_id: "):
        read_record(path)


def test_unknown_fields_are_refused(small):
    config = small()
    dumped = new_record(config, Study.of(config), None).model_dump(by_alias=True)
    with pytest.raises(ValueError, match="extra"):
        Record.model_validate({**dumped, "surprise": 1})


def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    write_atomically(path, "old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_find_names_what_is_there(tmp_path):
    (tmp_path / "mine" / "runs").mkdir(parents=True)
    assert Study.find("mine", tmp_path).name == "mine"
    assert Study.find(str(tmp_path / "mine"), tmp_path).folder == tmp_path / "mine"
    with pytest.raises(RequestError, match=r"study other: no such study .* valid: mine"):
        Study.find("other", tmp_path)
