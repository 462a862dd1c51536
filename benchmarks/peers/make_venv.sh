#!/bin/sh
# Makes the virtual environments of the peers, each apart from the others and from asyncrl's.
#
#     benchmarks/peers/make_venv.sh PEER...     sb3, torchrl, ...: a file of requirements/ without .txt
#
# They go to .peers/PEER in the repository. PYTHON=... picks the interpreter. A second call brings
# the packages to the pinned versions. All packages that asyncrl pins have the same versions here,
# except where a peer has separate constraints.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}

[ $# -gt 0 ] || { echo "usage: $0 PEER...; there are: $(cd "$here/requirements" && ls)" >&2; exit 2; }

for peer in "$@"; do
    requirements=$here/requirements/$peer.txt
    [ -f "$requirements" ] || { echo "$peer: there is no $requirements" >&2; exit 2; }
    constraints=$here/requirements/$peer.constraints.txt
    [ -f "$constraints" ] || constraints=$root/constraints.txt
    venv=$root/.peers/$peer
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$constraints" --requirement "$requirements"
    [ ! -f "$here/build_$peer.py" ] || (cd "$root" && "$venv/bin/python" -m "benchmarks.peers.build_$peer")
    echo "$peer is in $venv"
done
