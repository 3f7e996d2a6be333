// An index begins, and ends.

import { html, useState } from "../../vendor/preact.js";
import { call, post } from "../../calls.js";
import { Dialog } from "../../parts/dialog.js";
import { Problem, useLoaded } from "../../parts/load.js";
import { TYPES } from "../../parts/typed_values.js";
import { bytes, count } from "../../parts/values.js";
import { address, go } from "../../route.js";
import { FileField, Report, send } from "./files.js";

const NAME = /^[a-z0-9][a-z0-9_-]{0,62}$/;
const NO_MODEL = "";

/** The dialog that drops an index. */
export function DropIndex({ index, onClose }) {
  const [typed, setTyped] = useState("");
  const [state, setState] = useState({});
  const drop = async (event) => {
    event.preventDefault();
    setState({ busy: true });
    try {
      await call("IndexService/DropIndex", { index: index.name }, { timeoutMs: 120000 });
      go("/");
    } catch (error) {
      setState({ error });
    }
  };
  return html`<${Dialog} title="Drop the index?" onClose=${onClose}>
    <p>All ${count(index.rows)} datapoints of <b>${index.name}</b>, its versions and its log are removed, for good. Export it first if you may want it again.</p>
    <form class="fields" onSubmit=${drop}>
      <label class="field"><span>Type its name, <code>${index.name}</code>:</span><input autocomplete="off" autofocus value=${typed} onInput=${(e) => setTyped(e.target.value)} /></label>
      <${Problem} error=${state.error} />
      <p class="line"><button class="danger" disabled=${state.busy || typed !== index.name}>Drop ${index.name}</button> <button type="button" onClick=${onClose}>Cancel</button></p></form><//>`;
}

/** Returns the spec of the form, as the SDK's create_index makes it. */
function specOf({ name, model, attributes, lexical, source: draft }, dimensions) {
  // Passages are cut by tokens of an encoder.
  const { chunk, ...fields } = draft ?? {};
  const source = draft && (model && chunk ? draft : fields);
  const spec = { index: name };
  if (model) spec.encoder = { model };
  if (attributes.length) spec.attributes = Object.fromEntries(attributes.filter(([key]) => key).map(([key, type]) => [key, type]));
  if (lexical) spec.lexical = lexical;
  if (model || dimensions || lexical) spec.vectors = "optional";
  spec.source = source ?? (model || !dimensions ? { id: "id", text: "text", title: "title" } : { id: "id", vector: "vector", text: "text", title: "title" });
  return spec;
}

const python = (value) => JSON.stringify(value, null, 4).replace(/(?<=[[:,{] ?\n? *)\b(true|false|null)\b(?=[\],}\n])/g, (word) => ({ true: "True", false: "False", null: "None" })[word]);

/** The dialog that creates an index, of what is typed or of what files have. */
export function CreateIndex({ target, onClose }) {
  const { value: encoders, error: unknown } = useLoaded(async (signal) => (await call("EmbeddingService/ListEncoders", {}, { signal })).encoders, []);
  const [form, setForm] = useState({ name: "", model: null, dimensions: "", lexical: true, attributes: [], source: null });
  const [state, setState] = useState({});
  const models = [...new Set((encoders ?? []).map((encoder) => encoder.model))];
  const model = form.model ?? models[0] ?? NO_MODEL;
  const dimensions = model ? 0 : Number(form.dimensions) || 0;
  const set = (changes) => setForm({ ...form, ...changes });
  const spec = specOf({ ...form, model }, dimensions);
  const guess = async (files) => {
    setState({ busy: `sending ${bytes(files.reduce((sum, file) => sum + file.size, 0))} …` });
    try {
      const upload = await send(files, () => {});
      setState({ busy: "looking at them …", upload });
      const { spec: draft, report } = await post("/files/draft", { upload });
      setState({ upload, report });
      set({
        source: draft.source, attributes: Object.entries(draft.attributes ?? {}), lexical: draft.lexical ?? true,
        name: form.name || files[0].name.split(".")[0].toLowerCase().replace(/[^a-z0-9_-]+/g, "-").replace(/^[-_]+|[-_]+$/g, "").slice(0, 63),
      });
    } catch (error) {
      setState({ error });
    }
  };
  const create = async (event) => {
    event.preventDefault();
    setState({ ...state, error: null, busy: "creating …" });
    try {
      await call("IndexService/CreateIndex", { specJson: JSON.stringify(spec), dimensions }, { timeoutMs: 300000 });
      if (state.upload) await post("/files/write", { upload: state.upload, index: form.name });
      go(address("data", form.name));
    } catch (error) {
      setState({ ...state, busy: "", error });
    }
  };
  const close = () => {
    if (state.upload) post("/files/discard", { upload: state.upload }).catch(() => {});
    onClose();
  };
  const isGood = NAME.test(form.name) && (model || dimensions || form.lexical);
  const code = `import scannery\n\nclient = scannery.connect(${JSON.stringify(target)})\nindex = client.create_index(${python(spec)}${dimensions ? `, dimensions=${dimensions}` : ""})`;
  const kind = (type) => (typeof type === "string" ? type : type.type);
  return html`<${Dialog} title="Create an index" onClose=${close} wide>
    <form class="fields" onSubmit=${create}>
      <${FileField} onFiles=${guess} disabled=${Boolean(state.busy)} />
      <p class="dim small">With files, the form is filled by what they have, and they are written to the new index. Without, it begins empty.</p>
      ${state.busy && html`<p role="status">${state.busy}</p>`}
      ${state.report && html`<details><summary>What the files have</summary><${Report} report=${state.report} /></details>`}
      <label class="field"><span>name <span class="dim">lower-case letters, digits, - and _</span></span><input required autofocus value=${form.name} onInput=${(e) => set({ name: e.target.value })} /></label>
      <label class="field"><span>encoder <span class="dim">the model that makes vectors of texts; those that the server may load</span></span>
        <select value=${model} onChange=${(e) => set({ model: e.target.value })}>${models.map((each) => html`<option value=${each}>${each}</option>`)}<option value=${NO_MODEL}>none: vectors of callers, or words alone</option></select></label>
      ${unknown && html`<p class="dim small">${unknown.message}</p>`}
      ${!model && html`<label class="field"><span>dimensions <span class="dim">components of the vectors that you will write; empty: none</span></span>
        <input type="number" min="1" max="16384" value=${form.dimensions} onInput=${(e) => set({ dimensions: e.target.value })} /></label>`}
      <label><input type="checkbox" checked=${Boolean(form.lexical)} onChange=${(e) => set({ lexical: e.target.checked })} /> also search by words</label>
      <fieldset><legend>attributes</legend>
        ${form.attributes.map(([key, type], i) => {
          const change = (entry) => set({ attributes: form.attributes.map((each, n) => (n === i ? entry : each)).filter(Boolean) });
          return html`<div class="line"><input aria-label="attribute" placeholder="name" value=${key} onInput=${(e) => change([e.target.value, type])} />
            <select aria-label="type" value=${kind(type)} onChange=${(e) => change([key, typeof type === "string" ? e.target.value : { ...type, type: e.target.value }])}>${TYPES.map((each) => html`<option>${each}</option>`)}</select>
            <button type="button" class="quiet" aria-label=${`remove ${key}`} onClick=${() => change(null)}>✕</button></div>`;
        })}
        <button type="button" class="quiet" onClick=${() => set({ attributes: [...form.attributes, ["", "string"]] })}>+ attribute</button></fieldset>
      <${Problem} error=${state.error} />
      <p class="line"><button disabled=${!isGood || Boolean(state.busy)}>Create${state.upload ? " and write the files" : ""}</button> <button type="button" onClick=${close}>Cancel</button></p>
      <details><summary>The same in Python</summary><pre>${code}</pre></details>
    </form><//>`;
}
