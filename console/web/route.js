// The address of a view is its state: the path is the place, the query the rest.

import { html, signal } from "./vendor/preact.js";

/** Returns a part of an address without its percent signs; one that is not well formed as it stands. */
export function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function parse() {
  const [, first, index, page, ...rest] = location.pathname.split("/").map(decoded);
  const params = new URLSearchParams(location.search);
  if (first === "i" && index) return { page: page || "search", index, rest, params };
  return { page: first || "welcome", index: "", rest: [], params };
}

/** `{page, index, rest, params}` of the view that is shown. */
export const route = signal(parse());

addEventListener("popstate", () => (route.value = parse()));

/** Returns the address of a page of an index; `params` without those that are empty. */
export function address(page, index, params = {}) {
  const place = index ? `/i/${encodeURIComponent(index)}/${page}` : page === "welcome" ? "/" : `/${page}`;
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value != null));
  return query.size ? `${place}?${query}` : place;
}

/** Shows another view; `replace`: the one before is no step back. */
export function go(to, { replace = false } = {}) {
  if (to === location.pathname + location.search) return;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  route.value = parse();
}

/** Changes parameters of the view; an empty value removes one. */
export function setParams(changes, { replace = false } = {}) {
  const params = { ...Object.fromEntries(route.value.params), ...changes };
  go(location.pathname + address("", "x", params).replace(/^[^?]*/, ""), { replace });
}

/** A link to a view, which opens in this tab without loading the page anew. */
export function Link({ to, children, ...attributes }) {
  const follow = (event) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to);
  };
  return html`<a href=${to} onClick=${follow} ...${attributes}>${children}</a>`;
}
