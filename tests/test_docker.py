"""The images are built elsewhere; here, what files of docker/ say is compared with the project."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from asyncrl.cli import join
from asyncrl.cli.train import parse
from asyncrl.run.run_config import RunConfig

ROOT = Path(__file__).parents[1]
KINDS = ("k8s.yaml", "compose.yaml", "sbatch")
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_usage_and_contents_fit_the_project(path: Path) -> None:
    text = path.read_text()
    usage = text.partition("\nARG ")[0].replace("\\\n", "").replace("#", "")
    (timeout_s,) = map(int, re.findall(r"--stop-timeout (\d+)", usage))
    assert timeout_s > RunConfig().grace_s, "a run has its whole grace"
    (command,) = re.findall(r"asyncrl:\w+ train (.*)", usage)
    assert parse(shlex.split(command)).agent == "dqn"

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    chosen = re.findall(r"EXTRAS=([\w,]+)", text)
    assert len(chosen) == 2, "the default, and an example"
    assert {name for names in chosen for name in names.split(",")} <= extras.keys()

    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    assert [name for names in copied for name in names if not (ROOT / name).exists()] == []


OLDEST_KUBERNETES = "1.29"  # the first with backoffLimitPerIndex without a feature gate
KUBERNETES, COMPOSE, SLURM = (ROOT / "docker" / f"join.{kind}" for kind in KINDS)


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(KUBERNETES.read_text()))


def pods() -> Iterator[dict[str, Any]]:
    for one in kubernetes():
        if one["kind"] == "Job":
            yield one["spec"]["template"]["spec"]


def commands() -> dict[str, list[str]]:
    """Return the command lines of all recipes, as far as a parser is asked."""
    found = {f"k8s {c['name']}": c["args"] for pod in pods() for c in pod["containers"]}
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    found |= {f"compose {name}": service["command"] for name, service in services.items()}
    text = SLURM.read_text().replace("\\\n", "").replace("'", "")
    for line in re.findall(r"exec asyncrl (.*?)(?: &)?$", text, re.MULTILINE):
        words = shlex.split(line.replace("$run_dir", "runs/a").replace("$address", "10.0.0.1"))
        found[f"slurm {words[0]}"] = words
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_command_of_a_recipe_is_understood(name: str) -> None:
    command, *words = commands()[name]
    if command == "join":
        assert join.parse(words).actors
    else:
        config = parse(words).config
        assert config.launcher == "hosts"
        assert config.hosts.min_actors
        assert config.hosts.min_actors < config.actors


def test_recipes_leave_time_to_end() -> None:
    config = RunConfig()
    enough_s = max(config.grace_s, config.supervision.stop_timeout_s)
    assert all(pod["terminationGracePeriodSeconds"] > enough_s for pod in pods())
    services = yaml.safe_load(COMPOSE.read_text())["services"].values()
    assert all(int(s["stop_grace_period"].rstrip("s")) > enough_s for s in services)


def test_manifests_are_valid() -> None:
    kinds = {one["kind"] for one in kubernetes()}
    assert kinds == {"Job", "NetworkPolicy", "PersistentVolumeClaim", "Service"}, "built in"
    assert all(one["apiVersion"] and one["metadata"]["name"] for one in kubernetes())
    (hosts,) = (one for one in kubernetes() if "podFailurePolicy" in one.get("spec", {}))
    rules = hosts["spec"]["podFailurePolicy"]["rules"]
    assert all(one["status"] for rule in rules for one in rule["onPodConditions"]), "before 1.35"
    assert f"Kubernetes {OLDEST_KUBERNETES} or newer" in KUBERNETES.read_text()
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed: pip install kubernetes-validate")
    check = [sys.executable, "-m", "kubernetes_validate", "--strict"]
    for version in ([], ["-k", OLDEST_KUBERNETES]):
        command = [*check, *version, str(KUBERNETES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
