"""The toolbox: kinds of tools that come while the server runs."""

import asyncio

import pytest

from antiphon.tools.toolbox import Toolbox


class LateKind:
    """A kind of tool that is known to work only after a trial."""

    types = frozenset({"code_interpreter"})

    def open(self, tools, context):
        raise NotImplementedError

    async def close(self):
        pass


@pytest.mark.parametrize("works", [True, False])
def test_who_wants_a_tool_that_is_being_tried_waits_until_it_is_known_whether_it_works(works):
    async def scenario():
        toolbox = Toolbox()
        outcome = asyncio.Event()

        async def trial():
            await outcome.wait()
            if works:
                toolbox.add(LateKind())

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(trial())
            toolbox.add_trial("code_interpreter", task)
            await toolbox.wait_for_trials({"mcp", "web_search"})  # others don't wait
            waiting = tasks.create_task(toolbox.wait_for_trials({"code_interpreter", "mcp"}))
            gone = tasks.create_task(toolbox.wait_for_trials({"code_interpreter"}))
            await asyncio.sleep(0)
            assert not waiting.done()
            gone.cancel()  # a client that leaves does not end the trial
            await asyncio.wait([gone])
            assert not task.done()
            outcome.set()
            await waiting
            assert toolbox.types == (LateKind.types if works else frozenset())
            await toolbox.wait_for_trials({"code_interpreter"})

    asyncio.run(scenario())
