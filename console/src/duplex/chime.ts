/** Two tones that say that it is your turn. Make one in a click: browsers give sound to nobody else. */
export class Chime {
  #context = new AudioContext();

  constructor() {
    void this.#context.resume();
  }

  ring(): void {
    const start = this.#context.currentTime;
    [660, 880].forEach((frequency, index) => {
      const at = start + index * 0.22;
      const gain = new GainNode(this.#context, { gain: 0 });
      const tone = new OscillatorNode(this.#context, { frequency });
      gain.gain.setValueAtTime(0, at);
      gain.gain.linearRampToValueAtTime(0.25, at + 0.02);
      gain.gain.exponentialRampToValueAtTime(0.001, at + 0.5);
      tone.connect(gain).connect(this.#context.destination);
      tone.start(at);
      tone.stop(at + 0.5);
      if (index === 1) tone.onended = () => this.close();
    });
  }

  close(): void {
    if (this.#context.state !== 'closed') void this.#context.close();
  }
}
