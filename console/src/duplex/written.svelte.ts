import type { ServerEvent } from './protocol';

/** A line of a written conversation. */
export interface Message {
  id: string;
  role: 'user' | 'assistant';
  text: string;
  /** JPEG in base64. */
  images: string[];
  state: 'waiting' | 'running' | 'done' | 'failed';
  problem: string;
  wall_ms: number | null;
}

const MAX_NEW_TOKENS = 2048;
const WHY: Record<string, string> = { length: 'The longest answer is reached.', content_filter: 'The rest was withheld.', cancelled: 'It was cancelled.' };

/** The mode `chat`: each question goes with all that was said, as the server keeps nothing between them. */
export class Written {
  lines = $state<Message[]>([]);
  #send: (input: Record<string, unknown>) => boolean;
  #speaks = false;
  #isOpen = false;
  #count = 0;

  constructor(send: (input: Record<string, unknown>) => boolean) {
    this.#send = send;
  }

  get isAnswering(): boolean {
    return this.lines.some((line) => line.role === 'assistant' && line.state !== 'done' && line.state !== 'failed');
  }

  /** The session has begun: what was asked meanwhile goes now. */
  begin(speaks: boolean): void {
    this.#speaks = speaks;
    this.#isOpen = true;
    for (const line of this.lines) if (line.role === 'assistant' && line.state === 'waiting') this.#put(line);
  }

  /** Ask; it waits if there is no session yet. */
  ask(text: string, images: string[] = []): void {
    this.#add('user', text, images, 'done');
    const answer = this.#add('assistant', '', [], 'waiting');
    if (this.#isOpen) this.#put(answer);
  }

  clear(): void {
    this.lines = [];
  }

  /** The session is over, and with it what was being answered. */
  breakOff(): void {
    this.#isOpen = false;
    for (const line of this.lines) if (line.role === 'assistant' && (line.state === 'waiting' || line.state === 'running')) Object.assign(line, { state: 'failed', problem: 'The session ended first.' });
  }

  #add(role: Message['role'], text: string, images: string[], state: Message['state']): Message {
    this.lines.push({ id: `input_${++this.#count}`, role, text, images, state, problem: '', wall_ms: null });
    return this.lines.at(-1)!;
  }

  #put(answer: Message): void {
    const before = this.lines.slice(0, this.lines.indexOf(answer));
    const isSent = this.#send({
      input_id: answer.id,
      messages: before.filter((line) => line.text || line.images.length).map(messageOf),
      streaming: true,
      generation: { max_new_tokens: MAX_NEW_TOKENS },
      tts: { enabled: this.#speaks },
    });
    Object.assign(answer, isSent ? { state: 'running' } : { state: 'failed', problem: 'The connection is away. Ask again.' });
  }

  #answering(event: ServerEvent): Message | undefined {
    return this.lines.find((line) => line.role === 'assistant' && line.id === event.input_id) ?? this.lines.find((line) => line.state === 'running');
  }

  onDelta(event: ServerEvent): void {
    const line = this.#answering(event);
    if (line && event.kind === 'text') line.text += event.text ?? '';
  }

  onDone(event: ServerEvent): void {
    const line = this.#answering(event);
    if (!line) return;
    line.text = event.text || line.text;
    line.wall_ms = typeof event.metrics?.wall_clock_ms === 'number' ? event.metrics.wall_clock_ms : null;
    line.state = event.reason === 'error' ? 'failed' : 'done';
    line.problem ||= WHY[event.reason ?? ''] ?? (event.reason === 'error' ? 'The answer failed.' : '');
  }

  /** `response.done` follows if an answer failed; otherwise the question was refused. */
  onError(message: string): void {
    const line = this.lines.find((each) => each.state === 'running');
    if (line) Object.assign(line, { state: 'failed', problem: message });
  }
}

function messageOf(line: Message): object {
  if (!line.images.length) return { role: line.role, content: line.text };
  return { role: line.role, content: [...line.images.map((data) => ({ type: 'image', data })), ...(line.text ? [{ type: 'text', text: line.text }] : [])] };
}
