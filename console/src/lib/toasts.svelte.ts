export interface Toast {
  id: number;
  text: string;
  kind: 'said' | 'bad';
}

const STAYS_MS = 6000;
let last = 0;

/** What is shown at the corner for a moment. */
export const toasts = $state<Toast[]>([]);

export function toast(text: string, kind: Toast['kind'] = 'said'): void {
  const id = ++last;
  toasts.push({ id, text, kind });
  setTimeout(() => dismiss(id), STAYS_MS);
}

export function dismiss(id: number): void {
  const at = toasts.findIndex((each) => each.id === id);
  if (at >= 0) toasts.splice(at, 1);
}

/** Put text on the clipboard, and say so. */
export async function copy(text: string, what = 'Copied.'): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast('The browser did not allow copying.', 'bad');
  }
}
