// The rows of an index: read, changed, added from files, exported.

import { html, useEffect, useState } from "../vendor/preact.js";
import { awaySince, call } from "../calls.js";
import { useKeys } from "../keys.js";
import { useCaller } from "../parts/caller.js";
import { FilterBar, parseWhere, useFilter } from "../parts/filters.js";
import { useIndex } from "../parts/indexes.js";
import { Problem, useLoaded } from "../parts/load.js";
import { typeName } from "../parts/typed_values.js";
import { attributesOf, count, shown, withValue } from "../parts/values.js";
import { route, setParams } from "../route.js";
import { Export } from "./data/export.js";
import { Files, Jobs, useJobs } from "./data/files.js";
import { DropIndex } from "./data/indexes.js";
import { Row } from "./data/row.js";
import { WriteWhere } from "./data/where.js";

const SIZES = [25, 50, 100, 250];
const DYNAMIC_COLUMNS = 12;

/** The page. */
export function Data() {
  const { index: name, params } = route.value;
  const { value: index, error: missing, again: askIndex } = useIndex(name);
  const caller = useCaller();
  const jobs = useJobs(name, caller.write);
  const [open, setOpen] = useState("");
  const [files, setFiles] = useState([]);
  const { where, wrong } = parseWhere(params.get("where"));
  const filter = useFilter(where);
  const order = params.get("order") ?? "";
  const size = SIZES.includes(Number(params.get("size"))) ? Number(params.get("size")) : 50;
  const at = params.get("at") ?? "";
  const isReady = Boolean(index) && !filter.busy && !filter.error && !wrong;
  const request = {
    index: name, where: filter.value, pageSize: size, pageToken: at,
    orderBy: order ? { field: order.replace(/^-/, ""), descending: order.startsWith("-") } : undefined,
    // Texts are long, and shown in the panel.
    returnFields: index && !index.dynamic ? ["title", ...Object.keys(index.attributes)] : [],
  };
  const page = useLoaded((signal) => (isReady ? call("SearchService/Scan", request, { signal }) : undefined), [JSON.stringify(request), isReady]);
  const isGone = at && page.error && ["failed_precondition", "not_found"].includes(page.error.code);
  // The snapshot of the address is not kept for ever.
  useEffect(() => { if (isGone) setParams({ at: "" }, { replace: true }); }, [isGone]);
  const isFinished = jobs.value?.every((job) => !job.state.startsWith("run"));
  useEffect(() => { if (isFinished && jobs.value.length) changed(); }, [isFinished]);

  const changed = () => { setParams({ at: "" }, { replace: true }); page.again(); askIndex(); };
  const setWhere = (value) => setParams({ where: Object.keys(value).length ? JSON.stringify(value) : "", at: "" });
  const row = params.get("row") ?? "";
  const rows = page.value?.datapoints ?? [];
  const step = (by) => {
    const next = rows[Math.max(0, Math.min(rows.length - 1, rows.findIndex((each) => each.id === row) + by))];
    if (next) setParams({ row: next.id }, { replace: Boolean(row) });
  };
  const pages = pagesOf(page.value, size);
  useKeys({
    j: ["next row", () => step(1)],
    k: ["row before", () => step(-1)],
    n: ["next page", () => (pages?.next ? setParams({ at: pages.next }) : false)],
    p: ["page before", () => (pages?.before !== undefined ? setParams({ at: pages.before }) : false)],
    f: ["filter", () => document.getElementById("filter")?.click()],
  });
  const take = (event) => {
    event.preventDefault();
    if (!caller.write || !event.dataTransfer?.files.length) return;
    setFiles([...event.dataTransfer.files]);
    setOpen("files");
  };
  return html`<main class="data" onDragOver=${(event) => event.preventDefault()} onDrop=${take}>
    <h1>${name} <span class="dim small">${index ? `${count(index.rows)} datapoints` : ""}</span></h1>
    <${Problem} error=${missing} />
    <div class="line">
      <span class="grow"><${FilterBar} where=${where} error=${wrong ? { message: `where ${wrong}` } : filter.error} onChange=${setWhere} /></span>
      ${caller.write && html`<button onClick=${() => setOpen("files")}>Add files …</button>
        <button onClick=${() => setOpen("change")}>Change …</button>
        ${filter.value && html`<button class="danger" onClick=${() => setOpen("delete")}>Delete …</button>`}`}
      <${Export} index=${name} where=${filter.value} ready=${isReady} />
      ${caller.admin && index && html`<button class="danger" onClick=${() => setOpen("drop")}>Drop index …</button>`}
    </div>
    <${Jobs} jobs=${jobs} />
    <${Problem} error=${isGone ? null : page.error} />
    ${index && html`<${Grid} index=${index} rows=${rows} order=${order} chosen=${row} busy=${page.busy || awaySince.value} where=${where} onWhere=${setWhere} />`}
    ${page.value && html`<${Pages} pages=${pages} total=${Number(page.value.total)} rows=${rows.length} size=${size} version=${page.value.version} />`}
    ${index && row && html`<${Row} key=${row} index=${index} id=${row} canWrite=${caller.write} onChanged=${changed} />`}
    ${open === "files" && index && html`<${Files} index=${index} dropped=${files} onStarted=${jobs.again} onClose=${() => { setOpen(""); setFiles([]); }} />`}
    ${["change", "delete"].includes(open) && index && html`<${WriteWhere} kind=${open} index=${index} filter=${filter.value} where=${where} onDone=${changed} onClose=${() => setOpen("")} />`}
    ${open === "drop" && html`<${DropIndex} index=${index} onClose=${() => setOpen("")} />`}
  </main>`;
}

/** Returns where the page stands and the tokens of those around it; a token ends with `.` and a position. */
function pagesOf(answer, size) {
  if (!answer) return null;
  const [, snapshot, text] = /^(.*)\.(\d+)$/s.exec(answer.pageToken) ?? [];
  const position = Number(text ?? 0), total = Number(answer.total);
  const token = (start) => (start > 0 ? `${snapshot}.${start}` : "");
  const last = Math.floor(Math.max(0, total - 1) / size) * size;
  return {
    position,
    next: answer.nextPageToken,
    // The first page is without a token: of the rows as they are now.
    before: position > 0 ? token(position - size) : undefined,
    last: position < last ? token(last) : undefined,
  };
}

function Pages({ pages, total, rows, size, version }) {
  const { position, before, next, last } = pages;
  const button = (label, title, at) => html`<button disabled=${at === undefined || (at === "" && label === "›")} title=${title} aria-label=${title} onClick=${() => setParams({ at })}>${label}</button>`;
  return html`<nav class="line pages" aria-label="Pages">
    ${button("«", "first page", position > 0 ? "" : undefined)}
    ${button("‹", "page before", before)}
    <span role="status">${total ? `${count(position + 1)} to ${count(position + rows)} of ${count(total)}` : "no datapoints"}</span>
    ${button("›", "next page", next)}
    ${button("»", "last page", last)}
    <label class="small">rows <select value=${size} onChange=${(event) => setParams({ size: event.target.value === "50" ? "" : event.target.value, at: "" })}>
      ${SIZES.map((each) => html`<option value=${each}>${each}</option>`)}</select></label>
    <span class="dim small">version ${version}</span>
  </nav>`;
}

function Grid({ index, rows, order, chosen, busy, where, onWhere }) {
  const attributes = rows.map(attributesOf);
  const dynamic = [...new Set(attributes.flatMap((each) => Object.keys(each)))].filter((name) => !(name in index.attributes)).slice(0, DYNAMIC_COLUMNS);
  const columns = [...Object.keys(index.attributes).sort(), ...dynamic];
  const sortable = (name) => !/LIST|GEO/.test(index.attributes[name] ?? "");
  const head = (field, label) => {
    const direction = { [field]: "ascending", [`-${field}`]: "descending" }[order];
    const next = direction === "ascending" ? `-${field}` : direction ? "" : field;
    return html`<th scope="col" aria-sort=${direction ?? "none"}>${sortable(field)
      ? html`<button class="value" title="order by ${field}" onClick=${() => setParams({ order: next, at: "" })}>${label} <span aria-hidden="true">${{ ascending: "▲", descending: "▼" }[direction] ?? ""}</span></button>`
      : label}</th>`;
  };
  const cell = (name, value) => value == null ? "" : [value].flat().map((each) => typeof each === "object" && each !== null
    ? html`<bdi>${shown(each)}</bdi>`
    : html`<button class="value" title="only ${name} = ${shown(each)}" onClick=${() => onWhere(withValue(where, name, each))}><bdi>${shown(each)}</bdi></button> `);
  return html`<div class="scroll grid ${busy ? "busy" : ""}" aria-busy=${Boolean(busy)} tabindex="0" role="region" aria-label="Datapoints"><table>
    <thead><tr>${head("id", "id")}<th scope="col">title</th>${columns.map((name) => head(name, html`${name} <span class="dim">${typeName(index.attributes[name] ?? "")}</span>`))}</tr></thead>
    <tbody>${rows.map((point, i) => html`<tr key=${point.id} class=${point.id === chosen ? "chosen" : ""}>
      <th scope="row"><button class="value" aria-haspopup="dialog" title="open" onClick=${() => setParams({ row: point.id })}><bdi>${point.id}</bdi></button></th>
      <td><bdi class="clip">${point.title}</bdi></td>
      ${columns.map((name) => html`<td><div class="clip">${cell(name, attributes[i][name])}</div></td>`)}</tr>`)}
    </tbody></table></div>`;
}
