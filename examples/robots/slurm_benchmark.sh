#!/bin/bash
# Measures how fast robot episodes come, for one source and one mode, on each of several nodes: see README.md beside it.
#
#   sbatch --nodes=1 examples/robots/slurm_benchmark.sh hub           single --repo-id me/arm
#   sbatch --nodes=4 examples/robots/slurm_benchmark.sh bucket        sarm   --root s3://bucket/arm
#   sbatch --nodes=4 examples/robots/slurm_benchmark.sh warmed_bucket sarm   --root s3://bucket/arm
#
#SBATCH --job-name=robots-benchmark
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --output=robots-benchmark-%j.log
set -euo pipefail

if [ $# -lt 3 ]; then
  echo "usage: sbatch slurm_benchmark.sh hub|bucket|warmed_bucket single|sarm --root URL | --repo-id NAME [more]" >&2
  exit 2
fi
export SOURCE=$1 MODE=$2
shift 2
case "$SOURCE" in
  hub | bucket | warmed_bucket) ;;
  *)
    echo "unknown source '$SOURCE': use hub, bucket or warmed_bucket" >&2
    exit 2
    ;;
esac
export OUT=${OUT:-robots-benchmark-$SLURM_JOB_ID}
export WORKERS=${WORKERS:-12}
# A cache that is new for each job, on a local disk, so that nothing is there that an earlier job fetched.
export PENSTOCK_CACHE_DIR=${PENSTOCK_CACHE_DIR:-${TMPDIR:-/tmp}/penstock-benchmark-$SLURM_JOB_ID}
mkdir -p "$OUT"

# Each node reads all of the dataset as a job of its own, once, before it is measured: these variables come before SLURM's.
# shellcheck disable=SC2016
warm='RANK=0 WORLD_SIZE=1 python benchmarks/episodes.py single "$@" --source warming --num-workers "$WORKERS" --warmup-batches 0 \
  --batches 1000000000 >/dev/null'
# shellcheck disable=SC2016
measure='python benchmarks/episodes.py "$MODE" --source "$SOURCE" --num-workers "$WORKERS" \
  --json "$OUT/$SOURCE-$MODE-$SLURM_NNODES-nodes-$SLURM_NODEID.json" \
  --csv "$OUT/$SOURCE-$MODE-$SLURM_NNODES-nodes-$SLURM_NODEID.csv" "$@"'

if [ "$SOURCE" = warmed_bucket ]; then
  srun --kill-on-bad-exit=1 bash -c "$warm" slurm_benchmark "$@"
fi
srun --kill-on-bad-exit=1 bash -c "$measure" slurm_benchmark "$@"
