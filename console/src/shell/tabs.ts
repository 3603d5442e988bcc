import type { Component } from 'svelte';
import type { IconName } from '../ui/icons';

export interface TabProps {
  /** Whether it is the one that is shown: a tab stays mounted once it was opened, so that what runs in it goes on. */
  active: boolean;
}

interface Tab {
  id: string;
  name: string;
  icon: IconName;
  load: () => Promise<{ default: Component<TabProps> }>;
  /** What it has in the sidebar, below the tabs. */
  sidebar?: () => Promise<{ default: Component<Record<string, never>> }>;
}

const roots = import.meta.glob<{ default: Component<TabProps> }>('../*/Tab.svelte');
const sidebars = import.meta.glob<{ default: Component<Record<string, never>> }>('../*/Sidebar.svelte');
const order: [string, string, IconName][] = [
  ['chat', 'Chat', 'chat'],
  ['talk', 'Talk', 'talk'],
  ['duplex', 'Duplex', 'duplex'],
  ['events', 'Events', 'events'],
  ['operate', 'Operate', 'operate'],
];

/** The tabs in their order: a folder with a `Tab.svelte` is one. */
export const tabs: Tab[] = order.flatMap(([id, name, icon]) => {
  const load = roots[`../${id}/Tab.svelte`];
  return load ? [{ id, name, icon, load, sidebar: sidebars[`../${id}/Sidebar.svelte`] }] : [];
});

/** Those whose messages are shown in the drawer below them. */
export const WITH_DRAWER = ['chat', 'talk', 'duplex'] as const;
