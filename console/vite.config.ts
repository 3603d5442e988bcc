import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig, type Plugin } from 'vite';

/** KaTeX names every font three times. Browsers take woff2, so the package need not carry the other two. */
const woff2Only: Plugin = {
  name: 'woff2-only',
  enforce: 'pre',
  transform(code, id) {
    if (!id.includes('katex') || !id.endsWith('.css')) return undefined;
    return code.replace(/,\s*url\([^)]*\.(?:woff|ttf)\)\s*format\("(?:woff|truetype)"\)/g, '');
  },
};

export default defineConfig({
  base: './', // works below any path that a reverse proxy adds
  plugins: [
    woff2Only,
    svelte({ compilerOptions: { fragments: 'tree' } }), // builds DOM by calls: Trusted Types refuse innerHTML
  ],
  experimental: {
    // The server has index.html at / and all other files below console/assets.
    renderBuiltUrl: (name, { hostType }) =>
      hostType === 'html' ? `./console/assets/${name.replace(/^.*\//, '')}` : { relative: true },
  },
  build: {
    outDir: '../src/antiphon/console',
    emptyOutDir: true,
    target: 'es2023',
    assetsInlineLimit: 0, // small files would become data: addresses, which the policy refuses
    modulePreload: { polyfill: false },
    sourcemap: false,
  },
  server: { proxy: { '^/(v1|console|backend|queue|workers|readyz|updates|keys|usage|config|log)': { target: 'http://127.0.0.1:8642', ws: true } } },
});
