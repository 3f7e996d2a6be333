// A column is a set of options of a search; in the address it is `mode,name:value,flag`, and columns are joined by `~`.

import { decoded } from "../route.js";

const MODES = ["auto", "hybrid", "dense", "lexical"];
const FLAGS = ["exact", "prefix", "rerank"];
const NUMBERS = ["alpha", "target_recall", "diversity"];

/** What the menu for a further column offers. */
export const PRESETS = ["hybrid", "dense", "lexical", "hybrid,rerank", "dense,exact", "auto"];

/** Returns the columns of an address; `{mode, alpha, …}` with the names of the SDK. */
export function parseColumns(text) {
  const columns = (text || "auto").split("~").slice(0, 4).map((column) => {
    const [mode, ...options] = column.split(",");
    const parsed = { mode: MODES.includes(mode) ? mode : "auto" };
    for (const option of options) {
      const [name, value] = option.split(/:(.*)/s);
      if (FLAGS.includes(name)) parsed[name] = true;
      else if (NUMBERS.includes(name) && Number.isFinite(Number(value))) parsed[name] = Number(value);
      else if (["fusion", "index", "ranking", "vectors"].includes(name) && value) parsed[name] = decoded(value);
    }
    return parsed;
  });
  return columns.length ? columns : [{ mode: "auto" }];
}

/** Returns the text of columns for an address; empty for the default. */
export function formatColumns(columns) {
  const text = columns.map(({ mode, ...options }) => [mode, ...Object.entries(options)
    .filter(([, value]) => value !== "" && value != null && value !== false)
    .map(([name, value]) => (value === true ? name : `${name}:${encodeURIComponent(value)}`))].join(","));
  return text.join("~") === "auto" ? "" : text.join("~");
}

/** Returns a name of a column for people. */
export function nameOf({ mode, index, ...options }) {
  const parts = Object.entries(options).map(([name, value]) => (value === true ? name : `${name.replace("_", " ")} ${value}`));
  return [mode === "auto" ? (index ? "" : "as the index does") : mode, index, ...parts].filter(Boolean).join(", ");
}

/** Returns the index that a column asks: that of the page, or another one, such as a branch, whose documents are compared. */
export const indexOf = (column, name) => column.index || name;

/** Returns the `SearchOptions` message of a column. */
export function messageOf(column, { k, where, group }) {
  const options = { k };
  if (column.mode !== "auto") options.mode = `MODE_${column.mode.toUpperCase()}`;
  if (where) options.where = where;
  if (group) options.crowding = { maxPerGroup: 1, groupBy: group === "document_id" ? "" : group };
  const fusion = {};
  if (column.alpha !== undefined) fusion.alpha = column.alpha;
  if (column.fusion) fusion.method = `FUSION_METHOD_${column.fusion.toUpperCase()}`;
  if (Object.keys(fusion).length) options.fusion = fusion;
  if (column.target_recall !== undefined) options.targetRecall = column.target_recall;
  if (column.diversity) options.diversity = column.diversity;
  if (column.exact) options.exact = true;
  if (column.prefix) options.prefix = true;
  if (column.rerank) options.rerank = {};
  if (column.ranking) options.ranking = column.ranking;
  if (column.vectors) options.vectors = column.vectors.split("+").map((name) => ({ name }));
  return options;
}

const python = (value) => JSON.stringify(value, null, 1).replace(/\s*\n\s*/g, " ").replace(/\{ /g, "{").replace(/ \}/g, "}").replace(/\[ /g, "[").replace(/ \]/g, "]")
  .replace(/(?<=[[:,{] ?)(true|false|null)(?=[\]},])/g, (word) => ({ true: "True", false: "False", null: "None" })[word]);
const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Returns what does the same search: `{Python, curl, CLI}`. */
export function copies({ target, index, query, like, column, where, k, group, request }) {
  const { mode, index: _, rerank, vectors, ...plain } = column;
  const options = { k, ...(mode === "auto" ? {} : { mode }), ...plain, ...(rerank ? { rerank: 100 } : {}) };
  if (vectors) options.vectors = vectors.split("+");
  if (Object.keys(where).length) options.where = where;
  if (group) Object.assign(options, { max_per_group: 1, group_by: group });
  const keywords = Object.entries(options).map(([name, value]) => `${name}=${value === true ? "True" : python(value)}`);
  const asked = like ? `scannery.Like(${JSON.stringify(like)})` : JSON.stringify(query);
  const isStore = !/^(https?:\/\/)?[^/]+:\d+$/.test(target);
  const flags = Object.entries(options).flatMap(([name, value]) => {
    const flag = name === "k" ? "-k" : `--${name.replaceAll("_", "-")}`;
    if (value === true) return [flag];
    return [`${flag} ${shell(name === "vectors" ? value.join(",") : typeof value === "object" ? JSON.stringify(value) : String(value))}`];
  });
  const question = like ? `--like ${shell(like)}` : shell(query);
  return {
    Python: `import scannery\n\nindex = scannery.connect(${JSON.stringify(target)}).index(${JSON.stringify(index)})\nhits = index.search(${[asked, ...keywords].join(", ")})`,
    curl: `curl -sS ${isStore || !target.startsWith("http") ? "http://HOST:PORT" : target}/scannery.v1.SearchService/Search --json ${shell(JSON.stringify(request))}`,
    CLI: `scannery search ${isStore ? "--store" : "--target"} ${shell(target)} --index ${shell(index)} ${flags.join(" ")} ${question}`,
  };
}
