import { fromBase64, toBase64 } from '../audio/base64';
import { explainDevice } from '../audio/devices.svelte';
import { Sound } from '../audio/sound.svelte';
import { start } from '../lib/api';
import { session } from '../lib/session.svelte';
import { generalName, sessionOf, type Dialect, type Settings } from './dialects';
import { CallLine, SocketLine, type Line, type LineEnd, type RealtimeEvent } from './lines';
import { Conversation } from './conversation.svelte';
import type { Call, ServerCall } from './turns.svelte';

export type TalkState = 'idle' | 'asking' | 'queued' | 'connecting' | 'listening' | 'hearing' | 'thinking' | 'speaking' | 'lost' | 'failed';
export type Transport = 'websocket' | 'webrtc';

export interface Choice extends Settings {
  model: string;
  dialect: Dialect;
  transport: Transport;
}

export interface Place {
  position: number;
  /** The place in the line when it was told first. */
  first: number;
  of: number;
  ticket: string;
  wait_s: number | null;
}

const RATE = 24_000;
const PIECE = 960; // 40 ms
const PIECE_MS = (PIECE / RATE) * 1000;
const SHORTEST_MS = 120; // what is shorter, the server refuses to take for a turn
const TRIES = 4;
const TRY_AFTER_MS = 500; // doubled each time
const MAY_COME_BACK = [1001, 1006, 1012]; // going away, cut off, restarting: RFC 6455 and IANA's registry
/** Errors of messages that crossed with the end of what they were about. */
const CROSSED = ['response_cancel_not_active'];

/** A spoken conversation: microphone, line and loudspeaker. */
export class Talk {
  state = $state<TalkState>('idle');
  problem = $state<{ code: string; message: string } | null>(null);
  /** What is wrong, while the conversation goes on. */
  notice = $state('');
  place = $state<Place | null>(null);
  voice = $state('');
  isInterrupted = $state(false);
  isHolding = $state(false);
  readonly conversation = new Conversation();
  sound = $state.raw<Sound | null>(null);
  choice = $state.raw<Choice | null>(null);
  #line: Line | null = null;
  #sent_ms = 0;
  #pieceAt = 0;
  #held_ms = 0;
  #dropped_ms = 0;
  #padding_ms = 300;
  #isReady = false;
  #tries = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #player: HTMLAudioElement | null = null;
  #wake: WakeLockSentinel | null = null;

  get isLive(): boolean {
    return this.state !== 'idle' && this.state !== 'failed';
  }

  /** Whether what is said is heard. */
  get isOpen(): boolean {
    return this.isLive && !['asking', 'queued', 'connecting', 'lost'].includes(this.state);
  }

  get isMuted(): boolean {
    return this.sound?.isMuted ?? false;
  }

  /** Begin; call it in a click. */
  async start(choice: Choice): Promise<void> {
    if (this.isLive) return;
    this.choice = choice;
    this.problem = null;
    this.notice = '';
    this.state = 'asking';
    this.conversation.clear();
    let sound: Sound | null = null;
    try {
      sound = new Sound({
        capture: { rate: RATE, size: PIECE, format: 's16' },
        playRate: RATE,
        onPiece: (samples) => this.#onPiece(samples),
        onCut: (cut) => this.#onCut(cut),
        onQuiet: () => this.#onQuiet(),
        onInterruption: (isInterrupted) => (this.isInterrupted = isInterrupted),
      });
      this.sound = sound;
      await sound.open();
      if (this.sound !== sound) return sound.close(); // stopped meanwhile
      this.isInterrupted = false;
      sound.stream!.getAudioTracks().forEach((track) => (track.onended = () => this.#onUnplugged()));
    } catch (error) {
      sound?.close(); // stopped meanwhile, or here: the microphone is let go
      if (this.sound === sound) this.#fail(explainDevice(error) ?? { code: 'sound', message: error instanceof Error ? error.message : String(error) });
      return;
    }
    this.#tries = 0;
    this.#connect();
    await this.stayAwake();
  }

  /** Keep the screen of a phone on. Browsers let go of it in a hidden tab: call it again when the tab is shown. */
  async stayAwake(): Promise<void> {
    if (!this.isLive || document.hidden || (this.#wake && !this.#wake.released)) return;
    this.#wake = (await navigator.wakeLock?.request('screen').catch(() => null)) ?? null;
    if (!this.isLive) void this.#wake?.release();
  }

  stop(): void {
    this.#release();
    this.state = 'idle';
  }

  #release(): void {
    clearTimeout(this.#timer);
    this.#line?.close();
    this.#line = null;
    this.sound?.close();
    this.sound = null;
    this.#unhear();
    this.isHolding = this.#isReady = this.isInterrupted = false;
    this.place = null;
    void this.#wake?.release();
    this.#wake = null;
  }

  #fail(problem: { code: string; message: string }): void {
    this.#release();
    this.problem = problem;
    this.state = 'failed';
  }

  #connect(): void {
    const choice = this.choice!;
    if (this.state !== 'lost') this.state = 'connecting';
    this.#sent_ms = this.#held_ms = 0;
    this.#isReady = false;
    this.#allow();
    const isCurrent = (): boolean => this.#line === line;
    const events = {
      onOpen: () => isCurrent() && this.#onOpen(),
      onEvent: (event: RealtimeEvent) => isCurrent() && this.#onEvent(event),
      onEnd: (end: LineEnd) => isCurrent() && this.#onEnd(end),
    };
    const line: Line =
      choice.transport === 'webrtc'
        ? new CallLine(choice.model, this.sound!.stream!, events, (stream) => this.#hearStream(stream))
        : new SocketLine(choice.model, choice.dialect, events);
    this.#line = line;
  }

  #hearStream(stream: MediaStream): void {
    this.#unhear();
    this.#player = new Audio();
    this.#player.srcObject = stream;
    this.#player.autoplay = true;
    void this.#player.play().catch(() => undefined);
    this.sound?.meter(stream);
  }

  #unhear(): void {
    if (this.#player) this.#player.srcObject = null;
    this.#player = null;
  }

  #onOpen(): void {
    const choice = this.choice!;
    this.#send({ type: 'session.update', session: sessionOf(choice.dialect, choice, choice.transport === 'webrtc') });
    for (const item of this.conversation.items(choice.dialect)) this.#send({ type: 'conversation.item.create', item });
  }

  #onEnd({ code, error, reason }: LineEnd): void {
    const began = this.conversation.beganAt > 0;
    if (!began && code === 1006 && session.isStarting) {
      const line = this.#line;
      void start.over().then(() => { if (this.#line === line) this.#connect(); });
      return;
    }
    this.sound?.flush();
    this.isHolding = false;
    if (!began || !MAY_COME_BACK.includes(code) || this.#tries >= TRIES) {
      const said = this.#isReady || began ? 'The server ended the conversation.' : 'The server did not take the conversation.';
      const lost = code === 1006 && began ? 'The connection to the server was lost.' : '';
      this.#fail({ code: error || (code ? String(code) : 'ended'), message: reason || lost || this.notice || said });
      return;
    }
    this.state = 'lost';
    this.#isReady = false;
    this.#line?.close();
    this.conversation.forget();
    this.#timer = setTimeout(() => { if (this.state === 'lost') this.#connect(); }, TRY_AFTER_MS * 2 ** this.#tries++);
  }

  #send(event: RealtimeEvent): boolean {
    return this.#line?.send(event) ?? false;
  }

  /** Take other settings; those that a session can't change wait for the next one. */
  change(choice: Choice): void {
    if (!this.isLive || !this.choice) return;
    const { model, dialect, transport, voice } = this.choice;
    if (this.isHolding && choice.handsFree) this.letGo();
    this.choice = { ...choice, model, dialect, transport, voice };
    this.#allow();
    if (!this.#isReady) return;
    this.#send({ type: 'session.update', session: sessionOf(dialect, { ...this.choice, voice: '' }, transport === 'webrtc') });
  }

  // The microphone

  #onPiece(samples: ArrayBuffer): void {
    if (!this.#isReady || this.choice!.transport === 'webrtc') return;
    if (!this.choice!.handsFree && !this.isHolding) return;
    if (!this.#send({ type: 'input_audio_buffer.append', audio: toBase64(new Uint8Array(samples)) })) {
      this.#dropped_ms += PIECE_MS;
      this.notice = `The line is too slow: ${(this.#dropped_ms / 1000).toFixed(1)} s of what you said were left out.`;
      return;
    }
    this.#pieceAt = performance.now();
    this.#sent_ms += PIECE_MS;
    if (this.isHolding) this.#held_ms += PIECE_MS;
  }

  /** When a moment of the sound that was sent was spoken. */
  #momentOf(audio_ms: unknown): number {
    if (typeof audio_ms !== 'number' || !this.#pieceAt) return performance.now();
    return Math.min(performance.now(), this.#pieceAt - (this.#sent_ms - audio_ms));
  }

  /** A call sends all that its tracks give: they give nothing while it waits, is muted, or not held. */
  #allow(): void {
    const isHeard = this.choice!.transport !== 'webrtc' || (this.#isReady && (this.choice!.handsFree || this.isHolding));
    const isAllowed = !this.isMuted && isHeard;
    this.sound?.stream?.getAudioTracks().forEach((track) => (track.enabled = isAllowed));
  }

  mute(isMuted: boolean): void {
    if (!this.sound) return;
    this.sound.isMuted = isMuted;
    this.#allow();
  }

  #onUnplugged(): void {
    if (this.sound) void this.useMicrophone();
  }

  /** Take the microphone that is chosen now; the system's own if that is gone. */
  async useMicrophone(): Promise<void> {
    try {
      await this.sound?.useMicrophone();
      const stream = this.sound?.stream;
      if (!stream) return;
      stream.getAudioTracks().forEach((track) => (track.onended = () => this.#onUnplugged()));
      this.#line?.useMicrophone?.(stream);
      this.#allow();
    } catch (error) {
      this.notice = explainDevice(error)?.message ?? String(error);
    }
  }

  /** The system gave sound back: take it up. */
  resume(): void {
    this.sound?.resume();
    void this.#player?.play().catch(() => undefined);
  }

  /** Push to talk: the person begins. */
  hold(): void {
    if (!this.#isReady || this.isHolding || this.isMuted || this.choice!.handsFree) return;
    this.interrupt(performance.now());
    this.#held_ms = 0;
    this.notice = '';
    this.isHolding = true;
    this.#allow();
    this.#send({ type: 'input_audio_buffer.clear' });
    this.state = 'hearing';
  }

  /** Push to talk: the person is done. */
  letGo(): void {
    if (!this.isHolding) return;
    this.isHolding = false;
    this.#allow();
    if (this.#held_ms < SHORTEST_MS && this.choice!.transport !== 'webrtc') {
      this.#send({ type: 'input_audio_buffer.clear' });
      this.notice = 'Hold it while you speak.';
      this.state = 'listening';
      return;
    }
    this.conversation.begin().end = performance.now();
    this.#send({ type: 'input_audio_buffer.commit' });
    this.#send({ type: 'response.create' });
    this.state = 'thinking';
  }

  /** Say something by typing it. */
  type(text: string): void {
    if (!this.#isReady) return;
    this.interrupt();
    Object.assign(this.conversation.begin(), { said: text, isTyped: true, end: performance.now() });
    this.#send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content: [{ type: 'input_text', text }] } });
    this.#send({ type: 'response.create' });
    this.state = 'thinking';
  }

  /** Stop the answer. `spokenAt` is when the person began to speak over it. */
  interrupt(spokenAt = 0): void {
    this.conversation.isInterrupting(spokenAt);
    if (this.conversation.isAnswering) {
      this.#send({ type: 'response.cancel' });
      this.conversation.drop(this.sound?.isPlaying || this.choice?.transport === 'webrtc');
    }
    this.#silence();
    if (this.state === 'speaking' || this.state === 'thinking') this.state = 'listening';
  }

  #silence(): void {
    if (this.choice?.transport === 'webrtc') {
      if (this.state === 'speaking') this.#send({ type: 'output_audio_buffer.clear' });
    } else if (this.sound?.isPlaying) this.sound.flush();
  }

  giveOutput(call: Call, output: string): void {
    call.output = output;
    this.#send({ type: 'conversation.item.create', item: { type: 'function_call_output', call_id: call.callId, output } });
    const waits = this.conversation.turns.some((turn) => turn.calls.some((each) => each.output === null));
    if (waits) return; // the model wants all of them
    this.#send({ type: 'response.create' });
    this.state = 'thinking';
  }

  decide(call: ServerCall, approve: boolean): void {
    call.state = approve ? 'approved' : 'refused';
    this.#send({ type: 'conversation.item.create', item: { type: 'mcp_approval_response', approval_request_id: call.id, approve } });
    this.state = 'thinking';
  }

  // The loudspeaker

  #onCut(cut: { item: string; heard_ms: number }[]): void {
    for (const { item, heard_ms } of cut) {
      this.conversation.cut(item, heard_ms);
      if (this.#isReady) this.#send({ type: 'conversation.item.truncate', item_id: item, content_index: 0, audio_end_ms: Math.floor(heard_ms) });
    }
  }

  #onQuiet(): void {
    if (this.state === 'speaking' && !this.conversation.isAnswering) this.state = 'listening';
  }

  // The server

  #onEvent(event: RealtimeEvent): void {
    const type = generalName(event.type);
    switch (type) {
      case 'antiphon.queued':
        this.#onQueued(event);
        return;
      case 'session.created':
      case 'session.updated':
        this.#onSession(type, event);
        return;
      case 'input_audio_buffer.speech_started':
        this.#onSpeechStarted(event);
        return;
      case 'input_audio_buffer.speech_stopped': {
        const turn = this.conversation.withItem(String(event.item_id));
        if (turn) Object.assign(turn, { end: this.#momentOf(event.audio_end_ms) });
        this.conversation.mark('noticed');
        this.state = 'thinking';
        return;
      }
      case 'response.output_audio.delta':
        this.#onSound(event);
        return;
      case 'output_audio_buffer.started':
        this.conversation.mark('sound', String(event.response_id));
        if (this.state !== 'hearing') this.state = 'speaking';
        return;
      case 'output_audio_buffer.stopped':
      case 'output_audio_buffer.cleared':
        if (this.state === 'speaking') this.state = 'listening';
        return;
      case 'conversation.item.truncated':
        if (this.choice!.transport === 'webrtc') this.conversation.cut(String(event.item_id), Number(event.audio_end_ms));
        return;
      case 'error':
        this.#onError(event.error as { message?: string; code?: string } | undefined);
        return;
      default:
        this.conversation.take(type, event);
        if (type === 'response.done') this.#onDone();
    }
  }

  #onError(error: { message?: string; code?: string } | undefined): void {
    if (error?.code && CROSSED.includes(error.code)) return;
    const message = error?.message ?? 'The server reports an error.';
    if (this.#isReady) this.notice = message;
    else this.#fail({ code: error?.code ?? 'error', message });
  }

  #onDone(): void {
    if (this.conversation.isAnswering) return;
    const isHeard = this.choice!.transport === 'webrtc' || this.sound?.isPlaying;
    if (this.state === 'thinking' || (this.state === 'speaking' && !isHeard)) this.state = 'listening';
  }

  #onQueued(event: RealtimeEvent): void {
    this.state = 'queued';
    const position = Number(event.position);
    const wait = event.estimated_wait_s;
    this.place = { position, first: this.place?.first ?? position, of: Number(event.queue_length), ticket: String(event.ticket_id ?? ''), wait_s: typeof wait === 'number' ? wait : null };
  }

  #onSession(type: string, event: RealtimeEvent): void {
    interface Heard {
      voice?: string;
      turn_detection?: { prefix_padding_ms?: number } | null;
      audio?: { input?: { turn_detection?: { prefix_padding_ms?: number } | null }; output?: { voice?: string } };
    }
    const session = event.session as Heard;
    this.voice = session.audio?.output?.voice ?? session.voice ?? '';
    this.#padding_ms = session.audio?.input?.turn_detection?.prefix_padding_ms ?? session.turn_detection?.prefix_padding_ms ?? 300;
    this.place = null;
    if (type !== 'session.updated' || this.#isReady) return;
    this.#isReady = true;
    this.#allow();
    this.#tries = 0;
    this.conversation.beganAt ||= performance.now();
    this.state = 'listening';
  }

  #onSpeechStarted(event: RealtimeEvent): void {
    const began = Math.min(performance.now(), this.#momentOf(event.audio_start_ms) + this.#padding_ms);
    this.conversation.isInterrupting(began);
    this.conversation.drop(this.sound?.isPlaying || this.choice?.transport === 'webrtc');
    if (this.choice?.transport !== 'webrtc') this.#silence(); // a call's sound is stopped by the server
    this.conversation.begin(String(event.item_id));
    this.state = 'hearing';
  }

  #onSound(event: RealtimeEvent): void {
    const item = String(event.item_id);
    const responseId = String(event.response_id);
    if (!this.conversation.isWanted(responseId, item)) return; // made before the server knew
    const bytes = fromBase64(String(event.delta));
    this.conversation.addSound(responseId, item, (bytes.length / 2 / RATE) * 1000);
    this.sound?.play(bytes.buffer, item);
    if (this.state !== 'hearing') this.state = 'speaking';
  }
}

/** It goes on while another tab is shown. */
export const talk = new Talk();
