#SBATCH --comment='open
