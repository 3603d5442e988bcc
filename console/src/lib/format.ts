/** Numbers and times in words, the same everywhere. */
const whole = new Intl.NumberFormat('en');

export const count = (n: number): string => whole.format(n);

/** "1 answer", "2 answers". */
export const many = (n: number, one: string, more = one + 's'): string => `${whole.format(n)} ${n === 1 ? one : more}`;

export function bytes(n: number): string {
  if (n < 1000) return `${n} B`;
  if (n < 1e6) return `${(n / 1e3).toFixed(n < 1e4 ? 1 : 0)} kB`;
  return n < 1e9 ? `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)} MB` : `${(n / 1e9).toFixed(2)} GB`;
}

/** "380 ms", "2.4 s", "41 s", "3 min 5 s", "2 h 10 min", "3 d 4 h". */
export function seconds(s: number): string {
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 59.5) return `${Math.round(s)} s`;
  const total = Math.round(s);
  if (total < 3600) return `${Math.floor(total / 60)} min${total % 60 ? ` ${total % 60} s` : ''}`;
  if (total < 86_400) return `${Math.floor(total / 3600)} h${Math.floor((total % 3600) / 60) ? ` ${Math.floor((total % 3600) / 60)} min` : ''}`;
  return `${Math.floor(total / 86_400)} d${Math.floor((total % 86_400) / 3600) ? ` ${Math.floor((total % 86_400) / 3600)} h` : ''}`;
}

/** "1:05" of 65 seconds. */
export const clock = (s: number): string => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, '0')}`;

/** How long ago, of two times in Unix seconds. */
export function ago(then_s: number, now_s = Date.now() / 1000): string {
  const past = now_s - then_s;
  if (past < 45) return 'just now';
  if (past < 3570) return `${Math.max(1, Math.round(past / 60))} min ago`;
  if (past < 86_400) return `${Math.round(past / 3600)} h ago`;
  return new Date(then_s * 1000).toLocaleDateString('en', { day: 'numeric', month: 'short', year: past > 300 * 86_400 ? 'numeric' : undefined });
}

/** JSON with two spaces; what is none stays as it is. */
export function prettyJson(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
