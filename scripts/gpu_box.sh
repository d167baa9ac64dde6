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
# MINUTES  for the sweeps together (default 600); the checks and the benchmark before them take about ten
# SWEEP    only these, as ace/figure2. The same command again skips finished runs and resumes the others
set -u
if [ $# -lt 2 ]; then sed -n '2,12p' "$0"; exit 2; fi
data=$(realpath "$1"); mkdir -p "$2"; out=$(realpath "$2"); minutes=${3:-600}; shift 2; shift $(( $# > 0 ))
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
end=$(( $(date +%s) + 60 * (minutes + 10) ))
left() { echo $(( end - $(date +%s) )); }

# by the samples that the runs of a sweep train on, times the size of its networks
sweeps=(
    ace/{participation,dropout_bias,table1}
    asyncfeded/{figure2,figure4,table1,table2,table4_one_factor,figure3_redrawn,table3,figure3}
    fedecho/table4
    afbs/{table3,figure8,ablation,momentum,table2_sst2,table2}
    afbs/{figure3,figure4,figure5,table5}
    gas/{figure2,controls,logit_adjustment,table3,equal,figure3,figure4,table2,table1,table4,table5}
    ace/{table_a1,table_a3,figure2,figure2_unit_step,figure2_time_clock,figure3a,figure_a3,figure_a1,figure2_delay_laws}
    fedecho/{table11,table6,table7,server_time,composition,controls,table2,table3,table2_synthetic,table3_synthetic}
    ace/{figure3b,table_a2_bert,table_a2_adamw,figure_a2}
    asyncfeded/table4
)

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

# every rule and kind of network a few iterations, twice on the GPU and on the CPU; once for each OUT
[ -f "$out/checked" ] || { step check 900 "$python" scripts/check_device.py cuda && touch "$out/checked"; }
[ -f "$out/benchmark.md" ] || step benchmark 900 "$python" scripts/benchmark.py --device cuda --repeats 5 --out "$out/benchmark.md"

keep() { # packs a sweep's runs so far; pages are rewritten each time
    [ -d "$out/runs/$1" ] || return
    tar czf "$out/${1//\//-}.tar.gz" --exclude='*.pt*' --exclude='.lock' -C "$out" "runs/$1" 2> "$out/keep.log"
    "$python" -m asyncfl_bench.reports.cli all --runs "$out/runs" --out "$out/results" > "$out/pages.log" 2>&1
}
for name in "${@:-${sweeps[@]}}"; do
    words=()
    if [[ $name == *_synthetic ]]; then
        [ -f "$data/ddpm_cifar10.npy" ] || { echo "$name: no $data/ddpm_cifar10.npy"; continue; }
        words=(unlabelled.path="$data/ddpm_cifar10.npy")
    fi
    [[ $name == ace/figure2 ]] && words=(precision=tf32)  # as its archived runs
    [[ $name == fedecho/table4 || $name == ace/table_a2_* ]] && words=(model.download=true)  # names on the hub
    step "${name//\//-}" "$(left)" "$python" -m asyncfl_bench.cli -m sweep="$name" scale=full device=cuda progress=false \
        data_dir="$data" output_dir="$out/runs" checkpoint.at_end_mib=0 tracking=local "${words[@]}"
    keep "$name"
done
echo "results are in $out"
