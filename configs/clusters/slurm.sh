#!/bin/bash
# A run on two nodes of a SLURM cluster, four ranks each; to be changed for yours.
#   sbatch configs/clusters/slurm.sh configs/dqn/lunar_lander.yaml name=big population.size=32
# One launcher on each node starts its ranks. If a rank dies, they start all of them again; if a node
# dies or the time is over, SLURM starts the job again. Both times the run resumes. Any node may have
# the main rank then: run.folder (by default runs, where sbatch was called) must be on a shared disk.
#SBATCH --job-name=evorl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --open-mode=append
#SBATCH --output=evorl-%j.log
set -euo pipefail

RANKS=${RANKS:-4}                  # on each node; with GPUs as many as it has
if [ $# -eq 0 ]; then
    echo "error: no configuration; sbatch $0 CONFIG [SECTION.KEY=VALUE]..." >&2
    exit 2
fi
main=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export ACCELERATE_USE_CPU=${ACCELERATE_USE_CPU:-true}
# export GLOO_SOCKET_IFNAME=ib0    # where nodes have several networks

# Two minutes before the time is over: put the job back into the queue, which also ends it here.
trap 'scontrol requeue "$SLURM_JOB_ID"' USR1

srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "$RANKS" \
    --rdzv-backend c10d \
    --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-endpoint "$main:29500" \
    --max-restarts 3 \
    -m evorl train "$@" --resume auto &
wait "$!"
