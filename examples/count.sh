#!/bin/sh
#SBATCH --job-name=count
#SBATCH --signal=B:TERM@5
#SBATCH --requeue
# Counts to 200 and can be moved at any moment: where it is stands in a file
# that is renamed into place, and TERM means "save and leave, start me again".
file=$RECLAIM_CHECKPOINT_DIR/count
n=$(cat "$file" 2>/dev/null || echo 0)
save() { echo "$n" >"$file.tmp" && mv "$file.tmp" "$file"; }
[ "$n" = 0 ] || echo "going on after $n"
trap 'save; exit 85' TERM
while [ "$n" -lt 200 ]; do
	n=$((n + 1))
	echo "counted to $n"
	[ $((n % 10)) = 0 ] && save
	sleep 0.1
done
