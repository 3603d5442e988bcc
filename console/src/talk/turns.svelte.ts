/** What was said in a conversation, and when. Times are those of `performance.now()`. */
export type Mark = 'noticed' | 'transcript' | 'word' | 'sound';

export interface Call {
  callId: string;
  name: string;
  text: string;
  /** What the person answered; null while the model waits. */
  output: string | null;
}

/** A call of an MCP server: the server runs it, or asks first. */
export interface ServerCall {
  id: string;
  kind: 'call' | 'approval';
  server: string;
  name: string;
  text: string;
  state: 'running' | 'done' | 'failed' | 'asks' | 'approved' | 'refused';
  output: string;
}

/** One question and its answer. */
export interface Turn {
  key: number;
  /** Seconds since the session began. */
  at_s: number;
  itemId: string;
  said: string;
  /** Why what was said could not be written down. */
  failed: string;
  isTyped: boolean;
  /** The item that is being answered with. After a call there is another: its words begin at `answerFrom`. */
  answerId: string;
  answerFrom: number;
  answerAt_s: number;
  answer: string;
  /** How much sound came for that item. */
  sound_ms: number;
  /** How much of the answer was heard, where it was cut off; -1 if it wasn't. */
  heardChars: number;
  /** How long it sounded on after the person began to speak; -1 if nobody spoke. */
  silencedAfter_ms: number;
  calls: Call[];
  serverCalls: ServerCall[];
  /** When the person stopped speaking, as the server counts; 0 if nobody spoke. */
  end: number;
  marks: Partial<Record<Mark, number>>;
  error: string;
}

const MARKS: Mark[] = ['noticed', 'transcript', 'word', 'sound'];

/** Milliseconds from the end of speech to each mark that was reached, in their order. */
export function latencies(turn: Turn): [Mark, number][] {
  if (!turn.end) return [];
  const reached = MARKS.flatMap((mark): [Mark, number][] => (turn.marks[mark] === undefined ? [] : [[mark, Math.max(0, turn.marks[mark] - turn.end)]]));
  return reached.sort((one, other) => one[1] - other[1]);
}

/** The middle of the turns' times to the first sound; null without any. */
export function middleSound(turns: Turn[]): number | null {
  const times = turns.flatMap((turn) => (turn.end && turn.marks.sound !== undefined ? [turn.marks.sound - turn.end] : [])).sort((one, other) => one - other);
  return times.length ? times[Math.floor((times.length - 1) / 2)]! : null;
}

const CHARS_A_SECOND = 15;

/** Which character of the answer sounds, when so much of its item was heard: words and sound are taken to run evenly. */
export function charAt(turn: Turn, heard_ms: number): number {
  const length = turn.answer.length - turn.answerFrom;
  const whole_ms = turn.sound_ms || (length / CHARS_A_SECOND) * 1000;
  return turn.answerFrom + (whole_ms > 0 ? Math.round(length * Math.min(1, heard_ms / whole_ms)) : 0);
}

export function emptyTurn(key: number, at_s: number): Turn {
  return {
    key, at_s, itemId: '', said: '', failed: '', isTyped: false, answerId: '', answerFrom: 0, answerAt_s: 0, answer: '', sound_ms: 0, heardChars: -1,
    silencedAfter_ms: -1, calls: [], serverCalls: [], end: 0, marks: {}, error: '',
  };
}
