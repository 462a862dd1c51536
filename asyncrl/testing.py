"""For tests of your own parts: does what you wrote keep its contract?

    from asyncrl.testing import check_agent

    def test_my_agent() -> None:
        check_agent(MyConfig(), EnvConfig(id="CartPole-v1").build().spec)

`asyncrl doctor my_package.my_agent:MyConfig` asks the same on the command line.
"""

from asyncrl.doctor.agent import check_agent as check_agent
