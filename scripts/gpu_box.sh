#!/usr/bin/env bash
# Every sweep of the five papers at full scale on a machine with a GPU, cheapest first; safe to stop and to repeat.
#
#   scripts/gpu_box.sh DATA OUT [MINUTES] [SWEEP…]
#
# DATA     data directory, see docs/howto/data.md; `afl-run dataset=cifar10 dataset.download=true data_dir=DATA`
#          downloads a set. Runs with missing data are named, the others run.
#          BERT-base and DistilBERT are downloaded where the hub's cache lacks them.
#          ddpm_cifar10.npy there: images of a diffusion model for fedecho/table2_synthetic and table3_synthetic
# OUT      results: a log per step, the benchmark as Markdown, run directories without weights as .tar.gz, pages
# MINUTES  for the sweeps together (default 600), after half an hour of measurements and checks
# SWEEP    only these, as ace/figure2. The same command again skips finished runs and resumes the others
# Runs share the GPU (hydra/launcher=gpu) if prove_gpu.py finds that they have the bits that they have alone. The
# modelled hours, and so the order, are in scripts/gpu_hours.csv (scripts/gpu_hours.py).
set -u
if [ $# -lt 2 ]; then sed -n '2,14p' "$0"; exit 2; fi
data=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); minutes=${3:-600}; shift 2; shift $(( $# > 0 ))
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

hours_left() { # SWEEP...: modelled hours of these
    awk -F, -v names=" $* " 'index(names, " " $1 " ") {sum += $4} END {printf "%.1f", sum}' scripts/gpu_hours.csv
}

step() { # NAME SECONDS COMMAND...: writes output to NAME.log and prints the exit code
    local name=$1 limit=$2; shift 2
    [ "$limit" -gt 0 ] || { echo "$name: no time left"; return 1; }
    local begun; begun=$(date +%s)
    timeout --signal=TERM --kill-after=60 "$limit" "$@" > "$out/$name.log" 2>&1
    local code=$?
    echo "$name: exit $code after $(( $(date +%s) - begun )) s$([ $code -ne 0 ] && tail -n 1 "$out/$name.log" | sed 's/^/: /')"
    return $code
}

nvidia-smi --query-gpu=name,memory.total --format=csv,noheader || { echo "no GPU is visible"; exit 1; }

# once for each OUT: the measurements; every rule and kind of network a few iterations, twice on the GPU and on the CPU
[ -f "$out/proved" ] || { step prove 1200 "$python" scripts/prove_gpu.py "$out/gpu.md" && touch "$out/proved"; }
together=(hydra/launcher=gpu)
[ -f "$out/proved" ] || { together=(); echo "$out/gpu.md names a failure: runs do not share the GPU"; }
[ -f "$out/checked" ] || { step check 900 "$python" scripts/check_device.py cuda && touch "$out/checked"; }
[ -f "$out/benchmark.md" ] || step benchmark 900 "$python" scripts/benchmark.py --device cuda --repeats 5 --out "$out/benchmark.md"

end=$(( $(date +%s) + 60 * minutes ))
left() { echo $(( end - $(date +%s) )); }
keep() { # packs a sweep's runs so far; pages are rewritten each time
    [ -d "$out/runs/$1" ] || return
    tar czf "$out/${1//\//-}.tar.gz" --exclude='*.pt*' --exclude='.lock' -C "$out" "runs/$1" 2> "$out/keep.log"
    "$python" -m asyncfl_bench.reports.cli all --runs "$out/runs" --out "$out/results" > "$out/pages.log" 2>&1
}
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(tail -n +2 scripts/gpu_hours.csv | cut -d, -f1)
while [ $# -gt 0 ]; do
    name=$1 words=("${together[@]}")
    echo "$name: $(hours_left "$name") of $(hours_left "$@") modelled hours left"
    shift
    if [[ $name == *_synthetic ]]; then
        [ -f "$data/ddpm_cifar10.npy" ] || { echo "$name: no $data/ddpm_cifar10.npy"; continue; }
        words+=(unlabelled.path="$data/ddpm_cifar10.npy")
    fi
    [[ $name == ace/figure2 ]] && words+=(precision=tf32)  # as its archived runs
    [[ $name == fedecho/table4 || $name == ace/table_a2_* ]] && words+=(model.download=true)  # names on the hub
    step "${name//\//-}" "$(left)" "$python" -m asyncfl_bench -m sweep="$name" scale=full device=cuda progress=false \
        data_dir="$data" output_dir="$out/runs" checkpoint.at_end_mib=0 tracking=local "${words[@]}"
    keep "$name"
done
echo "results are in $out"
