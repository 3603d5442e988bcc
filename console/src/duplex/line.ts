import { credentials, socketUrl } from '../lib/api';
import { eventLog } from '../lib/event_log.svelte';
import type { ClientEvent, ServerEvent } from './protocol';

export interface LineEvents {
  onEvent: (event: ServerEvent) => void;
  /** It is closed, and not by us. */
  onEnd: (code: number, wasOpen: boolean) => void;
}

/** More than this waits to be sent: sound is left out then, as a late word is worse than a lost one. */
const MAX_WAITING_BYTES = 256_000;
/** Pictures are left out before sound is. */
const MAX_WAITING_FOR_PICTURES = 64_000;
const LEAVE_MS = 2000;

/** A WebSocket of the MiniCPM-o protocol. */
export class Line {
  #socket: WebSocket;
  #events: LineEvents | null;
  #wasOpen = false;

  constructor(query: Record<string, string>, events: LineEvents) {
    this.#events = events;
    // A browser drops a WebSocket whose server selects none of the subprotocols, so the key is never the only one.
    const protocols = ['map.realtime', ...(credentials.key ? [`openai-insecure-api-key.${credentials.key}`] : [])];
    const socket = new WebSocket(socketUrl(`/v1/realtime?${new URLSearchParams(query)}`), protocols);
    this.#socket = socket;
    socket.onopen = () => (this.#wasOpen = true);
    socket.onmessage = ({ data }: MessageEvent<string>) => {
      const event = JSON.parse(data) as ServerEvent;
      eventLog.note('duplex', 'came', event.type, event, data.length);
      this.#events?.onEvent(event);
    };
    socket.onclose = ({ code, reason }) => {
      eventLog.note('duplex', 'came', `closed ${code}`, { code, reason });
      this.#events?.onEnd(code, this.#wasOpen);
    };
  }

  /** Whether pictures would only pile up. */
  get isSlow(): boolean {
    return this.#socket.bufferedAmount > MAX_WAITING_FOR_PICTURES;
  }

  /** False if it was not sent: the line is closed, or so slow that sound would pile up. */
  send(event: ClientEvent, canDrop = false): boolean {
    if (this.#socket.readyState !== WebSocket.OPEN) return false;
    if (canDrop && this.#socket.bufferedAmount > MAX_WAITING_BYTES) return false;
    const text = JSON.stringify(event);
    this.#socket.send(text);
    eventLog.note('duplex', 'sent', event.type, event, text.length);
    return true;
  }

  /** End the session, and hear of it no more. The server closes; if it is away, we do. */
  leave(): void {
    this.#events = null;
    if (!this.send({ type: 'session.close', reason: 'user_stop' })) return this.#socket.close(1000);
    setTimeout(() => this.#socket.close(1000), LEAVE_MS);
  }
}
