import { fromBase64, toBase64 } from '../audio/base64';
import { explainDevice } from '../audio/devices.svelte';
import { Sound } from '../audio/sound.svelte';
import { ApiError } from '../lib/api';
import { models } from '../lib/models.svelte';
import { camera, type Still } from './camera.svelte';
import { Chime } from './chime';
import { Figures } from './figures.svelte';
import { Line } from './line';
import { presets } from './presets.svelte';
import { endingOf, RATE_IN, RATE_OUT, type Ending, type Mode, type ServerEvent } from './protocol';
import { Written } from './written.svelte';

export type State = 'idle' | 'asking' | 'connecting' | 'queued' | 'starting' | 'live' | 'lost';

export interface Choice {
  mode: Mode;
  model: string;
  instructions: string;
  /** Loads the recording of the voice, in base64; empty for the model's own. */
  reference: () => Promise<string>;
  speaks: boolean;
  records: boolean;
}

/** What the model said in one go. */
export interface Turn {
  responseId: string;
  text: string;
  at_s: number;
  isInterrupted: boolean;
  failure: string;
}

export interface Place {
  position: number;
  of: number;
  wait_s: number | null;
  ticket: string;
  first: number;
  since: number;
}

const STILL_EVERY_MS = 1000; // as the original's own pages
const RETRY_MS = [250, 500, 1000, 2000];
const RESUME_S = 20; // of servers that don't say how long they wait
const MAX_TURNS = 500;
/** Workers of MiniCPM-o take a step for each piece, whatever its length; for all others shorter ones make quicker answers. */
const pieceMs = (model: string): number => (['omni', 'worker'].includes(models.named(model)?.antiphon?.engine ?? '') ? 1000 : 200);

/** One session: in full duplex with microphone and loudspeaker, in chat without. */
export class Duplex {
  state = $state<State>('idle');
  mode = $state<Mode>('video');
  ending = $state<Ending | null>(null);
  notice = $state('');
  place = $state<Place | null>(null);
  turns = $state<Turn[]>([]);
  sound = $state.raw<Sound | null>(null);
  /** When the time is up, and when the server stops waiting for us, of `performance.now()`; 0 if unknown. */
  endsAt = $state(0);
  lostAt = $state(0);
  waitsUntil = $state(0);
  beganAt = $state(0);
  sessionId = $state('');
  isMuted = $state(false);
  /** Whether the model is made to listen. */
  isForced = $state(false);
  /** The system took sound away. */
  isInterrupted = $state(false);
  /** Ring when it is our turn. */
  rings = $state(false);
  readonly figures = new Figures();
  readonly written = new Written((input) => this.#line?.send({ type: 'input.append', input }) ?? false);
  /** The response that is being said; empty if none is. */
  #open = $state('');
  /** The response that was heard last. */
  #begun = '';
  #line: Line | null = null;
  #choice: Choice | null = null;
  #cut = new Set<string>();
  #closed: Ending | null = null;
  #refusal: Ending | null = null;
  #token = '';
  #seq = 0;
  #tries = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #resume_s = RESUME_S;
  #reference = '';
  /** Whether the server has yet to hear that it is to listen. */
  #owesForce = false;
  #still: Still | null = null;
  #stillAt = 0;
  #piece_ms = 200;
  #wake: WakeLockSentinel | null = null;
  #chime: Chime | null = null;

  constructor() {
    addEventListener('online', () => { if (this.state === 'lost') this.#comeBack(); });
    document.addEventListener('visibilitychange', () => { if (this.isLive && !document.hidden) void this.#stayAwake(); });
  }

  get isLive(): boolean {
    return this.state !== 'idle';
  }

  get isSpeaking(): boolean {
    return this.state === 'live' && (this.#open !== '' || (this.sound?.isPlaying ?? false));
  }

  get choice(): Choice | null {
    return this.#choice;
  }

  /** Begin; call it in a click, as sound wants one. */
  async start(choice: Choice): Promise<void> {
    if (this.isLive) return;
    this.#reset(choice);
    const needsSound = choice.mode !== 'chat' || choice.speaks;
    const sound = needsSound ? this.#makeSound(choice) : null;
    this.sound = sound;
    if (this.rings) this.#chime = new Chime();
    try {
      const asked = [sound?.open(), choice.mode === 'video' && !camera.isOn ? camera.open() : true];
      const [, hasCamera] = await Promise.all(asked);
      if (!this.#isStill(choice)) return sound?.close();
      if (hasCamera === false) return this.#finish({ code: camera.problem!.code, title: 'No camera', text: camera.problem!.message, isBad: true });
      this.#reference = await choice.reference();
    } catch (error) {
      const device = error instanceof ApiError ? null : explainDevice(error);
      const { code, message } = device ?? { code: 'failed', message: error instanceof Error ? error.message : String(error) };
      if (this.#isStill(choice)) this.#finish({ code, title: device ? 'No microphone' : 'It could not begin', text: message, isBad: true });
      return;
    }
    if (!this.#isStill(choice)) return sound?.close();
    void this.#stayAwake();
    this.state = 'connecting';
    this.#connect({ mode: choice.mode, model: choice.model, resumable: '1', ...(choice.records ? { record: '1' } : {}) });
  }

  #isStill(choice: Choice): boolean {
    return this.#choice === choice && this.isLive;
  }

  #reset(choice: Choice): void {
    this.#choice = choice;
    this.mode = choice.mode;
    this.state = 'asking';
    this.ending = this.place = this.#closed = this.#refusal = this.#still = null;
    this.notice = this.sessionId = this.#token = this.#open = this.#reference = '';
    this.turns = [];
    this.#cut.clear();
    this.#seq = this.#tries = this.endsAt = this.beganAt = this.#stillAt = 0;
    this.#owesForce = this.isForced = this.isMuted = this.isInterrupted = false;
    this.#resume_s = RESUME_S;
    this.#piece_ms = pieceMs(choice.model);
    this.figures.clear();
  }

  #makeSound(choice: Choice): Sound {
    return new Sound({
      ...(choice.mode === 'chat' ? {} : { capture: { rate: RATE_IN, size: (RATE_IN / 1000) * this.#piece_ms, format: 'f32' as const } }),
      playRate: RATE_OUT,
      onPiece: (samples) => this.#onPiece(samples),
      onQuiet: () => { if (this.#open) this.figures.ranDry(); },
      onInterruption: (isInterrupted) => (this.isInterrupted = isInterrupted),
    });
  }

  async #stayAwake(): Promise<void> {
    const wake = (await navigator.wakeLock?.request('screen').catch(() => null)) ?? null;
    if (this.isLive) this.#wake = wake;
    else void wake?.release();
  }

  #connect(query: Record<string, string>): void {
    this.#line = new Line(query, { onEvent: (event) => this.#onEvent(event), onEnd: (code, wasOpen) => this.#onEnd(code, wasOpen) });
  }

  /** End the session, or leave the line. */
  stop(): void {
    if (!this.isLive) return;
    const wasServed = this.beganAt > 0;
    this.#line?.leave();
    this.#line = null;
    this.#finish(wasServed ? endingOf('user_stop') : null);
  }

  #finish(ending: Ending | null): void {
    clearTimeout(this.#timer);
    this.#line?.leave();
    this.#line = null;
    this.sound?.close();
    this.sound = null;
    this.#chime?.close();
    this.#chime = null;
    void this.#wake?.release();
    this.#wake = null;
    this.place = null;
    this.#open = this.#token = '';
    this.written.breakOff();
    this.state = 'idle';
    this.ending = ending;
  }

  #onEnd(code: number, wasOpen: boolean): void {
    this.#line = null;
    if (this.#closed) return this.#finish(this.#closed);
    const canComeBack = this.#token !== '' && (this.state === 'live' || this.state === 'lost');
    if (canComeBack && this.#refusal?.code !== 'session_not_found' && this.#refusal?.code !== 'unauthorized') return this.#lose();
    this.#finish(this.#refusal ?? endingOf(wasOpen ? 'connection_lost' : 'unreachable', code === 1006 ? '' : `The connection was closed with ${code}.`));
  }

  // Coming back

  #lose(): void {
    const now = performance.now();
    if (this.state !== 'lost') {
      this.state = 'lost';
      this.lostAt = now;
      this.waitsUntil = now + this.#resume_s * 1000;
      this.#tries = 0;
    }
    if (now > this.waitsUntil) return this.#finish(endingOf('session_not_found'));
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#comeBack(), RETRY_MS[Math.min(this.#tries++, RETRY_MS.length - 1)]);
  }

  #comeBack(): void {
    clearTimeout(this.#timer);
    if (this.state !== 'lost' || this.#line) return;
    this.#refusal = null;
    this.#connect({ mode: this.mode, resume: this.#token, after: String(this.#seq) });
  }

  // What goes to the model

  #onPiece(samples: ArrayBuffer): void {
    if (this.state !== 'live') return;
    const still = this.#takeStill();
    const input = {
      audio: toBase64(new Uint8Array(samples)),
      ...(still ? { video_frames: [still.jpeg] } : {}),
      ...(this.isForced || this.#owesForce ? { force_listen: true } : {}),
    };
    const isSent = this.#line?.send({ type: 'input.append', input }, true) ?? false;
    if (isSent) this.#owesForce = false;
    this.figures.sent(this.#piece_ms, isSent, isSent ? still : null);
  }

  /** The picture that is due, and the next one is made. */
  #takeStill(): Still | null {
    if (this.mode !== 'video' || !this.#line) return null;
    const still = this.#still;
    this.#still = null;
    const now = performance.now();
    if (now - this.#stillAt >= STILL_EVERY_MS - this.#piece_ms / 2 && !this.#line.isSlow) {
      this.#stillAt = now;
      void camera.still().then((made) => (this.#still = made));
    }
    return still;
  }

  /** A microphone that is off sends silence, so that the session and the pictures go on. */
  mute(isMuted: boolean): void {
    this.isMuted = isMuted;
    this.sound?.stream?.getAudioTracks().forEach((track) => (track.enabled = !isMuted));
  }

  /** Take the microphone that was chosen, while it runs. */
  async useMicrophone(): Promise<void> {
    if (!this.sound?.stream) return;
    try {
      await this.sound.useMicrophone();
      this.mute(this.isMuted);
    } catch (error) {
      this.notice = explainDevice(error)?.message ?? String(error);
    }
  }

  /** Make the model listen, or let it speak again. */
  force(isForced: boolean): void {
    if (this.state !== 'live' || this.mode === 'chat') return;
    this.isForced = isForced;
    if (isForced) this.#owesForce = true;
    if (isForced && this.isSpeaking) this.#silence(this.#open);
  }

  ring(isWanted: boolean): void {
    this.rings = isWanted;
    this.#chime?.close();
    this.#chime = isWanted && this.isLive ? new Chime() : null;
  }

  // What comes

  /** Be silent at once, and leave out what still comes of this response. */
  #silence(responseId: string): void {
    if (responseId) this.#cut.add(responseId);
    if (this.sound?.isPlaying) this.sound.flush();
    const turn = this.turns.at(-1);
    if (turn) turn.isInterrupted = true;
  }

  #onEvent(event: ServerEvent): void {
    if (event.seq !== undefined) {
      if (event.seq <= this.#seq) return; // sent once more after the network came back
      this.#seq = event.seq;
    }
    if (event.metrics) this.#onMetrics(event);
    switch (event.type) {
      case 'session.queued':
      case 'session.queue_update':
        return this.#onPlace(event);
      case 'session.queue_done':
        return this.#onTurn();
      case 'session.created':
        return this.#onCreated(event);
      case 'session.resumed':
        this.state = 'live';
        this.figures.cameBack((performance.now() - this.lostAt) / 1000);
        return;
      case 'session.warning':
        this.endsAt = performance.now() + Number(event.remaining_s) * 1000;
        return;
      case 'session.closed':
        this.#closed = endingOf(event.reason ?? '', event.diagnostic?.message ?? '');
        return;
      case 'response.output.delta':
        return this.mode === 'chat' ? this.#onWritten(event) : this.#onDelta(event);
      case 'response.done':
        return this.written.onDone(event);
      case 'error':
        return this.#onError(event);
    }
  }

  #onMetrics(event: ServerEvent): void {
    const { remaining_s, resume_s } = event.metrics!;
    if (typeof remaining_s === 'number') this.endsAt = performance.now() + remaining_s * 1000;
    if (typeof resume_s === 'number') this.#resume_s = resume_s;
    this.figures.measured(event.metrics!);
  }

  #onPlace(event: ServerEvent): void {
    const position = event.position ?? 0;
    const { first = position, since = performance.now() } = this.place ?? {};
    this.state = 'queued';
    this.place = { position, of: event.queue_length ?? position, wait_s: event.estimated_wait_s ?? null, ticket: event.ticket_id ?? '', first: Math.max(first, position), since };
  }

  #onTurn(): void {
    const choice = this.#choice!;
    if (this.place) this.#chime?.ring();
    else this.#chime?.close();
    this.#chime = null;
    this.place = null;
    this.state = 'starting';
    const payload = {
      ...(choice.instructions.trim() ? { system_prompt: choice.instructions } : {}),
      ...(this.#reference ? { voice: { ref_audio_base64: this.#reference } } : {}),
      ...(choice.speaks || choice.mode === 'chat' ? {} : { use_tts: false }),
    };
    this.#line?.send({ type: 'session.init', payload });
  }

  #onCreated(event: ServerEvent): void {
    this.sessionId = event.session_id ?? '';
    this.#token = event.resume_token ?? '';
    this.beganAt = performance.now();
    this.state = 'live';
    this.written.begin(this.#choice!.speaks);
  }

  #onError(event: ServerEvent): void {
    const { code = 'error', message = '' } = event.error ?? {};
    if (this.state === 'live') this.notice = message || code;
    if (this.state === 'live' && this.mode === 'chat') this.written.onError(message || code);
    this.#refusal = endingOf(code, message);
  }

  #onWritten(event: ServerEvent): void {
    if (event.kind === 'audio' && event.audio) this.sound?.play(fromBase64(event.audio).buffer, event.response_id ?? '', 'f32');
    else this.written.onDelta(event);
  }

  #onDelta(event: ServerEvent): void {
    const id = event.response_id ?? '';
    if (event.kind === 'listen') return this.#onListen(event);
    const turn = this.#turnOf(id);
    if (this.#cut.has(id)) return; // made before the server knew
    this.#open = id;
    if (event.kind === 'text') turn.text += event.text ?? '';
    else if (event.audio) {
      const bytes = fromBase64(event.audio);
      this.figures.heard(this.sound?.waiting_ms ?? 0, (bytes.length / 4 / RATE_OUT) * 1000);
      // A little waits before the first is heard, as pieces come as unevenly as the network brings them.
      if (this.#begun !== id && this.sound && !this.sound.isPlaying) this.sound.play(new Float32Array((RATE_OUT / 1000) * presets.delay_ms).buffer, id, 'f32');
      this.#begun = id;
      this.sound?.play(bytes.buffer, id, 'f32');
    }
  }

  #turnOf(responseId: string): Turn {
    const last = this.turns.at(-1);
    if (last?.responseId === responseId) return last;
    this.turns.push({ responseId, text: '', at_s: (performance.now() - this.beganAt) / 1000, isInterrupted: false, failure: '' });
    if (this.turns.length > MAX_TURNS) this.turns.shift();
    return this.turns.at(-1)!;
  }

  /** The model yields: with `interrupted`, or amid what it says, the player must be empty; at the end of a turn it may play on. */
  #onListen(event: ServerEvent): void {
    const id = event.response_id ?? '';
    const isAmid = this.#open !== '' && !event.end_of_turn;
    if (event.interrupted || isAmid) this.#silence(event.interrupted ? id : '');
    const failure = event.metrics?.failure as { message?: string } | undefined;
    if (failure) this.#turnOf(id).failure = failure.message ?? 'The answer failed.';
    this.#open = '';
    this.figures.quiet();
  }
}

export const duplex = new Duplex();
