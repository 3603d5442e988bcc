"""A WebRTC caller that sends tones and records what it receives."""

import asyncio
import json
from contextlib import asynccontextmanager
from fractions import Fraction

import aiohttp
import av
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from antiphon.server.webrtc.network import Network

PATIENCE_S = 20
RATE_HZ = 48_000
FRAME = 960
AUDIBLE = 300


class Tones(MediaStreamTrack):
    """A track of silence in real time, with tones on request."""

    kind = "audio"

    def __init__(self):
        super().__init__()
        self._sent = self._tone = 0
        self._begun_at = None

    def speak(self, ms):
        self._tone = ms // 20

    async def recv(self):
        loop = asyncio.get_running_loop()
        self._begun_at = self._begun_at or loop.time()
        await asyncio.sleep(self._begun_at + self._sent * 0.02 - loop.time())
        samples = np.zeros((1, FRAME), np.int16)
        if self._tone:
            self._tone -= 1
            samples[0] = 8000 * np.sin(2 * np.pi * 440 * np.arange(FRAME) / RATE_HZ)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, self._sent * FRAME, Fraction(1, RATE_HZ)
        self._sent += 1
        return frame


class Caller:
    """One call; `audible` is the number of received frames that are not silent."""

    def __init__(self, connection, tones, events):
        self.connection = connection
        self.tones = tones
        self.call_id = None
        self.channel = None
        self.audible = self._awaited = 0
        self._is_audible = asyncio.Event()
        self.ended = asyncio.Event()
        self._events = events

    async def say(self, kind, **fields):
        self.channel.send(json.dumps({"type": kind, **fields}))

    async def hear(self):
        return await asyncio.wait_for(self._events.get(), PATIENCE_S)

    async def until(self, kind):
        heard = [await self.hear()]
        while heard[-1]["type"] != kind:
            heard.append(await self.hear())
        return heard

    async def listen_to(self, frames):
        """Wait for more frames that are not silent."""
        self._awaited = self.audible + frames
        self._is_audible.clear()
        await asyncio.wait_for(self._is_audible.wait(), PATIENCE_S)

    async def listen(self, track):
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            self.audible += int(np.abs(frame.to_ndarray()).max() > AUDIBLE)
            if self.audible >= self._awaited:
                self._is_audible.set()


async def offered(connection):
    """An offer with loopback addresses only."""
    offer = await connection.createOffer()
    for each in {
        *(one.receiver.transport for one in connection.getTransceivers()),
        *([connection.sctp.transport] if connection.sctp else []),
    }:
        Network(["127.0.0.1"]).bind(each.transport.iceGatherer._connection)
    await connection.setLocalDescription(offer)
    return connection.localDescription.sdp


async def posted_sdp(url, sdp, key=None, path="/v1/realtime/calls", **request):
    """The status, the body and the headers of an answer."""
    headers = {"content-type": "application/sdp", **({"authorization": f"Bearer {key}"} if key else {})}
    if isinstance(sdp, aiohttp.FormData):
        del headers["content-type"]
    async with aiohttp.ClientSession() as http, http.post(url + path, data=sdp, headers=headers, params=request) as reply:
        return reply.status, await reply.text(), reply.headers


@asynccontextmanager
async def calling(url, key=None, session=None, video=False, **query):
    """A connected call whose first event has not been read."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    events = asyncio.Queue()
    caller = Caller(connection, Tones(), events)
    caller.channel = connection.createDataChannel("oai-events")
    caller.channel.on("message", lambda text: events.put_nowait(json.loads(text)))
    is_open = asyncio.Event()
    caller.channel.on("open", is_open.set)
    caller.channel.on("close", caller.ended.set)
    connection.addTrack(caller.tones)
    if video:
        connection.addTransceiver("video", "recvonly")
    async with asyncio.TaskGroup() as tasks:
        connection.on("track", lambda track: tasks.create_task(caller.listen(track)))
        try:
            sdp = await offered(connection)
            if session is not None:
                form = aiohttp.FormData(default_to_multipart=True)
                form.add_field("sdp", sdp, content_type="application/sdp")
                form.add_field("session", json.dumps(session), content_type="application/json")
                sdp = form
            status, answer, headers = await posted_sdp(url, sdp, key, **query)
            assert status == 201, answer
            assert headers["content-type"] == "application/sdp"
            caller.call_id = headers["location"].removeprefix("/v1/realtime/calls/")
            await connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
            await asyncio.wait_for(is_open.wait(), PATIENCE_S)
            yield caller
        finally:
            await connection.close()
