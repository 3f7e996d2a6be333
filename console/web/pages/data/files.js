// Files on their way into an index: sent in parts, looked at, and written by a job of the console.

import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { CallError, errorOf, post, proof } from "../../calls.js";
import { Dialog } from "../../parts/dialog.js";
import { Problem, useLoaded } from "../../parts/load.js";
import { bytes, count } from "../../parts/values.js";
import { download } from "./export.js";

const PART_BYTES = 4 << 20, MAX_BYTES = 256 << 20;
const POLL_MS = 1000;

/** What the dialog for files offers. */
export const ENDINGS = ".txt .md .html .pdf .docx .epub .srt .vtt .csv .tsv .json .jsonl .parquet .arrow .avro .rss .gz .zst";

/** Sends files; `onProgress(bytes)`. Returns the id of the upload; throws CallError. */
export async function send(files, onProgress, signal) {
  const total = files.reduce((sum, file) => sum + file.size, 0);
  if (total > MAX_BYTES) throw new CallError("invalid_argument", `These are ${bytes(total)}; the console takes ${bytes(MAX_BYTES)}. Larger inputs: scannery build.`);
  const { upload } = await post("/files/begin", {}, { signal });
  let sent = 0;
  for (const file of files) {
    let offset = 0;
    do {
      const content = file.slice(offset, offset + PART_BYTES);
      const response = await fetch(`/files/add?${new URLSearchParams({ upload, name: file.name, offset })}`, {
        method: "POST", body: content, headers: { ...proof(), "content-type": "application/octet-stream" }, credentials: "same-origin", signal,
      });
      if (!response.ok) throw errorOf(response, await response.json().catch(() => ({})));
      offset += PART_BYTES;
      onProgress((sent += content.size));
    } while (offset < file.size);
  }
  return upload;
}

/** A field that takes files by choice or by drop. */
export function FileField({ onFiles, disabled = false }) {
  const take = (list) => list?.length && onFiles([...list]);
  return html`<label class="drop" onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => {
    event.preventDefault();
    event.stopPropagation();
    take(event.dataTransfer.files);
  }}>Drop files here, or choose them
    <input type="file" multiple disabled=${disabled} onChange=${(event) => take(event.target.files)} />
    <span class="dim small">text, Markdown, HTML, PDF, subtitles, CSV, JSONL, Parquet and what else “scannery build” reads; ${bytes(MAX_BYTES)} at most</span></label>`;
}

/** What a sample of the files becomes: fields, what would be refused and why, first passages. */
export function Report({ report }) {
  const absent = report.fields.filter((field) => !field.present && !field.is_of_passages);
  return html`<p role="status">Looked at ${report.is_whole ? "all" : "a sample of"} ${count(report.records)} records of ${count(report.files)} files: ${report.refused ? `${count(report.refused)} would be refused` : "none would be refused"}.</p>
    <div class="scroll"><table><thead><tr><th scope="col">field of the index</th><th scope="col">read from</th><th scope="col">type</th><th scope="col">present</th><th scope="col">examples</th></tr></thead><tbody>
      ${report.fields.filter((field) => field.present || field.is_of_passages).map((field) => html`<tr><th scope="row"><bdi>${field.name}</bdi></th><td><bdi>${field.source}</bdi></td><td>${field.type}</td>
        <td>${field.is_of_passages ? "by passage" : `${Math.round(field.present * 100)} %`}</td><td><div class="clip"><bdi>${field.examples.join(" · ")}</bdi></div></td></tr>`)}
    </tbody></table></div>
    ${absent.length > 0 && html`<p class="dim small">In no record: ${absent.map((field) => html`<bdi>${field.name}</bdi> `)}</p>`}
    ${report.unused.length > 0 && html`<p class="dim small">Not used: <bdi>${report.unused.slice(0, 20).join(", ")}</bdi></p>`}
    ${report.faults.length > 0 && html`<ul class="problem">${report.faults.slice(0, 10).map((fault) => html`<li>${count(fault.records)} × <bdi>${fault.message}</bdi> (<bdi>${fault.place}</bdi>)</li>`)}</ul>`}
    ${report.passages.length > 0 && html`<details><summary>First passages</summary><ol>${report.passages.slice(0, 5).map((passage) => html`<li><code><bdi>${passage.id}</bdi></code> <b><bdi>${passage.title}</bdi></b><div class="clip" dir="auto">${passage.text}</div></li>`)}</ol></details>`}`;
}

/** The dialog: send, look, write. */
export function Files({ index, dropped, onStarted, onClose }) {
  const [state, setState] = useState({});
  const controller = useRef(new AbortController());
  const upload = useRef("");
  const discard = () => {
    if (upload.current) post("/files/discard", { upload: upload.current }).catch(() => {});
    upload.current = "";
  };
  const take = async (files) => {
    discard();
    const total = files.reduce((sum, file) => sum + file.size, 0);
    setState({ files, total, sent: 0 });
    try {
      upload.current = await send(files, (sent) => setState({ files, total, sent }), controller.current.signal);
      setState({ files, total, sent: total, isLooking: true });
      const { report } = await post("/files/check", { upload: upload.current, index: index.name }, { signal: controller.current.signal });
      setState({ files, total, sent: total, report });
    } catch (error) {
      if (!controller.current.signal.aborted) setState({ files, total, error });
    }
  };
  const close = () => {
    controller.current.abort();
    discard();
    onClose();
  };
  const write = async () => {
    setState({ ...state, isWriting: true });
    try {
      await post("/files/write", { upload: upload.current, index: index.name });
      upload.current = "";
      onStarted();
      onClose();
    } catch (error) {
      setState({ ...state, error });
    }
  };
  useEffect(() => { if (dropped.length) take(dropped); }, []);
  const { files, total, sent, report, error, isLooking, isWriting } = state;
  return html`<${Dialog} title=${`Add files to ${index.name}`} onClose=${close} wide>
    <${FileField} onFiles=${take} disabled=${isWriting} />
    ${files && html`<p role="status">${count(files.length)} files, ${bytes(total)}${sent < total ? html`: <progress value=${sent} max=${total || 1} /> ${bytes(sent)} sent` : isLooking ? ": looking at them …" : ""}</p>`}
    <${Problem} error=${error} />
    ${report && html`<${Report} report=${report} />
      <p class="line"><button disabled=${isWriting || report.refused >= report.records} onClick=${write}>Write them to ${index.name}</button> <button onClick=${close}>Cancel</button>
        <span class="dim small">A datapoint with the id of one that is there replaces it.</span></p>`}
  <//>`;
}

/** Returns the jobs of an index, as `useLoaded` does; asked again while one runs. */
export function useJobs(index, isOn) {
  const loaded = useLoaded(async (signal) => (isOn ? (await post("/files/jobs", { index }, { signal })).jobs : []), [index, isOn]);
  const isRunning = loaded.value?.some((job) => ["running", "stopping"].includes(job.state));
  useEffect(() => {
    if (!isRunning || loaded.busy) return undefined;
    const timer = setTimeout(loaded.again, POLL_MS);
    return () => clearTimeout(timer);
  }, [isRunning, loaded.busy, loaded.value]);
  return loaded;
}

const WORDS = { running: "writing", stopping: "stopping", done: "done", stopped: "stopped", failed: "failed" };

/** The jobs, the newest first. */
export function Jobs({ jobs }) {
  const [hidden, setHidden] = useState([]);
  const rows = (jobs.value ?? []).filter(({ job }) => !hidden.includes(job));
  if (!rows.length) return null;
  const letters = async (job) => {
    const answer = await post("/files/letters", { job });
    download(new Blob(answer.letters.map((letter) => `${JSON.stringify(letter)}\n`), { type: "application/x-ndjson" }), "refused.jsonl");
  };
  return html`<section class="jobs" aria-label="Files being written">${rows.map((job) => html`<article key=${job.job}>
    <p class="line"><b>${WORDS[job.state]}</b> <span class="grow clip"><bdi>${job.files.slice(0, 3).join(", ")}</bdi>${job.files.length > 3 ? ` and ${job.files.length - 3} more` : ""}</span>
      <span role="status">${count(job.records)} records read, ${count(job.rows)} datapoints written, ${Number(job.rowsPerSecond).toFixed(0)} rows/s${job.refused ? html`, <span class="problem">${count(job.refused)} refused</span>` : ""}</span>
      ${job.state === "running" && html`<button onClick=${() => post("/files/stop", { job: job.job }).then(jobs.again)}>Stop</button>`}
      ${!["running", "stopping"].includes(job.state) && html`<button class="quiet" aria-label="Hide" onClick=${() => setHidden([...hidden, job.job])}>✕</button>`}</p>
    ${job.error && html`<p class="problem" role="alert">${job.error}${job.rows ? "; what was written before it stays." : ""}</p>`}
    ${job.waits && html`<p class="dim">Waits, and goes on by itself: ${job.waits}</p>`}
    ${job.ignored.length > 0 && html`<p class="dim small">The index has no place for: <bdi>${job.ignored.join(", ")}</bdi></p>`}
    ${job.warnings.map((warning) => html`<p class="problem small">${warning}</p>`)}
    ${job.refused > 0 && html`<details><summary>Refused records</summary><ul>${job.letters.map((letter) => html`<li><bdi>${letter.place}</bdi>${letter.id && html` <code><bdi>${letter.id}</bdi></code>`}: <bdi>${letter.error}</bdi></li>`)}</ul>
      <button onClick=${() => letters(job.job)}>Download ${count(job.kept)}</button>${job.kept < job.refused && html` <span class="dim small">the first of ${count(job.refused)}</span>`}</details>`}
  </article>`)}<p class="dim small">Jobs go on while this page is closed, and end with the console.</p></section>`;
}
