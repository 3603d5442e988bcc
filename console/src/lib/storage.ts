/** What is remembered in this browser: choices about the page's looks and nothing that was said, and never a key. */
interface Remembered {
  theme: 'system' | 'light' | 'dark';
  /** The model that was chosen last, by tab. */
  models: Record<string, string>;
  /** Chosen microphone, loudspeaker and camera, by `deviceId`. */
  devices: Record<string, string>;
  /** Which panels are open, by name. */
  panels: Record<string, boolean>;
  /** Choices of a tab, such as the reasoning effort, by name. */
  options: Record<string, string>;
  /** Whether keys without Ctrl, such as 1 to 5, do something. */
  singleKeys: boolean;
}

const PREFIX = 'antiphon.';

export function recall<K extends keyof Remembered>(name: K, otherwise: Remembered[K]): Remembered[K] {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? otherwise : (JSON.parse(text) as Remembered[K]);
  } catch {
    return otherwise; // storage may be switched off
  }
}

export function remember<K extends keyof Remembered>(name: K, value: Remembered[K]): void {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // It holds until the page is closed, then.
  }
}
