#!/bin/sh
# Repeat the timed benchmarks in pieces of less than four minutes each, and write the tables.
#
#     [TURN="COMMAND"] benchmarks/take_all.sh [STEP...]     sampling serving learner ingest equal peers
#
# Runs all steps by default. Commit all changes first: the tables show only results of clean commits.
# TURN is put before the command of each piece, for instance a lock that excludes other work. If a
# piece fails or times out, the script continues, and the earlier result of this piece is kept.
set -u

cd "$(dirname "$0")/.." || exit
python=${PYTHON:-.venv/bin/python}
steps=${*:-sampling serving learner ingest equal peers}

take() {
    echo "$(date +%H:%M:%S) $*" >&2
    ${TURN:-} "$python" -m "$@" >/dev/null || echo "not taken: $*" >&2
}

for step in $steps; do
    case $step in
    sampling) for name in cartpole native halfcheetah pong; do
        take benchmarks.speed.sampling --cases "$name"      # 50 to 150 s
    done ;;
    serving) take benchmarks.speed.serving ;;               # 150 s
    learner) for name in sac td3 crossq dqn dqn-256 dqn-images; do
        take benchmarks.speed.learner --cases "$name"       # 60 to 150 s
    done ;;
    ingest) for kind in sac dqn; do
        take benchmarks.speed.ingest --kind "$kind"         # 60 to 120 s
    done ;;
    equal) for _ in 1 2 3 4 5 6 7 8; do                     # each continues after the last one
        take benchmarks.learning --equal --seconds-budget 150
    done ;;
    peers)
        for stage in sampling env; do                       # the fastest settings first, 200 s each
            take benchmarks.peers.compare --peers sb3 cleanrl_style --sweep --seconds 1 \
                --stages "$stage"
        done
        for _ in 1 2 3 4 5 6; do                            # as above
            take benchmarks.peers.compare --peers sb3 cleanrl_style --budget 200 \
                --stages updates-sac updates-dqn sampling env
        done ;;
    *) echo "there is no step $step" >&2; exit 2 ;;
    esac
done
"$python" -m benchmarks.make_table
"$python" -m benchmarks.learning --table
