/** What an AudioWorklet's scope has, of which TypeScript's library knows nothing. Source: https://webaudio.github.io/web-audio-api/ */
declare abstract class AudioWorkletProcessor {
  readonly port: MessagePort;
  constructor(options?: { processorOptions?: unknown });
  abstract process(inputs: Float32Array[][], outputs: Float32Array[][]): boolean;
}
declare function registerProcessor(name: string, processor: unknown): void;
/** The context's rate. */
declare const sampleRate: number;
