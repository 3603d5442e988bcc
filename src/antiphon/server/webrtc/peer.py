"""
The WebRTC connection of a call. As in OpenAI's API, it has one audio track each way, and a data channel that the client
opens.

Importing this module loads aiortc. Given an invalid offer, aiortc raises all kinds of exceptions.
"""

import asyncio
import contextlib
from typing import Protocol, cast

from aiortc import MediaStreamTrack, RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from antiphon.errors import ApiError, ClientError
from antiphon.server.webrtc.client import DataChannel
from antiphon.server.webrtc.network import Network
from antiphon.server.webrtc.opus import InputAudioReceiver, OutputAudioTrack
from antiphon.server.webrtc.playback import PlaybackQueue

CHANNEL_LABEL = "oai-events"

CONNECT_S = 30.0
"""How long a client may take to connect after the answer."""

DRAIN_S = 1.0
"""How long the last events may take to be sent."""

CLOSE_S = 5.0

MAX_SECTIONS = 8
"""Media sections allowed in an offer. Audio and events need two, and each section could open sockets."""


class CallListener(Protocol):
    """Receives what arrives on the connection."""

    def on_channel(self, channel: DataChannel) -> None:
        """The data channel is open."""

    def on_text(self, text: bytes) -> None:
        """A message on the data channel."""

    def on_audio(self, pcm: bytes) -> None:
        """Audio from the client: s16le at 24 kHz."""

    def on_disconnect(self) -> None:
        """The client is no longer reachable; may be called more than once."""


class CallPeer:
    """
    The connection of one call.

    Args:
        playback: audio for the client.
    """

    def __init__(self, network: Network, playback: PlaybackQueue, listener: CallListener) -> None:
        self._network = network
        self._listener = listener
        # By default aiortc asks Google's STUN server for this machine's address.
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._audio_receiver = InputAudioReceiver(listener.on_audio)
        self._output_track = OutputAudioTrack(playback, self._audio_receiver.tick)
        self._channel: RTCDataChannel | None = None
        self._channel_settled = asyncio.Event()  # the channel is open, or will never be
        self._receive_task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._connection.on("connectionstatechange", self._on_state)
        self._connection.on("datachannel", self._on_channel)

    async def answer(self, offer: str, tasks: asyncio.TaskGroup) -> str:
        """
        The SDP answer to a client's offer. From here on, the client has `CONNECT_S` to connect.

        Args:
            tasks: runs the task that receives the client's audio.

        Raises:
            ClientError: the offer is invalid, or has no audio.
        """
        connection = self._connection
        try:
            await connection.setRemoteDescription(
                RTCSessionDescription(_replace_candidates(offer, self._network.placeholder_candidate), "offer")
            )
            self._start_media(tasks)
            await connection.setLocalDescription(await connection.createAnswer())
        except ApiError:
            raise
        except Exception as error:  # aiortc has no common exception for invalid offers
            raise invalid_offer() from error
        self._deadline = asyncio.get_running_loop().call_later(CONNECT_S, self._on_disconnect)
        return str(connection.localDescription.sdp)

    async def drain(self, *, connects: bool) -> None:
        """Wait a moment until the last events are sent; before, if it `connects`, until the client has connected."""
        if connects:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_S):
                    await self._channel_settled.wait()
        channel = self._channel
        if channel is None or not channel.bufferedAmount:
            return
        has_left = asyncio.Event()
        channel.on("bufferedamountlow", has_left.set)
        channel.on("close", has_left.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await has_left.wait()

    async def close(self) -> None:
        """Close the connection and its sockets; idempotent."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._receive_task is not None:
            self._receive_task.cancel()
        closing = asyncio.ensure_future(self._connection.close())  # noqa: TID251 - awaited here, and shielded so that it completes
        # aiortc raises AttributeError for connections that a bad offer left incomplete.
        with contextlib.suppress(TimeoutError, AttributeError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(closing)
        self._release()

    def _release(self) -> None:
        """Part from aiortc's objects: they refer to each other, and what they hold is freed by a full collection only."""
        self._receive_task = None
        self._connection.remove_all_listeners()
        if self._channel is not None:
            self._channel.remove_all_listeners()
        self._output_track.release()

    # Media

    def _start_media(self, tasks: asyncio.TaskGroup) -> None:
        """Use the first audio section in both directions, and decline the others."""
        transceivers = self._connection.getTransceivers()
        audio_transceiver = next(each for each in transceivers if each.kind == "audio")
        for each in transceivers:
            each.direction = "sendrecv" if each is audio_transceiver else "inactive"
        audio_transceiver.sender.replaceTrack(cast(MediaStreamTrack, self._output_track))  # has the members that aiortc uses
        if audio_transceiver.receiver.track is not None:
            self._receive_task = tasks.create_task(self._receive_audio(audio_transceiver.receiver.track))
        # A set: sections that are bundled (RFC 9143) share one transport.
        transports = {each.receiver.transport for each in transceivers}
        if self._connection.sctp is not None:
            transports.add(self._connection.sctp.transport)
        for transport in transports:
            self._network.bind(transport.transport.iceGatherer._connection)

    async def _receive_audio(self, track: MediaStreamTrack) -> None:
        with contextlib.suppress(MediaStreamError):
            while True:
                self._audio_receiver.receive(cast(AudioFrame, await track.recv()))

    # Events

    def _on_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL_LABEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._on_message)
        channel.on("close", self._listener.on_disconnect)
        self._listener.on_channel(channel)
        self._channel_settled.set()

    def _on_message(self, message: str | bytes) -> None:
        self._listener.on_text(message.encode() if isinstance(message, str) else message)

    def _on_state(self) -> None:
        state = self._connection.connectionState
        if state == "connected" and self._deadline is not None:
            self._deadline.cancel()
        elif state in ("failed", "closed"):
            self._on_disconnect()

    def _on_disconnect(self) -> None:
        self._channel_settled.set()
        self._listener.on_disconnect()


def invalid_offer(hint: str = "Expected the SDP of a WebRTC offer, as a browser creates it.") -> ClientError:
    """The SDP offer is invalid."""
    return ClientError(f"Invalid SDP offer. {hint}", code="invalid_offer")


def _replace_candidates(offer: str, placeholder: str) -> str:
    """
    The offer without its candidates; see `network` for why.

    Args:
        placeholder: the candidate that takes their place.
    """
    lines: list[str] = []
    sections = []
    for line in offer.splitlines():
        if line.startswith("m="):
            sections.append(line)
            lines += (line, f"a={placeholder}")
        elif not line.startswith(("a=candidate:", "a=end-of-candidates")):
            lines.append(line)
    if not any(section.startswith("m=audio ") for section in sections):
        raise invalid_offer("Expected an audio section.")
    if len(sections) > MAX_SECTIONS:
        raise invalid_offer(f"Expected at most {MAX_SECTIONS} media sections, but got {len(sections)}.")
    return "\r\n".join(lines) + "\r\n"
