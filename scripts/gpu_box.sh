#!/usr/bin/env bash
# Everything to be measured on a machine with a GPU, most wanted first; safe to stop and to repeat.
#
#   scripts/gpu_box.sh DATA OUT [MINUTES]
#
# DATA     data directory with cifar10.npz (and cifar100.npz, shakespeare-speeches.jsonl, femnist.npz), as
#          `afl-run dataset=cifar10 dataset.download=true data_dir=DATA` and its like for the others make them
# OUT      results: a log per step, the benchmark as Markdown, run directories without weights as .tar.gz, pages
# MINUTES  for the sweeps together (default 600); the checks and the benchmark before them take about ten
set -u
if [ $# -lt 2 ]; then sed -n '2,9p' "$0"; exit 2; fi
data=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); minutes=${3:-600}
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
end=$(( $(date +%s) + 60 * (minutes + 10) ))
left() { echo $(( end - $(date +%s) )); }

step() { # NAME SECONDS COMMAND...: its output goes to NAME.log, and its end is said here
    local name=$1 limit=$2; shift 2
    [ "$limit" -gt 0 ] || { echo "$name: no time left"; return 1; }
    local begun; begun=$(date +%s)
    timeout --signal=TERM --kill-after=60 "$limit" "$@" > "$out/$name.log" 2>&1
    local code=$?
    echo "$name: exit $code after $(( $(date +%s) - begun )) s$([ $code -ne 0 ] && tail -n 1 "$out/$name.log" | sed 's/^/: /')"
    return $code
}

nvidia-smi --query-gpu=name,memory.total --format=csv,noheader || { echo "no GPU is visible"; exit 1; }

# every rule a few iterations, on the GPU and on the CPU: the same arrivals, nearly the same model
step smoke 300 "$python" scripts/check_device.py cuda
step benchmark 900 "$python" scripts/benchmark.py --device cuda --repeats 5 --out "$out/benchmark.md"

keep() { # what a sweep has so far, small enough to send; the pages are made again each time
    tar czf "$out/$(echo "$1" | tr / -).tar.gz" --exclude='*.pt*' --exclude='.lock' -C "$out" "runs/$1" 2> "$out/keep.log"
    "$python" -m asyncfl_bench.reports.cli all --runs "$out/runs" --out "$out/results" > "$out/pages.log" 2>&1
}
sweep() { # NAME [OVERRIDE...]
    local name=$1; shift
    step "${name//\//-}${1:+-${1##*/}}" "$(left)" "$python" -m asyncfl_bench.cli -m sweep="$name" scale=full device=cuda \
        progress=false data_dir="$data" output_dir="$out/runs" checkpoint.at_end_mib=0 tracking=local "$@"
    keep "$name"
}
sweep ace/figure2
for set in shakespeare femnist synthetic; do sweep asyncfeded/figure2 paper=asyncfeded/$set; done
for name in ace/figure3a ace/figure_a3 ace/figure_a1 ace/figure3b asyncfeded/figure4 ace/figure_a2; do sweep "$name"; done
echo "results are in $out"
