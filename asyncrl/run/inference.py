"""The server of inference of a run: in the learner's process, or in a separate one."""

from __future__ import annotations

from asyncrl.actor.inference_server import InferenceServerSpec, InferenceThread, check_served, place
from asyncrl.core.agent import BuildPolicy, PolicyContext
from asyncrl.core.inference import InferenceAddress
from asyncrl.core.interrupter import Interrupter
from asyncrl.core.messages import Peer
from asyncrl.core.types import ActorId
from asyncrl.fleet.actor_manager import MakeSpec
from asyncrl.run.launchers import SERVER
from asyncrl.run.plan import Admit, RunPlan


class ServedInference:
    """Computes the networks of a plan's actors, which then build none.

    So they need no torch, if their policies allow it.
    """

    def __init__(self, plan: RunPlan, address: InferenceAddress, admit: Admit) -> None:
        """Raise if no server can compute the networks of the actors' policies.

        It listens at this address; `admit` gives it its transport.
        """
        spec, choosers = plan.seen.spec, dict[int, BuildPolicy]()
        for agent in plan.actor_agents:
            if id(agent) not in choosers:
                policy = agent.build_policy(spec, PolicyContext(seed=0))
                choosers[id(agent)] = check_served(policy, spec) or agent.build_policy
        place(policy, plan.config.serving.device)
        self.build_policy = [choosers[id(agent)] for agent in plan.actor_agents]
        """What each actor builds: the half of its policy that chooses, if there is such a half."""
        self.address, self._plan, self._admit = address, plan, admit

    def specs(self) -> dict[ActorId, MakeSpec]:
        """Return what makes the spec of the server's process, by slot, if it has its own."""
        return {SERVER: self._spec} if self._plan.config.inference == "server" else {}

    def thread(self, incarnation: int, interrupter: Interrupter) -> InferenceThread | None:
        """Return the server for the learner's process, unless it has its own."""
        if self._plan.config.inference == "server":
            return None
        peer = Peer(actor_id=SERVER, incarnation=incarnation)
        return InferenceThread(self._spec, peer, interrupter)

    def _spec(self, peer: Peer) -> InferenceServerSpec:
        plan, config = self._plan, self._plan.config
        return InferenceServerSpec(
            env_spec=plan.seen.spec,
            agent=plan.agent,
            transport=self._admit(peer),
            address=self.address,
            seed=config.seed,
            serving=config.serving,
            owns_process=config.launcher != "thread",
        )
