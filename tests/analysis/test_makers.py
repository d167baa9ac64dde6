"""A series is named whose seeds were run on CPUs of several makers, if its bits depend on the maker."""

from types import SimpleNamespace

import pandas as pd
import pytest
from reports.runs_by_hand import write_run

from asyncfl_bench.analysis.caveats import describe_mixed_makers
from asyncfl_bench.analysis.matching import group_runs
from asyncfl_bench.experiment import machine
from asyncfl_bench.reports.pages.provenance import origin
from asyncfl_bench.tracking.runs import load_runs

INTEL = {"device": "cpu (Intel(R) Xeon(R) Processor, 2 cores)", "executor": "batched"}
AMD = {"device": "cpu (AMD EPYC, 2 cores)", "executor": "batched"}
SAME = {"torch": "MKL 2024.2, MKL_CBWR=COMPATIBLE"}
BRANCH = {"torch": "MKL 2024.2"}


def runs_of(folder, *summaries):
    for seed, summary in enumerate(summaries):
        write_run(folder, "ace", seed=seed, summary=summary)
        write_run(folder, "fedbuff", seed=seed, summary=INTEL)
    return load_runs(folder)


@pytest.mark.parametrize(
    ("second", "is_mixed"),
    [
        (AMD, True),
        (INTEL, False),
        (AMD | {"executor": "native"}, False),
        ({"device": "cpu (x86_64, 2 cores)", "executor": "batched"}, False),  # unknown, of an earlier version
        ({"device": "cuda (NVIDIA H100 80GB HBM3)", "executor": "batched", "cpu": {"maker": "AMD", **BRANCH}}, False),
        ({"device": "cpu (x86_64, 2 cores)", "executor": "batched", "cpu": {"maker": "AMD", **BRANCH}}, True),
        (AMD | {"cpu": {"maker": "AMD", **SAME}}, False),
        ({}, False),
    ],
)
def test_makers_are_mixed_where_bits_depend_on_them(second, is_mixed, tmp_path):
    said = describe_mixed_makers(runs_of(tmp_path, INTEL, second))
    assert said.startswith("seeds of ace are from CPUs of AMD and Intel, where") if is_mixed else not said


def test_a_page_names_the_series_that_mix_makers(tmp_path):
    for folder, second, count in (("a", AMD, 1), ("b", INTEL, 0)):
        runs = group_runs(runs_of(tmp_path / folder, INTEL, second)).runs
        (_, lines) = origin(SimpleNamespace(runs=runs, computed=pd.DataFrame()), [])
        assert lines.count("- seeds of ACE are from CPUs of AMD and Intel") == count and "FedBuff are" not in lines


def test_the_machine_names_maker_and_libraries(monkeypatch):
    facts = machine.cpu_facts.__wrapped__()
    assert {*facts} == {"maker", "torch", "numpy"} and all(facts.values()) and "CBWR" not in facts["torch"]
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    has_mkl = facts["torch"].startswith("MKL ")
    assert machine.cpu_facts.__wrapped__()["torch"] == facts["torch"] + ", MKL_CBWR=COMPATIBLE" * has_mkl
