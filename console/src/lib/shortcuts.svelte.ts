import { onDestroy } from 'svelte';
import { recall, remember } from './storage';

export interface Shortcut {
  /** As it is shown and matched: `Ctrl K`, `Ctrl Shift O`, `Esc`, `?`, `1`. On a Mac, Ctrl is Cmd too. */
  keys: string;
  what: string;
  run: (event: KeyboardEvent) => void;
  /** Only then; always if it isn't given. */
  when?: () => boolean;
  /** Whether it works while a field has the focus; those with Ctrl always do. */
  inFields?: boolean;
}

class Shortcuts {
  all = $state<Shortcut[]>([]);
  /** Keys without Ctrl can be switched off, for people who speak to their machine (WCAG 2.1.4). */
  #single = $state(recall('singleKeys', true));

  get single(): boolean {
    return this.#single;
  }

  set single(on: boolean) {
    this.#single = on;
    remember('singleKeys', on);
  }

  press(event: KeyboardEvent): void {
    if (event.isComposing || event.defaultPrevented || event.altKey) return;
    const keys = nameOf(event);
    const isTyping = (event.target as Element | null)?.closest?.('input, textarea, select, [contenteditable]') != null;
    const isModal = document.querySelector('dialog:modal') !== null;
    for (const each of this.all) {
      const isSingle = each.keys.length === 1;
      if (each.keys.toLowerCase() !== keys.toLowerCase() || isModal || (each.when && !each.when())) continue;
      if (isSingle && !this.#single) continue;
      if (isTyping && !each.inFields && !each.keys.startsWith('Ctrl')) continue;
      event.preventDefault();
      each.run(event);
      return;
    }
  }
}

function nameOf(event: KeyboardEvent): string {
  const key = event.key === 'Escape' ? 'Esc' : event.key === ' ' ? 'Space' : event.key.length === 1 ? event.key : event.key;
  if (!event.ctrlKey && !event.metaKey) return key;
  return ['Ctrl', ...(event.shiftKey ? ['Shift'] : []), key.length === 1 ? key.toUpperCase() : key].join(' ');
}

export const shortcuts = new Shortcuts();

/** Add keys for as long as the component lives that calls this while it is made. */
export function useShortcuts(...added: Shortcut[]): void {
  shortcuts.all.push(...added);
  onDestroy(() => {
    const gone = new Set(added.map((each) => each.keys + each.what));
    shortcuts.all = shortcuts.all.filter((each) => !gone.has(each.keys + each.what));
  });
}
