import { Resampler } from '../resampler';

/** Pieces of the microphone, and how loud the loudest sample was (0 to 1). `samples` is an Int16Array's buffer, or a Float32Array's. */
export interface CapturePiece {
  samples: ArrayBuffer;
  peak: number;
}

export interface CaptureOptions {
  /** Samples a second of the pieces. */
  rate: number;
  /** Samples of a piece. */
  size: number;
  /** What a sample is. */
  format: 's16' | 'f32';
}

class Capture extends AudioWorkletProcessor {
  readonly #options: CaptureOptions;
  readonly #resampler: Resampler;
  #piece: Int16Array<ArrayBuffer> | Float32Array<ArrayBuffer>;
  #filled = 0;
  #peak = 0;

  constructor(options: { processorOptions: CaptureOptions }) {
    super();
    this.#options = options.processorOptions;
    this.#resampler = new Resampler(sampleRate, this.#options.rate);
    this.#piece = this.#empty();
  }

  #empty(): Int16Array<ArrayBuffer> | Float32Array<ArrayBuffer> {
    return this.#options.format === 's16' ? new Int16Array(this.#options.size) : new Float32Array(this.#options.size);
  }

  process(inputs: Float32Array[][]): boolean {
    const channel = inputs[0]?.[0];
    if (!channel) return true;
    for (const value of this.#resampler.push(channel)) {
      const sample = Math.max(-1, Math.min(1, value));
      this.#peak = Math.max(this.#peak, Math.abs(sample));
      this.#piece[this.#filled++] = this.#options.format === 's16' ? Math.round(sample * 32767) : sample;
      if (this.#filled === this.#piece.length) this.#tell();
    }
    return true;
  }

  #tell(): void {
    const piece: CapturePiece = { samples: this.#piece.buffer, peak: this.#peak };
    this.port.postMessage(piece, [piece.samples]);
    this.#piece = this.#empty();
    this.#filled = this.#peak = 0;
  }
}

registerProcessor('capture', Capture);
