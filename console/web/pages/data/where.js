// Writes to all datapoints that a filter allows: first their number, then batches.

import { html, useRef, useState } from "../../vendor/preact.js";
import { call } from "../../calls.js";
import { Dialog } from "../../parts/dialog.js";
import { Problem, useLoaded } from "../../parts/load.js";
import { HINTS, messageOf, typeName } from "../../parts/typed_values.js";
import { count, shown } from "../../parts/values.js";

/** Above this number, the index's name must be typed. */
const MANY = 100;
const BATCH = 2000;

/** The dialog. `kind`: `change` or `delete`. */
export function WriteWhere({ kind, index, filter, where, onDone, onClose }) {
  const isDelete = kind === "delete";
  const method = isDelete ? "IndexService/DeleteWhere" : "IndexService/UpdateWhere";
  const names = Object.keys(index.attributes).sort();
  const [attribute, setAttribute] = useState(names[0] ?? "");
  const [text, setText] = useState("");
  const [typed, setTyped] = useState("");
  const [state, setState] = useState({ done: 0 });
  const stopped = useRef(false);
  const request = { index: index.name, where: filter ?? {} };
  const { value, error } = useLoaded(async (signal) => {
    const answer = await call(method, { ...request, dryRun: true, ...(isDelete ? {} : { attributes: { [names[0] ?? "x"]: {} } }) }, { signal });
    return Number(isDelete ? answer.deleted : answer.updated);
  }, []);
  const type = typeName(index.attributes[attribute]);
  const run = async (event) => {
    event.preventDefault();
    let attributes;
    try {
      if (!isDelete) attributes = { [attribute]: messageOf(text, type) };
    } catch (wrong) {
      return setState({ done: 0, error: { message: `${attribute}: ${wrong.message}` } });
    }
    stopped.current = false;
    let done = 0, remaining = 1, until, to = index.name;
    setState({ done, busy: true });
    try {
      while (remaining && !stopped.current) {
        const answer = await call(method, { ...request, index: to, attributes, limit: BATCH, untilSequence: until }, { timeoutMs: 120000 });
        const rows = Number(isDelete ? answer.deleted : answer.updated);
        done += rows;
        [remaining, until, to] = [rows ? Number(answer.remaining) : 0, answer.untilSequence, answer.index || to];
        setState({ done, remaining, busy: true });
      }
      setState({ done, remaining, finished: true });
    } catch (failed) {
      setState({ done, remaining, error: failed, finished: done > 0 });
    }
    onDone();
  };
  const verb = isDelete ? "Delete" : "Change";
  return html`<${Dialog} title=${isDelete ? "Delete by filter" : "Change an attribute by filter"} onClose=${state.busy ? undefined : onClose}>
    <p>${Object.keys(where).length ? html`Filter: <code><bdi>${shown(where)}</bdi></code>` : html`<b>No filter: all datapoints of ${index.name}.</b>`}</p>
    <${Problem} error=${error ?? state.error} />
    ${value !== undefined && html`<p role="status">${count(value)} datapoints ${isDelete ? "will be deleted, for good" : "will be changed"}.</p>`}
    ${value > 0 && !state.finished && html`<form class="fields" onSubmit=${run}>
      ${!isDelete && html`<label class="field"><span>attribute</span><select value=${attribute} onChange=${(e) => setAttribute(e.target.value)}>${names.map((name) => html`<option>${name}</option>`)}</select></label>
        <label class="field"><span>new value <span class="dim">${type} ${HINTS[type] ?? ""}; empty clears it</span></span>
          ${type === "bool" ? html`<select value=${text} onChange=${(e) => setText(e.target.value)}><option value="">–</option><option>true</option><option>false</option></select>`
            : type === "string_list" ? html`<textarea rows="3" value=${text} onInput=${(e) => setText(e.target.value)} />`
              : html`<input value=${text} onInput=${(e) => setText(e.target.value)} />`}</label>`}
      ${value > MANY && html`<label class="field"><span>These are many. Type the name of the index, <code>${index.name}</code>:</span>
        <input autocomplete="off" value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>`}
      <p class="line"><button class=${isDelete ? "danger" : ""} disabled=${state.busy || (value > MANY && typed !== index.name) || (!isDelete && !attribute)}>${verb} ${count(value)}</button>
        ${state.busy ? html`<button type="button" onClick=${() => (stopped.current = true)}>Stop</button>` : html`<button type="button" onClick=${onClose}>Cancel</button>`}</p></form>`}
    ${(state.busy || state.finished) && html`<p role="status">${count(state.done)} ${isDelete ? "deleted" : "changed"}${state.remaining ? `, ${count(state.remaining)} remain` : ""}.</p>`}
    ${state.finished && html`<button autofocus onClick=${onClose}>Close</button>`}
  <//>`;
}
