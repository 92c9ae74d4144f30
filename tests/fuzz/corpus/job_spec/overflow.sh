#!/bin/sh
#SBATCH --mem-per-cpu=1000000000T -c 4096 -n 4096
true
