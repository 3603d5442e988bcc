import type { Dialect } from './dialects';
import type { RealtimeEvent } from './lines';
import { charAt, emptyTurn, type Mark, type ServerCall, type Turn } from './turns.svelte';

interface Item {
  id?: string;
  type?: string;
  name?: string;
  call_id?: string;
  arguments?: string;
  server_label?: string;
  output?: string | null;
  error?: unknown;
}

interface Response {
  id: string;
  status: string;
  status_details?: { error?: { message?: string } } | null;
}

/** What was said, as the events of the Realtime API tell it. */
export class Conversation {
  turns = $state<Turn[]>([]);
  /** When the session began. */
  beganAt = $state(0);
  #turnOf = new Map<string, Turn>();
  #active = new Set<string>();
  #dropped = new Set<string>();
  #cut = new Set<string>();
  #interruptedAt = 0;
  #count = 0;

  clear(): void {
    this.turns = [];
    this.beganAt = 0;
    this.#turnOf.clear();
    this.forget();
  }

  /** The line is new: answers that were being made are gone. */
  forget(): void {
    this.#active.clear();
    this.#dropped.clear();
    this.#cut.clear();
    this.#interruptedAt = 0;
  }

  /** Whether a response is being made. */
  get isAnswering(): boolean {
    return this.#active.size > 0;
  }

  get #seconds(): number {
    return this.beganAt ? (performance.now() - this.beganAt) / 1000 : 0;
  }

  begin(itemId = ''): Turn {
    this.turns.push({ ...emptyTurn(++this.#count, this.#seconds), itemId });
    return this.turns.at(-1)!;
  }

  withItem(itemId: string): Turn | undefined {
    return this.turns.findLast((turn) => turn.itemId === itemId) ?? this.turns.at(-1);
  }

  mark(mark: Mark, responseId = ''): void {
    const turn = this.#answering(responseId);
    if (turn) turn.marks[mark] ??= performance.now();
  }

  addSound(responseId: string, item: string, ms: number): void {
    const turn = this.#answering(responseId);
    if (!turn) return;
    this.#beginAnswer(turn, item);
    turn.sound_ms += ms;
    turn.marks.sound ??= performance.now();
  }

  /** Whether sound of it is to be heard: not what was cut off, and not what is made by a response that was stopped. */
  isWanted(responseId: string, item: string): boolean {
    return !this.#cut.has(item) && !this.#dropped.has(responseId);
  }

  /** The person began to speak then, over whatever sounds; 0 if something else stops it. */
  isInterrupting(at: number): void {
    this.#interruptedAt = at;
  }

  /** Want nothing more of the responses that are being made. `isHeard` says whether something sounds. */
  drop(isHeard: boolean): void {
    for (const id of this.#active) {
      this.#dropped.add(id);
      const turn = this.#turnOf.get(id);
      if (turn && !isHeard && turn.heardChars < 0) turn.heardChars = turn.answerId ? turn.answerFrom : turn.answer.length;
    }
  }

  /** Of an answer, this much was heard. */
  cut(item: string, heard_ms: number): void {
    this.#cut.add(item);
    const turn = this.turns.findLast((each) => each.answerId === item);
    if (!turn || turn.heardChars >= 0) return;
    const at = charAt(turn, heard_ms);
    turn.heardChars = at >= turn.answer.length ? at : turn.answer.slice(0, at).search(/\S*$/); // between words
    if (this.#interruptedAt) turn.silencedAfter_ms = Math.max(0, performance.now() - this.#interruptedAt);
    this.#interruptedAt = 0;
  }

  /** What was said, as items of a new session that goes on with it. */
  items(dialect: Dialect): object[] {
    const spoken = dialect === 'beta' ? 'text' : 'output_text';
    return this.turns.flatMap((turn) => {
      const heard = turn.heardChars < 0 ? turn.answer : turn.answer.slice(0, turn.heardChars);
      return [
        ...(turn.said ? [{ type: 'message', role: 'user', content: [{ type: 'input_text', text: turn.said }] }] : []),
        ...(heard ? [{ type: 'message', role: 'assistant', content: [{ type: spoken, text: heard }] }] : []),
      ];
    });
  }

  #answering(responseId: string): Turn | undefined {
    return this.#turnOf.get(responseId) ?? this.turns.at(-1);
  }

  take(type: string, event: RealtimeEvent): void {
    const responseId = String(event.response_id ?? '');
    switch (type) {
      case 'input_audio_buffer.committed': {
        const turn = this.turns.at(-1);
        if (turn && !turn.itemId && !turn.isTyped) turn.itemId = String(event.item_id);
        return;
      }
      case 'conversation.item.input_audio_transcription.delta':
        this.#said(event, (turn) => (turn.said += String(event.delta ?? '')));
        return;
      case 'conversation.item.input_audio_transcription.completed':
        this.#said(event, (turn) => {
          turn.said = String(event.transcript ?? '');
          turn.marks.transcript ??= performance.now();
        });
        return;
      case 'conversation.item.input_audio_transcription.failed':
        this.#said(event, (turn) => (turn.failed = (event.error as { message?: string } | undefined)?.message ?? 'It could not be written down.'));
        return;
      case 'response.created':
        this.#onCreated((event.response as Response).id);
        return;
      case 'response.output_audio_transcript.delta':
      case 'response.output_text.delta':
        this.#onWords(responseId, event);
        return;
      case 'response.output_item.added':
      case 'response.output_item.done':
        this.#onItem(responseId, event.item as Item, type.endsWith('done'));
        return;
      case 'response.done':
        this.#onDone(event.response as Response);
    }
  }

  #said(event: RealtimeEvent, change: (turn: Turn) => void): void {
    const turn = this.turns.findLast((each) => each.itemId === String(event.item_id));
    if (turn) change(turn);
  }

  #onCreated(id: string): void {
    this.#active.add(id);
    this.#turnOf.set(id, this.turns.at(-1) ?? this.begin());
  }

  /** Words and sound of an item are about to come; after a call, behind those of another. */
  #beginAnswer(turn: Turn, item: string): void {
    if (turn.answerId === item) return;
    if (turn.answer) turn.answer += '\n';
    else turn.answerAt_s = this.#seconds;
    turn.answerId = item;
    turn.answerFrom = turn.answer.length;
    turn.sound_ms = 0;
  }

  #onWords(responseId: string, event: RealtimeEvent): void {
    const turn = this.#answering(responseId);
    if (!turn) return;
    this.#beginAnswer(turn, String(event.item_id));
    turn.answer += String(event.delta);
    turn.marks.word ??= performance.now();
  }

  #onItem(responseId: string, item: Item, isDone: boolean): void {
    const turn = this.#answering(responseId);
    if (!turn) return;
    if (item.type === 'function_call' && isDone) {
      turn.calls.push({ callId: item.call_id ?? '', name: item.name ?? '', text: item.arguments ?? '', output: null });
    } else if (item.type === 'mcp_call' || item.type === 'mcp_approval_request') {
      const state = item.type === 'mcp_approval_request' ? 'asks' : !isDone ? 'running' : item.error ? 'failed' : 'done';
      const output = item.error ? JSON.stringify(item.error) : (item.output ?? '');
      const call: ServerCall = { id: item.id ?? '', kind: state === 'asks' ? 'approval' : 'call', server: item.server_label ?? '', name: item.name ?? '', text: item.arguments ?? '', state, output };
      const known = turn.serverCalls.find((each) => each.id === call.id);
      if (!known) turn.serverCalls.push(call);
      else if (known.kind === 'call' || known.state === 'asks') Object.assign(known, call);
    }
  }

  #onDone(response: Response): void {
    this.#active.delete(response.id);
    const turn = this.#turnOf.get(response.id);
    if (turn && response.status === 'failed') turn.error = response.status_details?.error?.message ?? 'The answer failed.';
  }
}
