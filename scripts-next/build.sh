#!/bin/sh
# Build the folders of scripts-next/ab.py: one for each branch, under build/ab. Minutes; needs no GPU.
#     PYTHON=.venv/bin/python sh scripts-next/build.sh
set -eu
python=$(realpath "${PYTHON:-python}" --no-symlinks)
here=$(pwd)
out=$here/build/ab
build() {  # folder, branch, spec
  tree=$(mktemp -d)
  git worktree add --quiet --detach "$tree" "$2"
  (cd "$tree" && "$python" -m mlagen build "$here/$3" --out "$out/$1" --lint strict)
  git worktree remove --force "$tree"
}
build base main scripts-next/ab.yaml
build late h-late2 scripts-next/ab.yaml
build late-prefetch h-late2-prefetch scripts-next/ab.yaml
build late-n1 h-late2-n1 scripts-next/ab.yaml
build late-n2 h-late2-n2 scripts-next/ab.yaml
build cluster h-cluster scripts-next/ab-cluster.yaml
# What the simulator has run, to be run on the GPU first: see NOTES-next.md.
build ../cluster-tests h-cluster tests/sim/specs/cluster.yaml
