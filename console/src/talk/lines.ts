import { ApiError, credentials, request, socketUrl } from '../lib/api';
import { eventLog } from '../lib/event_log.svelte';
import { subprotocols, type Dialect } from './dialects';

export interface RealtimeEvent {
  type: string;
  [field: string]: unknown;
}

export interface LineEvents {
  onOpen: () => void;
  onEvent: (event: RealtimeEvent) => void;
  /** It ended, and not by us. */
  onEnd: (end: { code: number; reason: string }) => void;
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

export class CallLine implements Line {
  #peer = new RTCPeerConnection();
  #channel: RTCDataChannel;
  #isOurs = false;
  #events: LineEvents;

  /** `onSound` gets the stream of what the model says. */
  constructor(model: string, microphone: MediaStream, events: LineEvents, onSound: (stream: MediaStream) => void) {
    this.#events = events;
    const peer = this.#peer;
    microphone.getAudioTracks().forEach((track) => peer.addTrack(track, microphone));
    peer.ontrack = ({ streams, track }) => onSound(streams[0] ?? new MediaStream([track]));
    peer.onconnectionstatechange = () => {
      if (peer.connectionState === 'failed') this.#end(1006, '');
    };
    this.#channel = peer.createDataChannel('oai-events');
    this.#channel.onopen = () => events.onOpen();
    this.#channel.onmessage = ({ data }: MessageEvent<string>) => events.onEvent(heard(data));
    this.#channel.onclose = () => this.#end(0, 'The server ended the call.');
    void this.#call(model).catch((error: unknown) => this.#end(error instanceof ApiError ? error.status : 0, error instanceof Error ? error.message : String(error)));
  }

  async #call(model: string): Promise<void> {
    const offer = await this.#peer.createOffer();
    await this.#peer.setLocalDescription(offer);
    const form = new FormData();
    form.set('sdp', this.#peer.localDescription?.sdp ?? '');
    form.set('session', JSON.stringify({ type: 'realtime', model }));
    const reply = await request('/v1/realtime/calls', { body: form, source: 'talk' });
    await this.#peer.setRemoteDescription({ type: 'answer', sdp: await reply.text() });
  }

  #end(code: number, reason: string): void {
    if (this.#isOurs) return;
    this.#isOurs = true;
    this.#peer.close();
    eventLog.note('talk', 'came', 'closed', { code, reason });
    this.#events.onEnd({ code, reason });
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
    this.#peer.close();
  }
}
