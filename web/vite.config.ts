// Builds the page into crates/web/dist, which is committed: the same source always gives the same
// bytes. During development (`npm run dev`), requests go to a server at JACKALOPE_URL.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

/** Number of hexadecimal digits of a version; the server computes the same (crates/web/src/files.rs). */
const VERSION_DIGITS = 16;

/** Adds each asset's hash to its address in the page, so that browsers may keep it for ever. */
function versions(): Plugin {
  return {
    name: "versions",
    apply: "build",
    enforce: "post",
    generateBundle: {
      order: "post",
      handler(_, bundle) {
        const page = bundle["index.html"];
        if (page?.type !== "asset") throw new Error("the bundle has no index.html");
        const contents: Record<string, string | Uint8Array> = {
          "assets/icon.svg": readFileSync("public/assets/icon.svg"),
        };
        for (const [name, file] of Object.entries(bundle)) {
          contents[name] = file.type === "chunk" ? file.code : file.source;
        }
        page.source = String(page.source).replace(/"\/(assets\/[a-z.]+)"/g, (_, name: string) => {
          const content = contents[name];
          if (content === undefined) throw new Error(`the page names ${name}, which is not built`);
          const hash = createHash("sha256").update(content).digest("hex").slice(0, VERSION_DIGITS);
          return `"/${name}?v=${hash}"`;
        });
      },
    },
  };
}

const server = process.env["JACKALOPE_URL"] ?? "http://127.0.0.1:8080";
const forwarded = ["/v1", "/api", "/health", "/metrics", "/requests", "/errors", "/memory", "/model", "/queue"];

export default defineConfig({
  plugins: [versions()],
  build: {
    outDir: "../crates/web/dist",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/app.js",
        assetFileNames: (asset) => (asset.names.some((it) => it.endsWith(".css")) ? "assets/app.css" : "assets/[name][extname]"),
      },
    },
  },
  server: { proxy: Object.fromEntries(forwarded.map((path) => [path, { target: server, changeOrigin: true }])) },
});
