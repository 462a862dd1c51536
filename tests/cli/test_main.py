"""What users read when something is wrong, and the exit codes that scripts go by."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncrl
from asyncrl.cli import main as main_module
from asyncrl.cli.main import main
from asyncrl.run import launchers
from tests.cli.console import COMMAND
from tests.support import warm
from tests.test_architecture import HEAVY, loaded_by


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of a command line, and what it wrote to stderr."""
    return main(argv.split()), capsys.readouterr().err


def test_help_is_no_error_names_every_command_and_loads_nothing_heavy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "usage: asyncrl COMMAND" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"asyncrl {asyncrl.__version__}\n"
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        f"asyncrl {name}" in shown for name in ("train", "eval", "bench", "bench tune", "doctor")
    )
    assert not HEAVY & loaded_by("asyncrl.cli.main")
    assert "torch" not in loaded_by("asyncrl.cli.bench")


@pytest.mark.parametrize(
    ("argv", "early"),
    [
        ("train dqn", True),
        ("resume runs/mine", True),
        ("train bc --mode=offline", False),
        ("train --help", False),
        ("eval runs/mine", False),
    ],
)
def test_actors_launcher_starts_before_the_command_is_loaded_and_ends_with_it(
    argv: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    class Launcher:
        def __init__(self) -> None:
            order.append("start")

        def close(self) -> None:
            order.append("close")

    class Command:
        parse = staticmethod(lambda _: order.append("parse"))
        run = staticmethod(lambda _, launcher=None: order.append(type(launcher).__name__) or 7)

    def load(name: str) -> type[Command]:
        order.append(name.rpartition(".")[2])
        return Command

    monkeypatch.setattr(launchers, "start_launcher", Launcher)
    monkeypatch.setattr(main_module.importlib, "import_module", load)
    assert main(argv.split()) == 7
    command = argv.split(maxsplit=1)[0]
    expected = ["start", command, "parse", "Launcher", "close"]
    assert order == (expected if early else [command, "parse", "NoneType"])


@pytest.mark.processes
def test_where_torch_is_missing_a_sentence_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None; from asyncrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "train", "dqn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    needs = "asyncrl train needs torch, which is not installed here: pip install asyncrl"
    assert done.stderr.startswith(f"asyncrl: error: {needs}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("frobnicate", "unknown command 'frobnicate'"),
        ("train", "name an agent: asyncrl train PRESET|MODULE:CONFIG"),
        ("train ddqn", "unknown agent 'ddqn'; use "),
        ("train dqn --actors 0", "--actors must be at least 1, got 0"),
        ("train dqn --agent.learning-rate -1", "--agent.learning-rate must be positive, got -1"),
        ("train dqn --max-env-steps 1.5", "--max-env-steps: expected a whole number, got '1.5'"),
        ("train dqn --config nothing.yaml", "--config: nothing.yaml does not exist"),
        ("train dqn stray", "stray"),
        ("bench tune dqn --seconds 0", "--seconds must be positive, got 0"),
        ("train ppo --limiter.samples-per-insert 2", "(set by --limiter.samples-per-insert)\n"),
        ("train dqn --config .", "--config: . is a directory; name a file in it"),
        ("eval", "Directory of the run"),
        ("eval nowhere", "nowhere is not a run directory: it does not exist"),
        ("eval nowhere --episodes 0", "--episodes must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_made(
    argv: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(argv, capsys)
    assert code == 2
    assert words in text
    assert "Traceback" not in text
    assert not list(tmp_path.iterdir())


ENVS = """
import gymnasium

def make_nothing():
    return 3

def make_broken():
    raise OSError("no such robot")
"""


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("train dqn --env Nope-v0", "package registers it, write PACKAGE:Nope-v0, which imports"),
        ("train dqn --env my_lab.envs.make", "written module:function, as in my_envs:make_env"),
        ("train dqn --env nowhere:make", "there is no module 'nowhere'"),
        ("train dqn --env envs_of_ours:mak_nothing", "envs_of_ours has no 'mak_nothing'"),
        ("train dqn --env envs_of_ours:make_nothing", "returned 3"),
        ("train dqn --env envs_of_ours:make_broken", "OSError: no such robot"),
        ("train sac --env CartPole-v1", "SAC needs continuous actions"),
        ("train dqn --env-kwargs no_such_word 1", "no_such_word"),
        ("train dqn --replay.capacity 10", "raise replay.capacity"),
        ("bench sample --env Nope-v0", "cannot make environment 'Nope-v0'"),
    ],
)
def test_what_cannot_work_is_one_sentence_and_leaves_the_name_of_the_run_free(
    argv: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "envs_of_ours.py").write_text(ENVS)
    is_train = argv.startswith("train")
    code, text = said(f"{argv} --run-dir made/x" if is_train else argv, capsys)
    raised = any(name in argv for name in ("make_broken", "no_such_word"))
    assert code == (1 if raised else 2), "an environment's exception has exit code 1"
    (line,) = text.splitlines()
    assert line.startswith("asyncrl: error: ")
    assert words in line
    assert not (tmp_path / "made").exists()


def test_debug_shows_the_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "envs_of_ours.py").write_text(ENVS)
    code, text = said("train dqn --env envs_of_ours:make_broken --debug", capsys)
    assert code == 1
    assert text.startswith("Traceback")
    assert "in make_broken" in text


# --- the frame around any command ----------------------------------------------------------------

FAKE_COMMAND = """
import os
from asyncrl.cli.output import show
from asyncrl.core.errors import ActorFailed, ConfigError, NonFiniteModel

def parse(argv):
    if argv == ["refused"]:
        raise ConfigError("no")
    if argv == ["crashes"]:
        raise ZeroDivisionError("division by zero")
    return argv

def run(arguments):
    match arguments:
        case ["code", code]:
            return int(code)
        case ["config"]:
            raise ConfigError("no")
        case ["actor"]:
            raise ActorFailed("actor 3 failed: ValueError: oh\\n\\nTraceback (most ...")
        case ["ours"]:
            raise NonFiniteModel("not finite")
        case ["theirs"]:
            error = ZeroDivisionError("division by zero")
            error.add_note("asyncrl: in making environment 'Mine-v0'")
            error.add_note("another library's note")
            raise error
        case ["strange"]:
            show("2 \\xb5s")
            raise ActorFailed("actor 3 failed: \\xdc \\udc80")
        case ["noisy"]:
            print("an environment")
            os.write(1, b"native code\\n")
            os.system("echo a child")
            show("the result")
            return 0
        case ["interrupted"]:
            raise KeyboardInterrupt
"""


@pytest.mark.behaviour(number=41)
@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        ("code 0", 0, ""),
        ("code 143", 143, ""),
        ("refused", 2, "asyncrl: error: no\n"),
        (
            "crashes",
            1,
            "asyncrl: error: ZeroDivisionError: division by zero (at HERE/fake_command.py:10 in "
            "parse; --debug shows the traceback)\n",
        ),
        ("config", 2, "asyncrl: error: no\n"),
        ("ours", 1, "asyncrl: error: not finite\n"),
        (
            "actor",
            1,
            "asyncrl: error: actor 3 failed: ValueError: oh (--debug shows the traceback)\n",
        ),
        (
            "theirs",
            1,
            "asyncrl: error: ZeroDivisionError: division by zero "
            "(in making environment 'Mine-v0'; at HERE/fake_command.py:27 in run; --debug shows "
            "the traceback)\n",
        ),
        ("interrupted", 130, "asyncrl: interrupted by SIGINT\n"),
    ],
)
def test_exit_code_and_sentence_of_each_kind_of_end(
    argv: str,
    code: int,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "fake_command.py").write_text(FAKE_COMMAND)
    monkeypatch.setitem(main_module.COMMANDS, "fake", "fake_command")
    found, sentence = said(f"fake {argv}", capsys)
    assert (found, re.sub(r"at \S+/fake", "at HERE/fake", sentence)) == (code, text)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_any_text_is_printed_in_any_encoding(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake_command.py").write_text(FAKE_COMMAND)
    monkeypatch.setitem(main_module.COMMANDS, "fake", "fake_command")
    written = {name: io.BytesIO() for name in ("stdout", "stderr")}
    for name, file in written.items():
        monkeypatch.setattr(sys, name, io.TextIOWrapper(file, encoding=encoding))
    assert main(["fake", "strange"]) == 1
    sys.stderr.flush()
    out, err = (file.getvalue() for file in written.values())
    shown = [text.encode(encoding, "backslashreplace") for text in ("2 µs\n", "Ü \udc80\n")]
    assert out == shown[0]
    assert err == b"asyncrl: error: actor 3 failed: " + shown[1]


NOISY = """
import sys
from asyncrl.cli import main
main.COMMANDS["fake"] = "fake_command"
sys.exit(main.main())
"""


@pytest.mark.processes
def test_standard_output_has_results_alone(tmp_path: Path) -> None:
    (tmp_path / "fake_command.py").write_text(FAKE_COMMAND)
    done = warm.run("code", [NOISY, "fake", "noisy"], cwd=tmp_path, timeout_s=60.0)
    assert (done.returncode, done.stdout) == (0, "the result\n")
    assert sorted(done.stderr.splitlines()) == ["a child", "an environment", "native code"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("target", "code", "error"),
    [
        ("&-", 0, ""),
        ("/dev/full", 1, "asyncrl: error: cannot write to standard output: No space left "),
    ],
)
def test_output_that_is_closed_or_full(target: str, code: int, error: str) -> None:
    command = ["sh", "-c", f"{COMMAND} --version >{target}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[: len(error) or None]) == (code, error)


CHILD = """
from asyncrl.cli.output import show
from asyncrl.fleet.in_child import run_in_child

parse = str

def run(arguments):
    show(run_in_child(lambda: "of a child", what="a test"))
    return 0
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("streams", "code", "shown", "error"),
    [
        ("2>&-", 0, "of a child\n", ""),
        ("<&- >&- 2>&-", 0, "", ""),
        (">/dev/full", 1, "", "No space left on device (standard output cannot be written; at "),
    ],
)
def test_children_run_where_streams_are_closed_or_full(
    streams: str, code: int, shown: str, error: str, tmp_path: Path
) -> None:
    (tmp_path / "fake_command.py").write_text(CHILD)
    command = ["sh", "-c", f'exec "$0" -c "$1" fake {streams}', sys.executable, NOISY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, shown)
    assert error in done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("command", [[COMMAND], [sys.executable, "-m", "asyncrl"]])
def test_program_passes_the_exit_code_on(command: list[str]) -> None:
    done = subprocess.run([*command, "dance"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown command 'dance'" in done.stderr


@pytest.mark.processes
def test_reader_that_goes_away_is_no_reason_to_complain() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [COMMAND, "bench", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


AFTER_ITS_END = """
import atexit, os, signal, sys
from asyncrl.cli.main import main

def press_ctrl_c():
    print("the first farewell", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    print("and the second")

atexit.register(press_ctrl_c)
sys.exit(main())
"""


@pytest.mark.fault("F13")
@pytest.mark.processes
def test_program_ends_at_a_signal_after_its_command_is_done() -> None:
    command = [sys.executable, "-c", AFTER_ITS_END, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("the first farewell\n")
    assert (done.stderr, done.returncode) == ("", 143)


@pytest.mark.parametrize(("mode", "first"), [(0o755, True), (0o1777, False)])
def test_modules_that_others_may_have_put_here_do_not_come_first(
    mode: int, first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(mode)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert main(["resume"]) == 2
    assert sys.path.index("") == (0 if first else len(sys.path) - 1)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("train dqn --agent.gamma 1", "flag --agent.gamma (did you mean --replay.gamma?); asyncrl"),
        ("train dqn --env.n-envs 3", "did you mean --envs-per-actor?"),
        ("train dqn --train-freq 1", "--train-freq (did you mean --limiter.samples-per-insert?)"),
        (
            "train dqn --agent.zeal 1 --agent.gamma=2 --agent.gamma 3",
            "s --agent.zeal, --agent.gamma (",
        ),
        ("train sac --agent.lr 1", "--agent.actor-learning-rate or --agent."),
        ("train dqn -f x.yaml", "unknown flag -f (did you mean --config?)"),
        ("bench tune dqn --second 3", "did you mean --seconds?); asyncrl bench tune dqn --help"),
    ],
)
def test_unknown_flags_are_named_once_with_near_ones(
    argv: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = said(argv, capsys)
    assert code == 2
    assert err.startswith("asyncrl: error: unknown flag")
    assert says in err
    assert err.count("asyncrl ") == 1, "one command lists all flags"
