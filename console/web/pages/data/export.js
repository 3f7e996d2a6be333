// All rows as a file, page by page, and whether these are all.

import { html, useRef, useState } from "../../vendor/preact.js";
import { CallError, errorOf, awaySince, proof } from "../../calls.js";
import { count } from "../../parts/values.js";

const WAIT_MS = 2000, TRIES = 30;

/** Offers a Blob as a file. */
export function download(blob, name) {
  const url = URL.createObjectURL(blob);
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

async function part(request, signal) {
  const response = await fetch("/files/export", { method: "POST", body: JSON.stringify(request), headers: { ...proof(), "content-type": "application/json" }, credentials: "same-origin", signal });
  if (!response.ok) throw errorOf(response, await response.json().catch(() => ({})));
  // As a Blob, the browser keeps what is large on the disk.
  return { blob: await response.blob(), headers: response.headers };
}

/** The button, and how far the export is. */
export function Export({ index, where, ready }) {
  const [state, setState] = useState(null);
  const controller = useRef(null);
  const run = async () => {
    controller.current = new AbortController();
    const { signal } = controller.current;
    const parts = [];
    let token = "", rows = 0, total = null, name = index, tries = 0;
    setState({ rows, busy: true });
    try {
      do {
        try {
          const { blob, headers } = await part({ index: name, where, pageToken: token }, signal);
          parts.push(blob);
          rows += (await blob.text()).split("\n").length - 1;
          total = Number(headers.get("scannery-total"));
          token = headers.get("scannery-next");
          name = headers.get("scannery-index") || name;
          tries = 0;
          setState({ rows, total, busy: true });
        } catch (error) {
          // A server that comes back within a minute goes on with the same snapshot.
          if (signal.aborted || (error instanceof CallError && error.code !== "unavailable") || ++tries > TRIES) throw error;
          await new Promise((resolve) => setTimeout(resolve, awaySince.value ? 2 * WAIT_MS : WAIT_MS));
        }
      } while (token || total === null);
      download(new Blob(parts, { type: "application/x-ndjson" }), `${index}.jsonl`);
      setState({ rows, total });
    } catch (error) {
      setState(signal.aborted ? null : { rows, total, error });
    }
  };
  const isWhole = state && state.rows === state.total;
  return html`<span class="line">
    ${state?.busy
      ? html`<button onClick=${() => controller.current.abort()}>Stop export</button>`
      : html`<button disabled=${!ready} title=${where ? "the rows of the filter as JSON lines" : "all rows as JSON lines"} onClick=${run}>Export</button>`}
    ${state && html`<span class="small ${state.error || (!state.busy && !isWhole) ? "problem" : "dim"}" role="status">${count(state.rows)}${state.total !== null && state.total !== undefined ? ` of ${count(state.total)} rows` : ""}${
      state.error ? `: ${state.error.message}` : state.busy ? " …" : isWhole ? ", complete" : ": rows are missing"}</span>`}
  </span>`;
}
