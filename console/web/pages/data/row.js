// One datapoint: what it has, what is near it, and a form that changes it.

import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { call, post } from "../../calls.js";
import { useKeys } from "../../keys.js";
import { Dialog, Drawer } from "../../parts/dialog.js";
import { linkOf } from "../../parts/hit.js";
import { Problem, useLoaded } from "../../parts/load.js";
import { HINTS, fieldsOf, messageOf } from "../../parts/typed_values.js";
import { attributesOf, clock, count, number, shown } from "../../parts/values.js";
import { Link, address, route, setParams } from "../../route.js";

const PASSAGES = 500, NEIGHBOURS = 8;

/** The panel. `onChanged`: the datapoint was changed or deleted. */
export function Row({ index, id, canWrite, onChanged }) {
  const hasChanges = useRef(false);
  const [isLeaving, setLeaving] = useState(false);
  const leave = () => setParams({ row: "" });
  const close = () => (hasChanges.current ? setLeaving(true) : leave());
  useKeys({ Escape: ["close the panel", () => (document.querySelector("dialog[open]") ? false : close())] });
  const { value: point, error, again } = useLoaded(async (signal) => {
    const { datapoints } = await call("SearchService/Get", { index: index.name, ids: [id] }, { signal });
    return datapoints[0] ?? null;
  }, [index.name, id]);
  const [mode, setMode] = useState("");
  return html`<${Drawer} title=${html`<bdi>${point?.title || id}</bdi>`} onClose=${close}>
    <${Problem} error=${error} />
    ${point === null && html`<p>There is no such datapoint; it may have been deleted.</p>`}
    ${point && html`
      <p class="line small"><code><bdi>${point.id}</bdi></code>
        <span class="dim">revision ${point.revision ?? 0}${(point.revision ?? "0") === "0" ? ", from a build" : ""}</span>
        ${canWrite && mode !== "edit" && html`<button onClick=${() => setMode("edit")}>Edit</button> <button class="danger" onClick=${() => setMode("delete")}>Delete …</button>`}</p>
      ${mode === "edit"
        ? html`<${Form} index=${index} point=${point} hasChanges=${hasChanges} onClose=${() => setMode("")} onSaved=${() => { setMode(""); again(); onChanged(); }} />`
        : html`<${Content} index=${index} point=${point} />
          <${Passages} index=${index} point=${point} />`}
      ${mode !== "edit" && (index.dimensions > 0 || Object.keys(index.namedVectors ?? {}).length > 0) && html`<${Neighbours} index=${index} id=${id} />`}
      ${mode === "delete" && html`<${Delete} index=${index} point=${point} onClose=${() => setMode("")} onDone=${() => { leave(); onChanged(); }} />`}`}
    ${isLeaving && html`<${Dialog} title="Discard what you typed?" onClose=${() => setLeaving(false)}>
      <p class="line"><button class="danger" onClick=${leave}>Discard</button> <button autofocus onClick=${() => setLeaving(false)}>Go on editing</button></p><//>`}
  <//>`;
}

function Content({ index, point }) {
  const link = linkOf(index.spec.search?.link, point);
  return html`${point.text && html`<p class="text" dir="auto">${point.text}</p>`}
    <table><tbody>
      ${Object.entries(attributesOf(point)).map(([name, value]) => html`<tr><th scope="row" class="dim">${name}</th><td><bdi>${shown(value)}</bdi></td></tr>`)}
      ${point.documentId && point.documentId !== point.id && html`<tr><th scope="row" class="dim">document</th><td><bdi>${point.documentId}</bdi></td></tr>`}
      ${point.timeStartS !== undefined && html`<tr><th scope="row" class="dim">plays at</th><td>${clock(point.timeStartS)}</td></tr>`}
      ${link && html`<tr><th scope="row" class="dim">link</th><td><a href=${link} target="_blank" rel="noreferrer noopener">open ↗</a></td></tr>`}
    </tbody></table>
    ${point.payloadJson && html`<h3>Payload</h3><pre>${pretty(point.payloadJson)}</pre>`}`;
}

function pretty(json) {
  // Numbers that JavaScript cannot hold stay as they are.
  return /\d{16}/.test(json) ? json : JSON.stringify(JSON.parse(json), null, 1);
}

const rowLink = (id, text) => html`<${Link} to=${address("data", route.value.index, { ...Object.fromEntries(route.value.params), row: id })}><bdi>${text || id}</bdi><//>`;

function Passages({ index, point }) {
  const document = point.documentId || point.id;
  const { value, error } = useLoaded(async (signal) => {
    const where = { condition: { field: "document_id", operator: "OPERATOR_EQ", values: [{ stringValue: document }] } };
    const page = await call("SearchService/Scan", { index: index.name, where, pageSize: PASSAGES, orderBy: { field: "id" }, returnFields: ["text", "offsets"] }, { signal });
    const start = (each) => Number(each.textStart ?? 0);
    return { total: Number(page.total), points: page.datapoints.sort((a, b) => start(a) - start(b)) };
  }, [index.name, document]);
  if (error) return html`<${Problem} error=${error} />`;
  if (!value || value.total < 2) return null;
  return html`<details><summary>${count(value.total)} passages of its document</summary>
    <ol class="passages">${value.points.map((each) => html`<li class=${each.id === point.id ? "chosen" : ""}>
      ${rowLink(each.id)}${each.timeStartS !== undefined && html` <span class="dim">${clock(each.timeStartS)}</span>`}
      <div class="clip" dir="auto">${each.text}</div></li>`)}</ol>
    ${value.total > value.points.length && html`<p class="dim small">the first ${count(value.points.length)}</p>`}</details>`;
}

function Neighbours({ index, id }) {
  const [isOpen, setOpen] = useState(false);
  const { value, error } = useLoaded((signal) => (isOpen
    ? call("SearchService/Search", { index: index.name, query: { id }, options: { k: NEIGHBOURS, mode: "MODE_DENSE", returnFields: ["title", "text"] } }, { signal })
    : undefined), [index.name, id, isOpen]);
  return html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>Nearest by vector</summary>
    ${error && html`<p class="dim small">${error.message}</p>`}
    <ol>${value?.hits.map(({ datapoint, score }) => html`<li>${rowLink(datapoint.id, datapoint.title)} <span class="dim">${number(score)}</span>
      <div class="clip" dir="auto">${datapoint.text}</div></li>`)}</ol></details>`;
}

function formOf(point, attributes) {
  return Object.fromEntries([
    ["title", { name: "title", label: "title", type: "string", text: point.title ?? "" }],
    ...fieldsOf(point, attributes).map((field) => [`attributes.${field.name}`, { ...field, label: field.name }]),
    ["payload_json", { name: "payload", label: "payload", type: "payload", text: point.payloadJson ?? "" }],
  ]);
}

/** The fields as a form. What has changed meanwhile is shown beside what was typed, which stays. */
function Form({ index, point, hasChanges, onClose, onSaved }) {
  const [base, setBase] = useState(point);
  const [texts, setTexts] = useState({});
  const [state, setState] = useState({});
  const first = formOf(point, index.attributes), now = formOf(base, index.attributes);
  const changed = Object.keys(texts).filter((path) => texts[path] !== (now[path]?.text ?? ""));
  hasChanges.current = changed.length > 0;
  useEffect(() => () => (hasChanges.current = false), []);
  const save = async (event) => {
    event.preventDefault();
    const datapoint = { id: point.id, attributes: {} };
    const wrong = {};
    for (const path of changed) {
      const { name, type } = first[path] ?? now[path];
      try {
        if (path === "title") datapoint.title = texts[path] || undefined;
        else if (type === "payload") datapoint.payloadJson = texts[path].trim() ? (JSON.parse(texts[path]), texts[path]) : undefined;
        else {
          const message = messageOf(texts[path], type);
          // Without a value, a path of the mask clears.
          if (Object.keys(message).length) datapoint.attributes[name] = message;
        }
      } catch (error) {
        wrong[path] = error.message;
      }
    }
    setState({ wrong });
    if (Object.keys(wrong).length) return;
    setState({ busy: true });
    try {
      await post("/update", { index: index.name, upserts: [{ datapoint, condition: { ifRevision: base.revision ?? "0" } }], paths: changed });
      onSaved();
    } catch (error) {
      if (error.code !== "failed_precondition") return setState({ error });
      const { datapoints } = await call("SearchService/Get", { index: index.name, ids: [point.id] });
      if (!datapoints.length) return setState({ error: { message: "The datapoint was deleted meanwhile; nothing was saved." } });
      setBase(datapoints[0]);
      setState({ conflict: true });
    }
  };
  const field = (path) => {
    const { label, type } = first[path] ?? now[path];
    const text = texts[path] ?? now[path]?.text ?? "";
    const set = (event) => setTexts({ ...texts, [path]: event.target.value });
    const isLong = ["string_list", "payload"].includes(type) || text.length > 60;
    const moved = state.conflict && (now[path]?.text ?? "") !== (first[path]?.text ?? "");
    return html`<label key=${path} class="field"><span>${label} <span class="dim">${path.startsWith("attributes.") ? type : ""} ${HINTS[type] ?? ""}</span></span>
      ${type === "bool"
        ? html`<select value=${text} onChange=${set}><option value="">–</option><option>true</option><option>false</option></select>`
        : isLong ? html`<textarea dir="auto" rows=${Math.min(8, text.split("\n").length + 1)} value=${text} onInput=${set} />` : html`<input dir="auto" value=${text} onInput=${set} />`}
      ${moved && html`<span class="problem">is now: <bdi>${now[path]?.text || "–"}</bdi></span>`}
      ${state.wrong?.[path] && html`<span class="problem" role="alert">${state.wrong[path]}</span>`}</label>`;
  };
  return html`<form class="fields" onSubmit=${save}>
    ${[...new Set([...Object.keys(first), ...Object.keys(now)])].map(field)}
    ${state.conflict && html`<p class="problem" role="alert">Somebody has changed this datapoint meanwhile: nothing was saved, and what you typed is still here. Save again to write it over the new revision ${base.revision}.</p>`}
    <${Problem} error=${state.error} />
    <p class="line"><button disabled=${state.busy || !changed.length}>Save ${changed.length || ""}</button> <button type="button" onClick=${onClose}>Cancel</button>
      <span class="dim small">This row only; other passages of its document keep theirs. The text stays: to change it, add its file again.</span></p></form>`;
}

function Delete({ index, point, onClose, onDone }) {
  const [error, setError] = useState(null);
  const hasDocument = point.documentId && point.documentId !== point.id;
  const run = async (request) => {
    try {
      await call("IndexService/Delete", { index: index.name, ...request });
      onDone();
    } catch (failed) {
      setError(failed.code === "failed_precondition" ? { message: "Somebody has changed this datapoint meanwhile: it was not deleted. Close, look, and delete it again." } : failed);
    }
  };
  return html`<${Dialog} title="Delete for good?" onClose=${onClose}>
    <p><bdi>${point.title || point.id}</bdi> cannot be brought back.</p>
    <${Problem} error=${error} />
    <p class="line"><button class="danger" onClick=${() => run({ ids: [point.id], condition: { ifRevision: point.revision ?? "0" } })}>Delete ${hasDocument ? "this passage" : "it"}</button>
      ${hasDocument && html`<button class="danger" onClick=${() => run({ documentIds: [point.documentId] })}>Delete its whole document</button>`}
      <button autofocus onClick=${onClose}>Cancel</button></p><//>`;
}
