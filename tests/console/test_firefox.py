"""The page in Firefox, by WebDriver BiDi: a chat, and a conversation as far as this machine has something to play on."""

import asyncio
import contextlib
import itertools
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import pytest

from antiphon.server.processes.run import background_server
from support.server.scripted_server import configured

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
PATIENCE_S = 120
LISTENS = re.compile(r"WebDriver BiDi listening on (ws://\S+)")

pytestmark = [pytest.mark.long, pytest.mark.skipif(FIREFOX is None, reason="no Firefox is installed")]

MODELS = {
    "host": {
        "engine": "scripted",
        "hears": [{"says": "Hi"}],
        "answers": [{"lines": [{"text": "It is **Paris**.\n\n```python\nprint(1)\n```"}]}],
    }
}

PREFERENCES = {
    "media.navigator.streams.fake": True,
    "media.navigator.permission.disabled": True,
    "media.autoplay.default": 0,
    "app.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
}

WATCH = """() => {
    window.troubles = [];
    const note = (text) => window.troubles.push(text);
    document.addEventListener('securitypolicyviolation', (e) => note(`${e.violatedDirective} ${e.blockedURI}`));
    addEventListener('error', (e) => note(e.message));
    addEventListener('unhandledrejection', (e) => note(String(e.reason)));
    if (location.protocol === 'http:') localStorage.setItem('antiphon.models', '{"chat": "host", "talk": "host"}');
}"""

SEND = """(text) => {
    const field = document.querySelector('#draft');
    if (!field || !document.querySelector('[aria-label="Model: host"]')) return false;
    field.focus();
    field.value = text;
    field.dispatchEvent(new Event('input', {bubbles: true}));
    return true;
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with background_server(configured(tmp_path_factory.mktemp("firefox"), MODELS, **{"logging.level": "error"})) as url:
        yield url


class Firefox:
    """A tab, driven by WebDriver BiDi: https://w3c.github.io/webdriver-bidi/"""

    def __init__(self, socket):
        self._socket, self._numbers, self.context = socket, itertools.count(1), ""

    async def command(self, method, **parameters):
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while (reply := json.loads(await self._socket.receive_str(timeout=PATIENCE_S))).get("id") != number:
            pass
        assert reply["type"] == "success", reply
        return reply["result"]

    async def call(self, function, *arguments):
        given = [{"type": "string", "value": argument} for argument in arguments]
        done = await self.command(
            "script.callFunction",
            functionDeclaration=function,
            arguments=given,
            target={"context": self.context},
            awaitPromise=True,
            userActivation=True,
        )
        assert done["type"] == "success", done
        return done["result"].get("value")

    async def until(self, function, *arguments):
        async with asyncio.timeout(PATIENCE_S):
            while not (value := await self.call(function, *arguments)):  # noqa: ASYNC110 - the page tells of nothing
                await asyncio.sleep(0.05)
        return value

    async def press(self, key):
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        await self.command("input.performActions", context=self.context, actions=[{"type": "key", "id": "keys", "actions": actions}])


@contextlib.asynccontextmanager
async def firefox(folder):
    lines = "".join(f'user_pref("{name}", {json.dumps(value)});\n' for name, value in PREFERENCES.items())
    (folder / "user.js").write_text(lines)
    command = [FIREFOX, "--headless", "--no-remote", "--remote-debugging-port=0", "--profile", str(folder)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not (listens := LISTENS.search((await process.stderr.readline()).decode())):
                assert not process.stderr.at_eof()
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{listens[1]}/session", max_msg_size=0) as socket:
            tab = Firefox(socket)
            await tab.command("session.new", capabilities={})
            tab.context = (await tab.command("browsingContext.getTree"))["contexts"][0]["context"]
            await tab.command("script.addPreloadScript", functionDeclaration=WATCH)
            yield tab
            with contextlib.suppress(AssertionError, TypeError):
                await tab.command("browser.close")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def chat_and_talk(folder, url):
    async with firefox(folder) as tab:
        await tab.command("browsingContext.navigate", context=tab.context, url=f"{url}/#/chat", wait="complete")
        await tab.until(SEND, "What is the capital of France?")
        await tab.press("\ue007")
        await tab.until("() => document.querySelector('article strong')?.textContent === 'Paris'")
        await tab.until("() => document.querySelector('article .hljs-built_in') !== null")
        await tab.until("() => document.querySelector('[aria-label=\"Latest answer\"]').textContent.includes('It is Paris.')")
        await tab.call("() => { location.hash = '#/talk'; }")
        await tab.until("() => document.querySelector('button.big:not(:disabled)') !== null")
        await tab.call("() => document.querySelector('button.big').click()")
        # without anything to play on it can't begin, and says so
        ends = "document.body.innerText.includes('The browser can play no sound')"
        hears = "/Listening|Hearing you|Speaking/.test(document.querySelector('button.big').innerText)"
        await tab.until(f"() => {ends} || {hears}")
        assert await tab.call("() => troubles.join()") == ""


def test_a_chat_and_the_start_of_a_conversation(tmp_path, url):
    with ThreadPoolExecutor(1) as thread:  # Playwright's loop is in this one
        thread.submit(asyncio.run, chat_and_talk(tmp_path, url)).result()
