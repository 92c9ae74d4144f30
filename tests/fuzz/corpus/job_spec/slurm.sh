#!/bin/bash
#SBATCH --job-name=lm -t 1-02:00:00 --signal=B:USR1@90 # comment
#SBATCH -c 4 --mem-per-cpu=2G --gres=gpu:a100:2 --requeue --export=ALL,A=1
#SBATCH --output='a b'
#RECLAIM checkpoint:
#RECLAIM   dir: ck
#RECLAIM --failure-limit=3 --results=a --results=b
srun python train.py
