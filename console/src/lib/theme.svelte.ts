import { recall, remember } from './storage';

export type Theme = 'system' | 'light' | 'dark';

class ThemeChoice {
  #choice = $state<Theme>(recall('theme', 'system'));

  constructor() {
    this.#apply();
  }

  get choice(): Theme {
    return this.#choice;
  }

  set choice(choice: Theme) {
    this.#choice = choice;
    remember('theme', choice);
    this.#apply();
  }

  #apply(): void {
    if (this.#choice === 'system') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.#choice;
  }
}

export const theme = new ThemeChoice();
