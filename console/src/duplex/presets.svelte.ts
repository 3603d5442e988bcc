import { json } from '../lib/api';
import { session } from '../lib/session.svelte';
import type { Mode } from './protocol';

/** As the original's pages have them. */
interface Preset {
  id: string;
  name: string;
  description?: string;
  system_prompt?: string;
  ref_audio?: { name: string };
}

interface Voice {
  id: string;
  name: string;
}

const FOLDERS: Record<Mode, string> = { chat: 'turnbased', audio: 'audio_duplex', video: 'omni' };

/** What the server has in store for the beginning of a session. */
class Presets {
  #byMode = $state<Record<string, Preset[]>>({});
  voices = $state<Voice[]>([]);
  /** How much of an answer waits before it is heard. */
  delay_ms = 200;
  #isLoaded = false;

  async load(): Promise<void> {
    if (this.#isLoaded || !session.may('realtime')) return;
    this.#isLoaded = true;
    try {
      this.#byMode = await json<Record<string, Preset[]>>('/api/presets');
      this.delay_ms = (await json<{ playback_delay_ms: number }>('/api/frontend_defaults')).playback_delay_ms;
      this.voices = (await json<{ ref_audios: Voice[] }>('/api/assets/ref_audio')).ref_audios;
    } catch {
      this.#isLoaded = false; // they are a help, and are asked for again
    }
  }

  of(mode: Mode): Preset[] {
    return this.#byMode[FOLDERS[mode]] ?? [];
  }

  /** The recording of the voice to speak with, in base64; empty for the model's own. */
  async reference(mode: Mode, presetId: string, voiceId: string): Promise<string> {
    if (voiceId) return (await json<{ base64: string }>(`/api/assets/ref_audio/${encodeURIComponent(voiceId)}`)).base64;
    if (!this.of(mode).find((each) => each.id === presetId)?.ref_audio) return '';
    const sound = await json<{ ref_audio?: { data: string } }>(`/api/presets/${FOLDERS[mode]}/${encodeURIComponent(presetId)}/audio`);
    return sound.ref_audio?.data ?? '';
  }
}

export const presets = new Presets();
