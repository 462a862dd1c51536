"""For tests of custom parts: checks that they fulfil their contracts.

    from asyncrl.testing import check_agent

    def test_my_agent() -> None:
        check_agent(MyConfig(), EnvConfig(id="CartPole-v1").build().spec)

`asyncrl doctor my_package.my_agent:MyConfig` runs the same checks.
"""

from asyncrl.tools.doctor.agent import check_agent as check_agent
