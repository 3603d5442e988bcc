import { recall, remember } from '../lib/storage';
import { presets } from './presets.svelte';
import type { Mode } from './protocol';

/** How the next session begins. */
export class Setup {
  instructions = $state('');
  presetId = $state('');
  voiceId = $state('');
  records = $state(false);
  #aloud = $state<Record<string, boolean>>({});

  take(mode: Mode, id: string): void {
    this.presetId = id;
    this.instructions = presets.of(mode).find((each) => each.id === id)?.system_prompt ?? '';
  }

  /** Chat is silent unless it is asked to speak, as the original's. */
  speaks(mode: Mode): boolean {
    return this.#aloud[mode] ?? mode !== 'chat';
  }

  setSpeaks(mode: Mode, isWanted: boolean): void {
    this.#aloud[mode] = isWanted;
  }

  get lastMode(): Mode {
    const mode = recall('options', {}).duplexMode;
    return mode === 'chat' || mode === 'audio' ? mode : 'video';
  }

  set lastMode(mode: Mode) {
    remember('options', { ...recall('options', {}), duplexMode: mode });
  }
}
