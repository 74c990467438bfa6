#!/bin/bash
# Tunes a training job on two nodes, then trains with the result:
#     sbatch examples/slurm.sh
#     sbatch --dependency=afterany:JOBID examples/slurm.sh     # goes on with the same log
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --time=04:00:00

set -euo pipefail

# One log for a chain of jobs: no {job_id} in it, on a file system that all nodes see.
log="$SLURM_SUBMIT_DIR/train.csv"

export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"
export HOROVOD_AUTOTUNE=1
export HOROVOD_AUTOTUNE_LOG="$log"

# Open MPI: --mpi=pmix; MPICH and Intel MPI: --mpi=pmi2; without any MPI: --mpi=none. srun passes on
# what is exported.
srun --mpi=pmix python examples/digits/train.py --epochs 100 --output checkpoints

autotune show "$log"
