#!/bin/bash
# Trains on several nodes, one task per node, which starts a process for each GPU. A job that ends is submitted again as it
# is: it goes on from the last checkpoint, also with another number of nodes.
#
#   sbatch --nodes=4 examples/robots/slurm_train.sh --root s3://bucket/arm --output-dir /shared/policy --steps 100000
#
#SBATCH --job-name=robots
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --output=robots-%j.log
#SBATCH --requeue
set -euo pipefail

GPUS_PER_NODE=${GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-8}}
WORKERS=${WORKERS:-12}
POOL=${POOL:-64}
HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MAIN_HOST=${HOSTS%%$'\n'*}
export MAIN_HOST GPUS_PER_NODE WORKERS POOL
export MAIN_PORT=${MAIN_PORT:-$((20000 + SLURM_JOB_ID % 20000))}
export ACCELERATE_MIXED_PRECISION=${ACCELERATE_MIXED_PRECISION:-bf16}
# The cache of each node, shared by all its processes: a local disk, not the shared one.
export PENSTOCK_CACHE_DIR=${PENSTOCK_CACHE_DIR:-${TMPDIR:-/tmp}/penstock-cache}

# Within srun, each node has its own SLURM_NODEID. Not `accelerate launch`: where it finds less than two GPUs on a node and no
# configuration, it starts a job of its own on each, without a word.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=1 bash -c '
  exec torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "$GPUS_PER_NODE" \
    --node-rank "$SLURM_NODEID" \
    --master-addr "$MAIN_HOST" \
    --master-port "$MAIN_PORT" \
    examples/robots/train_multinode.py --num-workers "$WORKERS" --episode-pool-size "$POOL" "$@"
' slurm_train "$@"
