import { json } from './api';
import { recall, remember } from './storage';

/** What an engine can do, as `/v1/models` and `/workers` say; the fields that the page reads. */
export interface Abilities {
  images: boolean;
  files: boolean;
  audio_in: boolean;
  tools: boolean;
  efforts: string[];
  voices: string[];
  turn_detection: string[];
  full_duplex: boolean;
  sees: boolean;
  videos: boolean;
  answers: boolean;
  hosted: string[];
}

export interface Details {
  engine: string | null;
  state: 'ready' | 'unavailable';
  abilities: Abilities | null;
  context_window: number | null;
  listens: boolean;
  speaks: boolean;
  voices: string[];
  languages: string[];
  kinds: string[];
}

export interface Model {
  id: string;
  input_modalities?: string[];
  antiphon?: Details;
}

/** What a tab asks of a model. */
export type Job = 'chat' | 'talk' | 'duplex' | 'duplex_chat';

/** Why a model can't do a tab's job; empty if it can. */
export function obstacle(model: Model, job: Job): string {
  const details = model.antiphon;
  if (!details) return '';
  if (details.abilities && !details.abilities.answers) return 'makes vectors only';
  // Its kinds count the server's speech models too, its abilities only what the engine does by itself.
  if (job === 'duplex' && !details.kinds.includes('audio')) return 'no full duplex';
  if (job === 'duplex_chat' && !details.kinds.includes('chat') && details.kinds.length) return 'not in chat';
  if (job === 'talk' && !details.listens && details.engine !== null) return 'does not hear';
  if (job === 'talk' && !details.kinds.includes('realtime') && details.kinds.length) return 'not in Realtime';
  if (job === 'chat' && !details.kinds.includes('responses') && details.kinds.length) return 'live conversations only';
  return '';
}

const WORDS_OF_JOB: Record<Job, string[]> = {
  chat: ['reasons', 'tools', 'sees', 'picks a model'],
  talk: ['hears', 'speaks', 'tools'],
  duplex: ['hears', 'sees', 'speaks'],
  duplex_chat: ['sees', 'speaks'],
};

/** A model's abilities, as words; of a tab's job, those that matter there. */
export function abilityWords(model: Model, job?: Job): string[] {
  const words = allWords(model);
  return job ? words.filter((word) => WORDS_OF_JOB[job].includes(word)) : words;
}

function allWords(model: Model): string[] {
  const { abilities, listens, speaks } = model.antiphon ?? {};
  const sees = abilities?.images || abilities?.sees || model.input_modalities?.includes('image');
  return [
    abilities?.efforts.length ? 'reasons' : '',
    abilities?.tools ? 'tools' : '',
    sees ? 'sees' : '',
    listens || abilities?.audio_in ? 'hears' : '',
    speaks ? 'speaks' : '',
    model.antiphon?.kinds.includes('audio') ? 'full duplex' : '',
    abilities === null && model.antiphon?.engine === null ? 'picks a model' : '',
  ].filter(Boolean);
}

class Models {
  all = $state<Model[]>([]);
  error = $state<unknown>(null);
  isKnown = $state(false);
  #picked = $state<Record<string, string>>(recall('models', {}));

  #tellKnown: () => void = () => undefined;
  /** Settles once the models are known: while weights are fetched, that is later. */
  readonly known = new Promise<void>((done) => { this.#tellKnown = done; });

  #load: Promise<void> | null = null;

  /** Read them; who asks meanwhile gets the same ones. */
  load(): Promise<void> {
    this.#load ??= this.#read().finally(() => { this.#load = null; });
    return this.#load;
  }

  async #read(): Promise<void> {
    try {
      this.all = (await json<{ data: Model[] }>('/v1/models')).data;
      this.error = null;
      this.isKnown = true;
      this.#tellKnown();
    } catch (error) {
      this.error = error;
    }
  }

  named(id: string): Model | undefined {
    return this.all.find((each) => each.id === id);
  }

  /** The model of a tab: the one that was chosen last, else the first that can do it. */
  of(job: Job): string {
    const chosen = this.#picked[job];
    if (chosen && this.named(chosen)) return chosen;
    const able = this.all.filter((each) => !obstacle(each, job));
    return (able.find((each) => each.antiphon?.state !== 'unavailable') ?? able[0])?.id ?? '';
  }

  pick(job: Job, id: string): void {
    this.#picked[job] = id;
    remember('models', $state.snapshot(this.#picked));
  }
}

export const models = new Models();
