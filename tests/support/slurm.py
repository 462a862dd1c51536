"""A Slurm cluster on this machine: a controller, and three nodes that are processes.

Needs root and the programs of the package slurm-wlm. All its files are in one directory, and all
its processes, jobs included, have the path of its configuration in their environment.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil

from tests.support.helpers import wait_until

NODES = ("n1", "n2", "n3")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "sinfo", "srun")
_DEADLINE_S = 60.0

_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmdSpoolDir={place}/spool-%n
StateSaveLocation={place}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
SlurmdTimeout=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]},{ports[2]},{ports[3]} \
CPUs=16 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Say why there can be no cluster here; empty if there can."""
    if os.geteuid():
        return "Slurm's nodes start as root only"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)} (package slurm-wlm)" if missing else ""


class Slurm:
    """A running cluster; at the end of a `with` block nothing of it is left."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._configuration = place / "slurm.conf"
        self._environ = {
            **os.environ,
            "SLURM_CONF": str(self._configuration),
            "TMPDIR": str(place),  # what a lost node leaves ends with the cluster
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._closing.callback(self._end)
        try:
            self._start()
        except BaseException:
            self._closing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def submit(self, script: Path, *, cwd: Path, path: str) -> str:
        """Submit a batch script, and return the number of its job."""
        words = ("--parsable", "--chdir", str(cwd), "--output", str(cwd / "job.out"), str(script))
        self._environ["PATH"] = f"{path}:{os.environ['PATH']}"
        return self.ask("sbatch", *words).partition(";")[0].strip()

    def ask(self, *words: str) -> str:
        """Run one of Slurm's commands, and return what it prints."""
        done = subprocess.run(
            words, env=self._environ, capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
        return done.stdout

    def lose(self, node: str) -> None:
        """End a node with all that runs on it, without notice."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        for process in self.processes(node):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def processes(self, node: str = "") -> list[psutil.Process]:
        """Return the processes of the cluster's jobs, or those on one node."""
        daemons = {daemon.pid for daemon in self._daemons.values()}
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.NoSuchProcess):
                # Slurm's own processes write their titles there, with which psutil cannot deal.
                environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                its = [f"SLURM_CONF={self._configuration}", node and f"SLURMD_NODENAME={node}"]
                if not daemons & {process.pid, process.ppid()} and all(
                    s.encode() in environ for s in its if s
                ):
                    found.append(process)
        return found

    def _start(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self._place / name).mkdir()
        with ExitStack() as held:
            sockets = [held.enter_context(socket.create_server(("", 0))) for _ in range(4)]
            ports = [one.getsockname()[1] for one in sockets]
        text = _CONFIGURATION.format(host=socket.gethostname(), place=self._place, ports=ports)
        self._configuration.write_text(text)
        key = self._place / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
        options = [f"--{option}={self._place}/munge.{end}" for option, end in files.items()]
        options += [f"--log-file={self._place}/munge.log"]
        self._run("munged", "munged", "--force", "--foreground", *options)
        wait_until((self._place / "munge.socket").exists, _DEADLINE_S, "munged")
        configured = ("-D", "-f", str(self._configuration))
        self._run("slurmctld", "slurmctld", "-i", *configured)
        for node in NODES:
            self._run(node, "slurmd", "-N", node, *configured)
        wait_until(self._is_idle, _DEADLINE_S, "all nodes")

    def _is_idle(self) -> bool:
        words = ("sinfo", "--noheader", "--format=%t %D")
        done = subprocess.run(
            words, env=self._environ, capture_output=True, timeout=30, check=False
        )
        return done.stdout.split() == [b"idle", b"3"]

    def _run(self, name: str, *words: str) -> None:
        with (self._place / f"{name}.out").open("wb") as out:
            self._daemons[name] = subprocess.Popen(
                words, env=self._environ, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def _end(self) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()
            daemon.wait()
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
