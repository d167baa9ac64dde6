"""``afl-run --sync`` against a server that answers as W&B's does, as far as W&B's own client asks it."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import threading
from collections import defaultdict
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import PIL.Image
import pytest
import wandb
from filelock import FileLock
from reports.runs_by_hand import config_of, write_run

from asyncfl_bench.errors import BenchError
from asyncfl_bench.tracking import trackers_sync
from asyncfl_bench.tracking.archive import pack_archive
from asyncfl_bench.tracking.records import Record
from asyncfl_bench.tracking.trackers import RunFacts, Tracker
from asyncfl_bench.tracking.trackers_sync import _has_whole_run, _stage_archive, send_offline_runs
from asyncfl_bench.tracking.trackers_wandb import WandbTracker, WandbTrackerConfig


class Server(ThreadingHTTPServer):
    """history: name of a run -> its lines, each at the place the client gave it."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.history: dict[str, dict[int, dict]] = defaultdict(dict)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        answer: dict = {}
        if self.path == "/graphql":
            answer = {"data": self.asked(json.loads(body))}
        elif self.path.endswith("/file_stream"):
            name = self.path.split("/")[-2]
            history = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            for place, line in enumerate(history["content"], start=history["offset"]):
                self.server.history[name][place] = json.loads(line)
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST

    def asked(self, question: dict) -> dict:
        name = (question.get("variables") or {}).get("name", "")
        entity = {"id": "E", "name": "me"}
        project = {"id": "P", "name": "asyncfl_bench", "entity": entity}
        bucket: dict = {"id": name, "name": name, "displayName": name, "config": "{}", "tags": [], "project": project}
        lines = self.server.history.get(name)
        if lines:
            tail = json.dumps([json.dumps(lines[max(lines)])])
            bucket |= {"historyLineCount": len(lines), "historyTail": tail, "eventsLineCount": 0, "logLineCount": 0}
            bucket |= {"eventsTail": "[]", "summaryMetrics": "{}", "wandbConfig": '{"t": 1}'}
        return {
            "viewer": {"id": "V", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}},
            "serverInfo": {"cliVersionInfo": None, "latestLocalVersionInfo": None, "features": []},
            "upsertBucket": {"bucket": bucket, "inserted": True},
            "model": {"id": "P", "name": "asyncfl_bench", "entity": entity, "bucket": bucket if lines else None},
            "createRunFiles": {"runID": name, "uploadHeaders": [], "files": []},
        }


@pytest.fixture(autouse=True)
def no_wandb_left():
    yield
    wandb.teardown()


@pytest.fixture
def server(monkeypatch):
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    yield server
    server.shutdown()
    server.server_close()


def piece(directory, identity, iterations):
    """What a process leaves that works at a run for a while."""
    directory.mkdir(parents=True, exist_ok=True)
    tracker = WandbTracker(WandbTrackerConfig(mode="offline"))
    tracker.start(RunFacts({"choices": {}}, f"run-{identity}", identity, "experiment", directory))
    for i in iterations:
        counters = dict.fromkeys(("uploads", "client_steps", "virtual_time", "wall_time"), i)
        tracker.log({"iteration": i, **counters, "test/accuracy": i / 10})
    tracker.finish({}, 0)


@pytest.mark.process
def test_pieces_of_a_run_are_sent_as_one_run_and_once_and_a_run_under_way_is_left(tmp_path, server, afl_run):
    piece(tmp_path / "runs/a", "aaaa0000", [0, 1, 2])
    piece(tmp_path / "runs/sweep/b", "bbbb0000", [0, 1])
    piece(tmp_path / "runs/a", "aaaa0000", [3, 4])
    with FileLock(tmp_path / "runs/sweep/b/.lock"):
        first = afl_run("--sync")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        "1 run to send, 0 runs sent before, 1 run still running",
        f"sent aaaa0000 (2 pieces) from {tmp_path}/runs/a",
    ]
    assert set(server.history) == {"aaaa0000"}
    lines = [server.history["aaaa0000"][place] for place in range(5)]
    assert [line["iteration"] for line in lines] == [line["_step"] for line in lines] == [0, 1, 2, 3, 4]

    piece(tmp_path / "runs/a", "aaaa0000", [5])  # a larger budget, after the first part was sent
    second = afl_run("--sync", "runs")
    assert second.stdout.splitlines()[0] == "2 runs to send, 1 run sent before"
    assert [server.history["aaaa0000"][place]["iteration"] for place in range(6)] == [0, 1, 2, 3, 4, 5]
    assert len(server.history["bbbb0000"]) == 2
    assert afl_run("--sync").stdout == "0 runs to send, 2 runs sent before\n"


@pytest.mark.process
def test_what_cannot_be_sent_is_said_and_stays_to_be_sent(tmp_path, monkeypatch, afl_run):
    piece(tmp_path / "runs/a", "aaaa0000", [0])
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    answer = afl_run("--sync")
    assert answer.returncode == 1 and "1 run not sent (" in answer.stderr and "API key" in answer.stderr
    assert afl_run("--sync").stdout.startswith("1 run to send, 0 runs sent before")


@pytest.mark.process
def test_archived_runs_of_a_page_are_sent_once_with_its_figure(tmp_path, server, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    page = tmp_path / "results/ace/figure2/published-small"
    chosen = {"sweep": "ace/figure2", "profile": "published", "scale": "small", "length": "standard"}
    for seed, scale in ((0, "small"), (1, "full")):
        write_run(tmp_path / "runs", seed=seed, choices=config_of()["choices"] | chosen | {"scale": scale})
    pack_archive([tmp_path / "runs"], tmp_path / "results/ace/archive")
    page.mkdir(parents=True)
    (page / "README.md").write_text("# Figure 2")
    PIL.Image.new("RGB", (8, 8)).save(page / "curves.png")
    assert send_offline_runs([str(page)]) == 0
    assert capsys.readouterr().out.startswith("2 runs to send, 0 runs sent before\nsent ")
    figure, identity = sorted(server.history, reverse=True)
    assert figure.startswith("page-")
    assert server.history[figure][0]["curves"]["_type"] == "image-file"
    lines = [server.history[identity][place] for place in range(2)]
    assert [(line["iteration"], line["test/accuracy"]) for line in lines] == [(0, 0.1), (10, 0.5)]
    assert send_offline_runs([str(page)]) == 0
    assert capsys.readouterr().out == "0 runs to send, 2 runs sent before\n"


@pytest.mark.process
def test_a_run_is_streamed_where_wandb_is_set_up_and_nowhere_else(tmp_path, server, monkeypatch, afl_run):
    words = ("scale=smoke", "model=softmax", "budget.server_iterations=2", "evaluation.every=1")
    assert "numbers go to W&B project asyncfl_bench (tracking=local keeps them local)" in afl_run(*words).stderr
    ((_, lines),) = server.history.items()
    assert [lines[place]["iteration"] for place in sorted(lines)] == [0, 1, 2]
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "numbers stay local (WANDB_MODE=online sends them to W&B)" in afl_run(*words, "seed=1").stderr
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY")
    assert "numbers stay local (wandb login sends them to W&B)" in afl_run(*words, "seed=2").stderr
    assert len(server.history) == 1 and len(list((tmp_path / "runs").glob("*/wandb"))) == 1


def test_a_run_under_way_is_left_also_where_wandb_writes_into_another_folder(tmp_path, capsys):
    file = tmp_path / "own/wandb/offline-run-1/run-aaaa0000.wandb"
    file.parent.mkdir(parents=True)
    file.touch()
    file.with_name("run_directory.txt").write_text(str(tmp_path / "run"))
    with FileLock(tmp_path / "run/.lock"):
        assert send_offline_runs([str(tmp_path / "own")]) == 0
    assert capsys.readouterr().out == "0 runs to send, 0 runs sent before, 1 run still running\n"


def test_archived_runs_are_staged_whole_and_again_after_a_rerun(tmp_path, monkeypatch):
    class Staged(Tracker):
        end: type[BaseException] | None = None
        gave_up = False

        def start(self, run):
            self.file = run.directory / f"wandb/offline-run-1/run-{run.identity}.wandb"
            self.file.parent.mkdir(parents=True)

        def log(self, row):
            self.file.open("a").write(f"{row['test/accuracy']} ")

        def finish(self, summary, exit_code):
            if self.end is KeyboardInterrupt:
                raise KeyboardInterrupt
            self.gave_up = self.end is BenchError  # W&B does not answer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trackers_sync, "WandbTracker", Staged)
    monkeypatch.setattr(trackers_sync, "_has_whole_run", lambda folder: bool(list(folder.rglob("*.wandb"))))
    staged, archive, texts = tmp_path / "asyncfl_bench/wandb", tmp_path / "runs.parquet", []
    for accuracy, end in ((0.5, KeyboardInterrupt), (0.5, BenchError), (0.5, None), (0.5, None), (0.7, None)):
        monkeypatch.setattr(Staged, "end", end)
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        archive.unlink(missing_ok=True)
        write_run(tmp_path / "runs", points=[(0, 0, 0, 0.1), (10, 100, 10, accuracy)])
        pack_archive([tmp_path / "runs"], archive)
        with pytest.raises(end) if end else nullcontext():
            _stage_archive(archive)
        texts.append(sorted(file.read_text() for file in staged.rglob("*.wandb")))
    assert texts == [[], [], ["0.1 0.5 "], ["0.1 0.5 "], ["0.1 0.5 ", "0.1 0.7 "]]


@pytest.mark.process
def test_a_server_that_does_not_answer_is_left_after_a_time_with_signs_of_life(tmp_path, monkeypatch, capsys):
    piece(tmp_path / "runs/a", "aaaa0000", [0])
    monkeypatch.setattr(trackers_sync, "_LONGEST_WAIT", 4)
    monkeypatch.setattr(trackers_sync, "_SECONDS_BETWEEN_LINES", 3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
        with pytest.raises(BenchError, match=r"1 run not sent \(Error: W&B's server took no run in \d s\); the same"):
            send_offline_runs([str(tmp_path / "runs")])
    assert capsys.readouterr().err == "0 of 1 pieces sent, none in the last 3 s\n"


@pytest.mark.process
def test_a_staged_run_that_a_full_disk_cut_is_staged_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_run(tmp_path / "runs")
    pack_archive([tmp_path / "runs"], tmp_path / "runs.parquet")
    [folder] = _stage_archive(tmp_path / "runs.parquet")
    [file] = folder.rglob("*.wandb")
    whole = file.read_bytes()
    assert _has_whole_run(folder)
    for cut in (0, 7, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        file.write_bytes(whole[:cut])
        assert not _has_whole_run(folder)
    assert _stage_archive(tmp_path / "runs.parquet") == [folder] and _has_whole_run(folder)


def test_an_identity_that_is_a_path_makes_no_folder(tmp_path, monkeypatch, capsys):
    record = Record("foreign", "ok", config={"model": 3}, summary={"identity": "../../../out\x1b[2J"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("asyncfl_bench.tracking.trackers_sync.read_archive", lambda archive: [record])
    assert _stage_archive(tmp_path / "runs.parquet") == []
    assert (
        "left out foreign: its identity must be 8 hex digits, found ../../../out\\x1b[2J\n" in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())
