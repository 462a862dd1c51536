"""What users hand over, looked at before anything starts. Does not know what it is for."""

from __future__ import annotations

from asyncrl.env import BatchEnv, EnvSpec, MakeBatchEnv
from asyncrl.errors import ConfigError

_MAKE_ENV = (
    'give EnvConfig(id="CartPole-v1", n_envs=8).build, or for environments of your own '
    "make_batch(MyEnv, n_envs=8), both of asyncrl.envs.gym"
)


def is_agent_config(agent: object) -> bool:
    """Whether this has what an agent's settings have, or is the class of such."""
    return all(hasattr(agent, name) for name in ("build", "build_policy", "extra_columns"))


def require_agent_config(agent: object) -> None:
    """Refuse what is no agent's settings."""
    complete = is_agent_config(agent)
    if complete and isinstance(agent, type):
        raise ConfigError(f"the agent must be settings, got their class; write {agent.__name__}()")
    if not complete:
        raise ConfigError(
            f"the agent must be settings such as DQNConfig(), got {agent!r:.80}, which has not the "
            "methods build, build_policy and extra_columns of asyncrl/agent.py"
        )


def make_batch_env(make_env: MakeBatchEnv, name: str = "make_env") -> BatchEnv:
    """Make environments; refuse a function, an argument of this name, that makes anything else."""
    if not callable(make_env):
        raise ConfigError(
            f"{name} must be a function, got {make_env!r:.80}, because training and evaluations "
            f"make environments of their own; {_MAKE_ENV}"
        )
    env = make_env()
    if not hasattr(env, "n_envs"):
        if hasattr(env, "close"):
            env.close()
        raise ConfigError(
            f"{name} must return a batch of environments, got {env!r:.80}; {_MAKE_ENV}"
        )
    return env


def look_at(make_env: MakeBatchEnv) -> tuple[EnvSpec, int]:
    """Make the environments once, here, where an error is easiest to read."""
    env = make_batch_env(make_env)
    try:
        return env.spec, env.n_envs
    finally:
        env.close()
