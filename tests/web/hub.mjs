// A hub on this machine: enough of Hugging Face's API to download a model from, which stops in the
// middle of the weights until it is told to go on.

import { createHash } from "node:crypto";
import fs from "node:fs";
import http from "node:http";
import path from "node:path";

const COMMIT = "5a17ab1e5a17ab1e5a17ab1e5a17ab1e5a17ab1e";

/** Hash by which a hub identifies a file: SHA-256 of large ones, Git's of the others. */
function blobId(name, content) {
  if (name.endsWith(".safetensors")) return createHash("sha256").update(content).digest("hex");
  return createHash("sha1").update(`blob ${content.length}\0`).update(content).digest("hex");
}

/** Offers the files of a folder as the model `repo`. */
export async function startHub(t, folder, repo) {
  const names = fs.readdirSync(folder).filter((it) => !it.startsWith(".") && fs.statSync(path.join(folder, it)).isFile());
  const files = new Map(names.map((name) => [name, fs.readFileSync(path.join(folder, name))]));
  const hub = { url: "", holdsBack: true, ranges: [] };
  const server = http.createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://hub");
    if (pathname === `/api/models/${repo}/revision/main`) {
      const siblings = [...files].map(([rfilename, content]) => {
        const id = blobId(rfilename, content);
        const size = content.length;
        return rfilename.endsWith(".safetensors") ? { rfilename, size, blobId: "a pointer", lfs: { sha256: id, size, pointerSize: 1 } } : { rfilename, size, blobId: id };
      });
      response.setHeader("content-type", "application/json");
      response.end(JSON.stringify({ id: repo, sha: COMMIT, siblings }));
      return;
    }
    const name = pathname.startsWith(`/${repo}/resolve/${COMMIT}/`) ? pathname.slice(`/${repo}/resolve/${COMMIT}/`.length) : "";
    const content = files.get(name);
    if (content === undefined) {
      response.writeHead(404, { "x-error-code": "RepoNotFound" });
      response.end("no such thing");
      return;
    }
    const range = request.headers.range;
    if (name.endsWith(".safetensors")) hub.ranges.push(range ?? null);
    const from = Number(/^bytes=(\d+)-/.exec(range ?? "")?.[1] ?? 0);
    const part = content.subarray(from);
    response.writeHead(range === undefined ? 200 : 206, {
      "content-length": part.length,
      "content-range": `bytes ${from}-${content.length - 1}/${content.length}`,
    });
    if (hub.holdsBack && name.endsWith(".safetensors")) response.write(part.subarray(0, Math.floor(part.length / 2)));
    else response.end(part);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  hub.url = `http://127.0.0.1:${server.address().port}`;
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return hub;
}
