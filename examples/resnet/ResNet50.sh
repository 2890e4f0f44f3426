#!/bin/bash
# Trains ResNet50V2 on 1, 2, 4 and 8 devices, and makes a page of how training time falls. From the root of the tree:
#
#   sbatch --nodes=1 --ntasks-per-node=8 --gpus-per-node=8 examples/resnet/ResNet50.sh    with SLURM, a task a device
#   examples/resnet/ResNet50.sh                                                           without: Levin starts the ranks
#
# study.sh says what can be set.
#SBATCH --job-name=ResNet50
exec examples/resnet/study.sh resnet50v2 "$@"
