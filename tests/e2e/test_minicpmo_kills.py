"""
When a process dies, the others notice and continue: these tests observe `docs/reference/minicpmo-failures.md`, row by row.
"""

import base64
import contextlib
import re
import resource
import signal
from pathlib import Path

import pytest

from support.e2e.gateways import PATIENCE_S, SILENCE, Program, peer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "minicpmo-failures.md"
ROWS = {row[0]: tuple(row[1:]) for row in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text(), re.M)}

pytestmark = pytest.mark.anyio

LARGEST_FILE_BYTES = 1_000_000

SETTINGS = """
[server]
drain_s = 1
[recording]
when = "always"
[[models]]
name = "near"
engine = "scripted"
sessions = 1
duplex = { ready_ms = 300 }
[[models]]
name = "far"
engine = "worker"
"""


def kept_whole(told):
    """What is told of a recording, once it is over and all of it is stored."""
    names = {file["name"] for file in told["files"]}
    return told["status"] != "live" and {"in.wav", "events.jsonl"} <= names and told


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def mortal(tmp_path):
    """A gateway that may be killed."""
    return Program(tmp_path, SETTINGS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """A running gateway, which outlives all other processes."""
    program = Program(tmp_path_factory.mktemp("gateway"), SETTINGS)
    with program.running():
        yield program


async def joined(gateway):
    """Return when one worker is there."""
    await gateway.settled("/workers", lambda told: sum(each["model"] == "far" for each in told["workers"]) == 1)


async def served(behind):
    """What happens to a client that waited."""
    await behind.begin()
    await behind.say("input.append", input={"audio": SILENCE})
    await behind.until("listen")
    await behind.say("session.close", reason="user_stop")
    assert await behind.fate() == "`session.closed` `user_stop`, 1000"
    return "is served"


async def free(gateway):
    """What is left of it all: nothing."""
    await gateway.settled("/queue", lambda told: not told["items"] and not told["running_tasks"])
    return "no ticket, no slot in use"


def seen(what, client, behind, after):
    """Hold what was seen against the page."""
    assert ROWS.get(what) == (client, behind, after)


# The worker


async def bring_to(client, step):
    """Have a session come as far as that."""
    if step == "has left the queue":
        await client.until("session.queue_done")
        return
    await client.begin()
    if step == "is being answered":
        await client.speak()


@pytest.mark.parametrize("step", ["has left the queue", "listens", "is being answered"])
async def test_the_worker_is_killed(gateway, step):
    with contextlib.ExitStack() as held:
        process = held.enter_context(gateway.worker())
        await joined(gateway)
        async with peer(gateway) as client, peer(gateway) as behind:
            await bring_to(client, step)
            await behind.until("session.queued")
            process.kill()
            fate = await client.fate()
            held.enter_context(gateway.worker())
            seen(f"worker killed while its client {step}", fate, f"waits for a worker to join, {await served(behind)}", await free(gateway))


async def test_a_worker_is_killed_and_another_is_there(gateway):
    with gateway.worker() as one, contextlib.ExitStack() as held:
        await joined(gateway)
        async with peer(gateway) as client:
            await client.begin()
            held.enter_context(gateway.worker())
            await gateway.settled("/workers", lambda told: sum(each["model"] == "far" for each in told["workers"]) == 2)
            async with peer(gateway) as other, peer(gateway) as behind:
                await other.begin()
                await behind.until("session.queued")
                one.kill()
                fate = await client.fate()
                await other.say("session.close", reason="user_stop")
                assert await other.fate() == "`session.closed` `user_stop`, 1000"
                seen(
                    "one worker of two killed",
                    fate,
                    f"keeps its position in the queue, {await served(behind)} by the other",
                    await free(gateway),
                )


async def test_the_last_worker_is_gone(gateway):
    await gateway.settled("/workers", lambda told: all(each["model"] != "far" for each in told["workers"]))
    async with peer(gateway) as client:
        seen("no worker is there", await client.fate(), "-", await free(gateway))


async def test_a_worker_is_told_to_stop(gateway):
    with contextlib.ExitStack() as held:
        process = held.enter_context(gateway.worker())
        await joined(gateway)
        async with peer(gateway) as client, peer(gateway) as behind:
            await client.begin()
            await behind.until("session.queued")
            process.send_signal(signal.SIGTERM)
            await gateway.settled("/workers", lambda told: any(each["status"] == "draining" for each in told["workers"]))
            await client.speak()
            await client.say("session.close", reason="user_stop")
            fate = await client.fate()
            held.enter_context(gateway.worker())
            seen(
                "worker stopped (SIGTERM)",
                f"goes on; {fate}",
                f"waits for a worker to join, {await served(behind)}",
                await free(gateway),
            )


# The gateway


async def test_the_gateway_is_told_to_stop(mortal):
    with mortal.running() as process, mortal.worker():
        await joined(mortal)
        async with peer(mortal) as client, peer(mortal) as behind:
            await client.begin()
            await behind.until("session.queued")
            process.send_signal(signal.SIGTERM)
            fates = [await client.fate(), await behind.fate()]
        assert process.wait(timeout=PATIENCE_S) == 0
        seen("gateway stopped (SIGTERM)", *fates, "the process ends with 0")


async def test_the_gateway_is_killed_and_started_again(mortal):
    with contextlib.ExitStack() as lasting:
        with mortal.running() as process:
            lasting.enter_context(mortal.worker())
            await joined(mortal)
            async with peer(mortal, resumable="1") as client, peer(mortal) as behind:
                created = await client.begin()
                await client.speak()
                await behind.until("session.queued")
                await mortal.settled(f"/v1/sessions/{created['session_id']}", lambda told: told["status"] == "live")
                await mortal.wrote_sound()
                process.kill()
                fates = [await client.fate(), await behind.fate()]
        with mortal.running():
            await joined(mortal)
            async with peer(mortal, resume=created["resume_token"]) as again:
                back = await again.fate()
            async with peer(mortal) as other:
                after = f"the worker joins again, the next client {await served(other)}"
            kept = await mortal.settled(f"/v1/sessions/{created['session_id']}", kept_whole)
            files = {file["name"]: file["bytes"] for file in kept["files"]}
            assert files["in.wav"] > 44 and files["events.jsonl"] > 0
    seen("gateway killed, and started again", f"{fates[0]}; with its token then {back}", fates[1], f"{after}; recording `{kept['status']}`")


# The disk


async def test_the_disk_is_full_while_a_session_is_recorded(mortal):
    with mortal.running() as process:
        async with peer(mortal, "near", "chat") as client:
            created = await client.begin()
            await mortal.settled(f"/v1/sessions/{created['session_id']}", lambda told: told["status"] == "live")
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LARGEST_FILE_BYTES, LARGEST_FILE_BYTES))
            sound = {"type": "audio", "data": base64.b64encode(bytes(4 * LARGEST_FILE_BYTES)).decode()}
            await client.say("input.append", input={"messages": [{"role": "user", "content": [sound]}]})
            await client.until("response.done")
            await client.say("input.append", input={"messages": [{"role": "user", "content": "Hello"}]})
            assert (await client.until("response.done"))["text"] == "Hello"
            await client.say("session.close", reason="user_stop")
            fate = await client.fate()
        async with peer(mortal, "near") as behind:
            after = await served(behind)
        kept = await mortal.settled(f"/v1/sessions/{created['session_id']}", lambda told: told["status"] != "live" and told)
        assert kept["truncated"]
        seen("disk full while recording", f"is still answered; {fate}", after, f"recording `{kept['status']}`, with the reason")


# The client


async def nothing(_client):
    """It waits, or has left the queue."""


async def begins(client):
    """It sends `session.init`, and does not wait for the answer."""
    await client.say("session.init", payload={})


async def listens(client):
    await begins(client)
    await client.until("session.created")


async def is_answered(client):
    await listens(client)
    await client.speak()


async def says_goodbye(client):
    await listens(client)
    await client.say("session.close", reason="user_stop")


STEPS = {
    "waits": nothing,
    "has left the queue": nothing,
    "has sent `session.init`": begins,
    "listens": listens,
    "is being answered": is_answered,
    "has sent `session.close`": says_goodbye,
}


@pytest.mark.parametrize("how", ["network lost", "tab closed"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_client_is_gone(gateway, step, how):
    async with contextlib.AsyncExitStack() as held:
        if step == "waits":
            first = await held.enter_async_context(peer(gateway, "near"))
            await first.begin()
        client = await held.enter_async_context(peer(gateway, "near"))
        await client.hear()
        behind = await held.enter_async_context(peer(gateway, "near"))
        await behind.until("session.queued")
        await STEPS[step](client)
        if how == "network lost":
            client.vanish()
        else:
            await client.ws.close(code=1001)
        if step == "waits":
            assert (await behind.until("session.queue_update"))["position"] == 1
            await first.say("session.close", reason="user_stop")
        seen(f"{how} while the client {step}", "-", await served(behind), await free(gateway))


async def test_a_client_comes_back(gateway):
    async with peer(gateway, "near", resumable="1") as client:
        created = await client.begin()
        await client.speak()
        last = client.events[-1]["seq"]
        client.vanish()
    async with peer(gateway, "near") as behind:
        await behind.until("session.queued")
        async with peer(gateway, "near", resume=created["resume_token"], after=last) as again:
            await again.until("session.resumed")
            assert [event["seq"] for event in again.events] == list(range(last + 1, last + 1 + len(again.events)))
            await again.say("session.close", reason="user_stop")
            fate = f"`session.resumed` after what it missed; {await again.fate()}"
        seen("network lost, and the client comes back", fate, await served(behind), await free(gateway))
