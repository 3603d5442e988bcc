import captureUrl from './worklets/capture.ts?worker&url';
import playbackUrl from './worklets/playback.ts?worker&url';
import { devices } from './devices.svelte';
import type { CaptureOptions, CapturePiece } from './worklets/capture';
import type { PlaybackNews, PlaybackOrder } from './worklets/playback';

export interface SoundOptions {
  /** What is made of the microphone's sound; none, and nobody is asked for a microphone. */
  capture?: CaptureOptions;
  /** Samples a second of what is played. */
  playRate: number;
  /** A piece of the microphone; not while it is muted. */
  onPiece: (samples: ArrayBuffer) => void;
  /** What was heard of items that a flush cut off. */
  onCut?: (cut: { item: string; heard_ms: number }[]) => void;
  /** Nothing waits to be heard any more. */
  onQuiet?: () => void;
  /** The system took sound away (a call, a lock), or gave it back. */
  onInterruption?: (isInterrupted: boolean) => void;
}

/** What has no device to play on never begins in Firefox, and says nothing of it. */
const BEGINS_WITHIN_MS = 10_000;

/** A microphone and a loudspeaker, each at its own rate. */
export class Sound {
  /** How loud both sides are, 0 to 1. */
  inLevel = $state(0);
  outLevel = $state(0);
  isMuted = $state(false);
  /** Whether something sounds or waits to. */
  isPlaying = $state(false);
  /** What sounds, and how much of it was heard. */
  item = $state('');
  heard_ms = $state(0);
  #context: AudioContext;
  #options: SoundOptions;
  #stream?: MediaStream;
  #source?: MediaStreamAudioSourceNode;
  #capture?: AudioWorkletNode;
  #playback?: AudioWorkletNode;
  #queued_ms = 0;
  #given = 0;
  #isMetered = false;
  /** The context's own state says so later, and never where it did not begin. */
  #isClosed = false;

  /** Call it first thing in a click: Safari and the rule on autoplay want a gesture. */
  constructor(options: SoundOptions) {
    this.#options = options;
    this.#context = new AudioContext({ latencyHint: 'interactive' });
    void this.#context.resume();
    this.#context.onstatechange = () => options.onInterruption?.(!['running', 'closed'].includes(this.#context.state));
  }

  /** Ask for the microphone and begin. Raises what browsers raise; `explainDevice` has words for it. */
  async open(): Promise<void> {
    const context = this.#context;
    if (this.#options.capture) this.#stream = await devices.microphone();
    if (this.#isClosed) return this.close(); // meanwhile
    await Promise.all([context.audioWorklet.addModule(captureUrl), context.audioWorklet.addModule(playbackUrl), this.#begins()]);
    if (this.#options.capture) this.#capturePieces(this.#options.capture);
    const processorOptions = { rate: this.#options.playRate };
    this.#playback = new AudioWorkletNode(context, 'playback', { numberOfInputs: 0, outputChannelCount: [1], processorOptions });
    this.#playback.port.onmessage = ({ data }: MessageEvent<PlaybackNews>) => this.#hear(data);
    this.#playback.connect(context.destination);
    await this.useSpeaker();
  }

  async #begins(): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<never>((_, refuse) => {
      timer = setTimeout(() => refuse(new DOMException('', 'InvalidStateError')), BEGINS_WITHIN_MS);
    });
    await Promise.race([this.#context.resume(), late]).finally(() => clearTimeout(timer));
  }

  #capturePieces(processorOptions: CaptureOptions): void {
    this.#capture = new AudioWorkletNode(this.#context, 'capture', { numberOfOutputs: 0, processorOptions });
    this.#capture.port.onmessage = ({ data }: MessageEvent<CapturePiece>) => {
      this.inLevel = this.isMuted ? 0 : data.peak;
      if (!this.isMuted) this.#options.onPiece(data.samples);
    };
    this.#listen();
  }

  #listen(): void {
    this.#source?.disconnect();
    this.#source = this.#context.createMediaStreamSource(this.#stream!);
    this.#source.connect(this.#capture!);
  }

  #hear(news: PlaybackNews): void {
    if ('cut' in news) {
      this.#options.onCut?.(news.cut);
      return;
    }
    if (!this.#isMetered) this.outLevel = news.peak;
    this.item = news.item;
    this.heard_ms = news.heard_ms;
    this.#queued_ms = news.waiting_ms;
    if (news.taken < this.#given) return; // told before the latest order came
    const wasPlaying = this.isPlaying;
    this.isPlaying = news.item !== '' || news.waiting_ms > 0;
    if (wasPlaying && !this.isPlaying) this.#options.onQuiet?.();
  }

  /** How much waits to be heard. */
  get waiting_ms(): number {
    return this.#queued_ms;
  }

  get stream(): MediaStream | undefined {
    return this.#stream;
  }

  play(samples: ArrayBuffer, item: string, format: 's16' | 'f32' = 's16'): void {
    this.isPlaying = true;
    this.#given += 1;
    const order: PlaybackOrder = { play: samples, item, format };
    this.#playback?.port.postMessage(order, [samples]);
  }

  /** Be silent at once. `onCut` tells what was heard. */
  flush(): void {
    this.isPlaying = false;
    this.#given += 1;
    const order: PlaybackOrder = { flush: true };
    this.#playback?.port.postMessage(order);
  }

  /** Show how loud a stream is that something else plays, as that of a call. */
  meter(stream: MediaStream): void {
    this.#isMetered = true;
    const meter = new AudioWorkletNode(this.#context, 'capture', { numberOfOutputs: 0, processorOptions: { ...this.#options.capture, format: 'f32' } });
    meter.port.onmessage = ({ data }: MessageEvent<CapturePiece>) => (this.outLevel = data.peak);
    this.#context.createMediaStreamSource(stream).connect(meter);
  }

  /** Take the microphone that was chosen, while it runs. */
  async useMicrophone(): Promise<void> {
    const stream = await devices.microphone();
    if (this.#isClosed) return stream.getTracks().forEach((track) => track.stop());
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#stream = stream;
    this.#listen();
  }

  /** Take the loudspeaker that was chosen, where browsers let pages do so. */
  async useSpeaker(): Promise<void> {
    const context = this.#context as AudioContext & { setSinkId?: (id: string) => Promise<void> };
    const id = devices.chosen('audiooutput');
    if (context.setSinkId && id) await context.setSinkId(id).catch(() => undefined);
  }

  resume(): void {
    void this.#context.resume();
  }

  close(): void {
    this.#stream?.getTracks().forEach((track) => track.stop());
    this.#context.onstatechange = null;
    if (!this.#isClosed) void this.#context.close();
    this.#isClosed = true;
    this.inLevel = this.outLevel = 0;
    this.isPlaying = false;
  }
}
