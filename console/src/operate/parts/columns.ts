import { ago, seconds } from '../../lib/format';
import type { Column } from './column';
import type { AnswerRow } from '../rows';

/** "14:02:11" today, and the day before it otherwise. */
export function moment(time_s: number | null): string {
  if (time_s === null) return '–';
  const date = new Date(time_s * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  return (isToday ? '' : date.toLocaleDateString('en', { day: 'numeric', month: 'short' }) + ', ') + date.toLocaleTimeString('en-GB');
}

export const since = (time_s: number | null, now_s: number): string => (time_s === null ? '–' : seconds(Math.max(0, now_s - time_s)));

export const lately = (time_s: number | null, now_s: number): string => (time_s === null ? 'never' : ago(time_s, now_s));

const dots: Record<string, string> = { completed: '', in_progress: 'warn', queued: 'off', failed: 'bad', incomplete: 'warn', cancelled: 'off' };

export const answerColumns = (now_s: number): Column<AnswerRow>[] => [
  { name: 'Response', value: (row) => row.id, mono: true },
  { name: 'Model', value: (row) => row.model },
  { name: 'Status', value: (row) => row.status, dot: (row) => dots[row.status] ?? 'off', text: (row) => row.status + (row.background ? ', background' : '') },
  { name: 'Began', value: (row) => row.created_at, text: (row) => moment(row.created_at), right: true },
  { name: 'Took', value: (row) => (row.ended_at ?? now_s) - row.created_at, text: (row) => since(row.created_at, row.ended_at ?? now_s), right: true },
  { name: 'First token', value: (row) => row.first_token_s, text: (row) => (row.first_token_s === null ? '–' : seconds(row.first_token_s)), right: true },
  { name: 'In', value: (row) => row.input_tokens, right: true },
  { name: 'Out', value: (row) => row.output_tokens, right: true },
  { name: 'Key', value: (row) => row.key_id, mono: true },
];
