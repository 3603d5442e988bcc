import { ApiError, credentials, request, socketUrl } from '../lib/api';
import { eventLog } from '../lib/event_log.svelte';
import { subprotocols, type Dialect } from './dialects';

export interface RealtimeEvent {
  type: string;
  [field: string]: unknown;
}

export interface LineEnd {
  /** Of the WebSocket, or the HTTP status of a refusal; 0 if there is none. */
  code: number;
  /** The code of the server's error. */
  error?: string | null;
  reason: string;
}

export interface LineEvents {
  onOpen: () => void;
  onEvent: (event: RealtimeEvent) => void;
  /** It ended, and not by us. */
  onEnd: (end: LineEnd) => void;
}

/** A connection of the Realtime API. */
export interface Line {
  /** False if it was not sent: the line is closed, or so slow that sound would pile up. */
  send(event: RealtimeEvent): boolean;
  close(): void;
  /** Send the sound of another microphone, where the line itself takes it. */
  useMicrophone?(stream: MediaStream): void;
}

/** More than this waits to be sent: sound is dropped then, as a late word is worse than a lost one. */
const MAX_WAITING_BYTES = 256_000;

function heard(text: string): RealtimeEvent {
  const event = JSON.parse(text) as RealtimeEvent;
  eventLog.note('talk', 'came', event.type, event, text.length);
  return event;
}

export class SocketLine implements Line {
  #socket: WebSocket;
  #isOurs = false;

  constructor(model: string, dialect: Dialect, events: LineEvents) {
    const socket = new WebSocket(socketUrl(`/v1/realtime?model=${encodeURIComponent(model)}&queue=1`), subprotocols(dialect, credentials.key));
    this.#socket = socket;
    socket.onopen = () => events.onOpen();
    socket.onmessage = ({ data }: MessageEvent<string>) => events.onEvent(heard(data));
    socket.onclose = ({ code, reason }) => {
      eventLog.note('talk', 'came', `closed ${code}`, { code, reason });
      if (!this.#isOurs) events.onEnd({ code, reason });
    };
  }

  send(event: RealtimeEvent): boolean {
    if (this.#socket.readyState !== WebSocket.OPEN) return false;
    if (event.type === 'input_audio_buffer.append' && this.#socket.bufferedAmount > MAX_WAITING_BYTES) return false;
    const text = JSON.stringify(event);
    this.#socket.send(text);
    eventLog.note('talk', 'sent', event.type, event, text.length);
    return true;
  }

  close(): void {
    this.#isOurs = true;
    this.#socket.close(1000);
  }
}

const NO_WAY = 'No packet of WebRTC gets through to the server. Choose WebSocket in the settings, or ask who runs the server to set `calls.addresses`.';

export class CallLine implements Line {
  #peer = new RTCPeerConnection();
  #channel: RTCDataChannel;
  #isOurs = false;
  #calling = new AbortController();
  #events: LineEvents;

  /** `onSound` gets the stream of what the model says. */
  constructor(model: string, microphone: MediaStream, events: LineEvents, onSound: (stream: MediaStream) => void) {
    this.#events = events;
    const peer = this.#peer;
    microphone.getAudioTracks().forEach((track) => peer.addTrack(track, microphone));
    peer.ontrack = ({ streams, track }) => onSound(streams[0] ?? new MediaStream([track]));
    peer.onconnectionstatechange = () => {
      if (peer.connectionState === 'failed') this.#end({ code: 1006, reason: this.#channel.readyState === 'connecting' ? NO_WAY : '' });
    };
    this.#channel = peer.createDataChannel('oai-events');
    this.#channel.onopen = () => events.onOpen();
    this.#channel.onmessage = ({ data }: MessageEvent<string>) => events.onEvent(heard(data));
    this.#channel.onclose = () => this.#end({ code: 0, reason: 'The server ended the call.' });
    void this.#call(model).catch((error: unknown) => {
      const { status, code } = error instanceof ApiError ? error : { status: 0, code: null };
      this.#end({ code: status, error: code, reason: error instanceof Error ? error.message : String(error) });
    });
  }

  async #call(model: string): Promise<void> {
    const offer = await this.#peer.createOffer();
    await this.#peer.setLocalDescription(offer);
    const form = new FormData();
    form.set('sdp', this.#peer.localDescription?.sdp ?? '');
    form.set('session', JSON.stringify({ type: 'realtime', model }));
    const reply = await request('/v1/realtime/calls?queue=1', { body: form, source: 'talk', signal: this.#calling.signal });
    await this.#peer.setRemoteDescription({ type: 'answer', sdp: await reply.text() });
  }

  #end(end: LineEnd): void {
    if (this.#isOurs) return;
    this.#isOurs = true;
    this.#peer.close();
    eventLog.note('talk', 'came', 'closed', end);
    this.#events.onEnd(end);
  }

  send(event: RealtimeEvent): boolean {
    if (this.#channel.readyState !== 'open') return false;
    const text = JSON.stringify(event);
    this.#channel.send(text);
    eventLog.note('talk', 'sent', event.type, event, text.length);
    return true;
  }

  useMicrophone(stream: MediaStream): void {
    for (const sender of this.#peer.getSenders()) if (sender.track?.kind === 'audio') void sender.replaceTrack(stream.getAudioTracks()[0] ?? null);
  }

  close(): void {
    this.#isOurs = true;
    this.#calling.abort();
    this.#peer.close();
  }
}
