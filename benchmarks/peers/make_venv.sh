#!/bin/sh
# Makes the virtual environment of the sb3_*.py scripts, apart from that of asyncrl.
#
#     benchmarks/peers/make_venv.sh [DIRECTORY]     .peers/sb3 in the repository by default
#
# PYTHON=... picks the interpreter. A second call brings the packages to the pinned versions.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${1:-$root/.peers/sb3}
python=${PYTHON:-python3}

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    --constraint "$root/constraints.txt" --requirement "$here/requirements-sb3.txt"
"$venv/bin/python" -c 'import stable_baselines3, torch
print("stable-baselines3", stable_baselines3.__version__, "on torch", torch.__version__)'
