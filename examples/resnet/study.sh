#!/bin/bash
# Trains a model on each number of devices and makes a page of them: study.sh resnet50v2|resnet152v2 [OPTION...], from the
# root of the tree. Options go to every run, such as --config examples/resnet/tiny.yaml. In a job of SLURM srun starts the
# ranks, otherwise Levin does. Variables:
#
#   DEVICES    numbers of devices, a run each (1 2 4 8)
#   BATCH      images a step, of all devices together (found by trial: the most that one device can hold)
#   MAX_BATCH  no larger batch is tried (4096); set it on CPUs, where Linux ends a program rather than refuse it memory
#   CIFAR10    folder of CIFAR-10's binary files (/usr/share/datasets/cifar-10-batches-bin); where they are not,
#              Fashion-MNIST is enlarged in their place
#   RESULTS    where runs and page go (levin_logs/MODEL)
#   BUILD      where the programs were built (build)
set -euo pipefail

model=${1:?study.sh: no model; valid: resnet50v2, resnet152v2}
shift
build=${BUILD:-build}
results=${RESULTS:-levin_logs/$model}
cifar10=${CIFAR10:-/usr/share/datasets/cifar-10-batches-bin}
read -ra devices <<<"${DEVICES:-1 2 4 8}"

data=("--data.root=$cifar10")
if [ ! -f "$cifar10/data_batch_1.bin" ]; then
  echo "study: there is no CIFAR-10 in $cifar10; Fashion-MNIST, enlarged, takes its place" >&2
  data=(--config examples/resnet/fashion_mnist_enlarged.yaml)
fi

# Runs a command of the program on so many devices.
run() {
  local command=$1 count=$2 nodes=1 start=()
  shift 2
  if [ -n "${SLURM_JOB_ID:-}" ]; then
    local most=${SLURM_NTASKS_PER_NODE:-$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))}
    nodes=$(((count + most - 1) / most))
    if [ "$nodes" -gt "$SLURM_JOB_NUM_NODES" ] || [ $((count % nodes)) -ne 0 ]; then
      echo "study: $count devices cannot be divided over $SLURM_JOB_NUM_NODES nodes of $most tasks" >&2
      return 2
    fi
    start=(srun "--nodes=$nodes" "--ntasks=$count" "--ntasks-per-node=$((count / nodes))")
  fi
  "${start[@]}" "$build/bin/resnet" "$command" --config "examples/resnet/$model.yaml" "${data[@]}" "${configs[@]}" \
    "--trainer.devices=$((count / nodes))" "--trainer.num_nodes=$nodes" "${user_options[@]}" "$@"
}

# Configuration files go before single options.
configs=()
user_options=()
while [ $# -gt 0 ]; do
  if [ "$1" = --config ]; then
    configs+=(--config "${2:?study.sh: --config without a file}")
    shift
  else
    user_options+=("$1")
  fi
  shift
done

mkdir -p "$results"
batch=${BATCH:-}
if [ -z "$batch" ]; then
  run tune 1 "--trainer.callbacks=[{batch_size_finder: {max_val: ${MAX_BATCH:-4096}}}]" --trainer.logger=false \
    "--trainer.default_root_dir=$results/tune" | tee "$results/tune.txt"
  batch=$(sed -n 's/.*--data\.global_batch_size=\([0-9]*\).*/\1/p' "$results/tune.txt")
  [ -n "$batch" ] || { echo "study: no batch size was found; hint: BATCH=64" >&2; exit 1; }
fi

# The mean of throughput/epoch_seconds in a run's metrics.csv.
epoch_seconds() {
  awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "throughput/epoch_seconds") column = i; next }
           column && $column != "" { sum += $column; ++count } END { if (count) print sum / count }' "$1"
}

runs=()
one_device=()
for count in "${devices[@]}"; do
  echo "study: $model on $count device(s), batches of $batch" >&2
  run fit "$count" "--data.global_batch_size=$batch" "--trainer.default_root_dir=$results/$count" "${one_device[@]}"
  newest=$(printf '%s\n' "$results/$count"/version_* | sort -V | tail -n 1)
  runs+=("$newest")
  if [ "$count" -eq 1 ]; then
    seconds=$(epoch_seconds "$newest/metrics.csv")
    [ -z "$seconds" ] || one_device=("--trainer.callbacks.throughput_monitor.one_device_epoch_seconds=$seconds")
  fi
done
"$build/bin/levin-report" "${runs[@]}" --output "$results/report.html"
