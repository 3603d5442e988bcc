"""The replay of MiniCPM-o sessions: what was heard, up to where it was cut off, what was said, what was seen."""

import base64
import re
from array import array

import pytest

from antiphon.audio import WAV_HEADER_BYTES
from antiphon.runtime.recording.files import decode_lines
from antiphon.runtime.recording.mixing import mix_to_wav, read_wav
from antiphon.server.processes.run import background_server
from support.console.browser import expect, until
from support.server.scripted_server import configured

RATE_HZ = 24_000
LOUD = 600

MODELS = {
    "keeper": {
        "engine": "scripted",
        "speech": [{"at_ms": 400, "until_ms": 1000}],
        "hears": [{"says": "Who is there?"}],
        "answers": [
            {"when": "Who", "lines": [{"text": "It is the keeper.", "aloud_ms": 200}, {"aloud_ms": 20_000}]},
            {"when": "", "say": "You said: {input}"},
        ],
    }
}

SESSION = """async ({mode, init = {}, inputs, until, then = []}) => {
    const socket = new WebSocket(`${location.origin.replace('http', 'ws')}/v1/realtime?mode=${mode}&model=keeper`);
    const canvas = Object.assign(document.createElement('canvas'), {width: 64, height: 48});
    canvas.getContext('2d').fillRect(0, 0, 64, 48);
    const jpeg = canvas.toDataURL('image/jpeg').split(',')[1];
    const buzz = Float32Array.from({length: 3200}, (_, n) => (n % 80 < 40 ? 0.25 : -0.25)); // 200 ms
    const audio = btoa(Array.from(new Uint8Array(buzz.buffer), byte => String.fromCharCode(byte)).join(''));
    const send = event => socket.send(JSON.stringify(event));
    const append = input => send({type: 'input.append', input: {
        ...(mode === 'chat' ? {} : {audio}), ...(mode === 'video' ? {video_frames: [jpeg]} : {}), ...input}});
    const seen = {text: 0, audio: 0, listen: 0, interrupted: 0, done: 0};
    window.leave = () => send({type: 'session.close', reason: 'user_stop'});
    return new Promise((done, fail) => {
        let id = '';
        let count = 0;
        socket.onmessage = ({data}) => {
            const event = JSON.parse(data);
            if (event.type === 'error') fail(data);
            if (event.type === 'session.queue_done') send({type: 'session.init', payload: init});
            if (event.type === 'session.created') { id = event.session_id; inputs.forEach(append); }
            if (event.type === 'response.output.delta') { seen[event.kind] += 1; seen.interrupted += event.interrupted ? 1 : 0; }
            if (event.type === 'response.done') seen.done += 1;
            for (let next = until[count]; next && seen[next[0]] >= next[1]; next = until[count]) {
                count += 1;
                if (count === until.length) done(id);
                else then.forEach(append);
            }
        };
    });
}"""
"""
A client that sends all of `inputs` at once, and `then` when it has seen the first of `until`; its session's id, once it has seen the last.
"""

KEEP_SOUND = """(() => {
    const create = URL.createObjectURL;
    URL.createObjectURL = blob => {
        if (blob.type === 'audio/wav') window.__sound = blob;
        return create.call(URL, blob);
    };
})();"""

SOUND = """async () => {
    const bytes = new Uint8Array(await window.__sound.arrayBuffer());
    let text = '';
    for (let from = 0; from < bytes.length; from += 8192) text += String.fromCharCode(...bytes.subarray(from, from + 8192));
    return btoa(text);
}"""


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    settings = {"recording.when": "always", "speech.enabled": False, "logging.level": "error"}
    with background_server(configured(tmp_path_factory.mktemp("replay"), MODELS, **settings), is_persistent=True) as url:
        yield url


def recorded(visit, **session):
    """The id of a session with these inputs, and its replay."""
    visit.context.add_init_script(KEEP_SOUND)
    page = visit.go("operate/sessions").page
    page.get_by_text("Updates live").wait_for()
    id = page.evaluate(SESSION, session)
    page.get_by_role("table", name="Live sessions").get_by_role("row").filter(has_text=id).wait_for()
    page.evaluate("window.leave()")
    recording = page.get_by_role("table", name="Recordings").get_by_role("row").filter(has_text=id)
    recording.get_by_role("button", name="Replay").click()
    replay = page.get_by_role("region", name="Replay", exact=True)
    replay.get_by_role("slider", name="Time").wait_for()
    return id, replay


def lines_and_files(page, url, id):
    def read(path):
        return page.request.get(f"{url}/v1/sessions/{id}/{path}").body()

    return list(decode_lines(read("events"))), {name: read_wav(read(f"files/{name}")) for name in ("in.wav", "out.wav")}


def loud_spans(file, side):
    """The first and the last loud sample of a channel."""
    loud = [at for at, sample in enumerate(array("h", file[WAV_HEADER_BYTES:])[side::2]) if abs(sample) > LOUD]
    return [loud[0], loud[-1]]


@pytest.mark.parametrize("mode", ["audio", "video"])
def test_sound_ends_where_the_model_was_made_to_listen(visit, url, mode):
    until_seen = [("audio", 20), ("interrupted", 1)]
    id, replay = recorded(visit, mode=mode, inputs=[{}] * 40, until=until_seen, then=[{"force_listen": True}])
    page = visit.page
    ours = base64.b64decode(until(page, lambda: page.evaluate("'__sound' in window") and page.evaluate(SOUND)))
    lines, sounds = lines_and_files(page, url, id)
    mix = mix_to_wav(lines, sounds)
    for side in (0, 1):
        assert loud_spans(ours, side) == pytest.approx(loud_spans(mix, side), abs=RATE_HZ // 1000)
    words = replay.get_by_role("list", name="What was said").get_by_role("listitem")
    expect(words).to_have_text([re.compile(r"Person Who is there\?$"), re.compile(r"Model It is the keeper\. cut off$")])
    if mode == "video":
        expect(replay.get_by_alt_text("What the camera showed")).to_have_js_property("naturalWidth", 64)


def test_a_written_conversation_has_both_sides(visit):
    question = {"messages": [{"role": "user", "content": "Anyone there?"}]}
    streamed, whole = ({**question, "streaming": streaming} for streaming in (True, False))
    _, replay = recorded(visit, mode="chat", inputs=[streamed], until=[("done", 1), ("done", 2)], then=[whole])
    words = replay.get_by_role("list", name="What was said").get_by_role("listitem")
    both = [re.compile(r"Person Anyone there\?$"), re.compile(r"Model You said: Anyone there\?$")]
    expect(words).to_have_text([*both, *both])
