// The frame of the console: the bar, the page that the address names, and what is said over it.

import { html, render, signal, useEffect, useState } from "./vendor/preact.js";
import { CallError, awaySince, login, needsLogin, post, returns } from "./calls.js";
import { useKeys } from "./keys.js";
import { Search } from "./pages/search.js";
import { Dialog } from "./parts/dialog.js";
import { KeyList } from "./parts/key_list.js";
import { useIndexes } from "./parts/indexes.js";
import { bare } from "./parts/values.js";
import { Link, address, go, route } from "./route.js";

/** Pages with the same filter; a link from one to another keeps it. */
const FILTERED = ["search", "map", "data"];

/** The pages of an index by their place in the address: what loads them, and the letter after `g`. */
const PAGES = bare({
  search: { title: "Search", letter: "s", load: async () => Search },
  judge: { title: "Judge", letter: "j", load: async () => (await import("./pages/judge.js")).Judge },
  map: { title: "Map", letter: "m", load: async () => (await import("./pages/map.js")).MapPage },
  data: { title: "Data", letter: "d", load: async () => (await import("./pages/data.js")).Data },
  versions: { title: "Versions", letter: "v", load: async () => (await import("./pages/versions.js")).Versions },
});
/** Pages that belong to no index. */
const PLACES = bare({
  welcome: { title: "Indexes", load: async () => (await import("./pages/welcome.js")).Welcome },
  ops: { title: "Operations", letter: "o", load: async () => (await import("./pages/ops.js")).Operations },
});

const theme = signal(localStorage.getItem("theme") ?? "");

function Bar({ index }) {
  const { value: indexes } = useIndexes();
  const { page } = route.value;
  useKeys(Object.fromEntries([
    ...Object.entries(PAGES).map(([name, { title, letter }]) => [`g ${letter}`, [title, () => index && go(address(name, index))]]),
    ...Object.entries(PLACES).filter(([, { letter }]) => letter).map(([name, { title, letter }]) => [`g ${letter}`, [title, () => go(address(name))]]),
  ]));
  const turn = () => {
    theme.value = { "": "light", light: "dark", dark: "" }[theme.value];
    localStorage.setItem("theme", theme.value);
  };
  useEffect(() => (document.documentElement.dataset.theme = theme.value), [theme.value]);
  return html`<nav class="bar" aria-label="Console">
    <${Link} to="/" class="name">Scannery<//>
    ${index && html`<select aria-label="Index" value=${index} onChange=${(event) => go(address(page in PAGES ? page : "search", event.target.value))}>
      ${[...new Set([index, ...(indexes ?? []).map(({ name }) => name)])].map((name) => html`<option>${name}</option>`)}</select>`}
    ${index && Object.entries(PAGES).map(([name, { title }]) => html`<${Link} to=${address(name, index, FILTERED.includes(name) ? { where: route.value.params.get("where") } : {})} aria-current=${page === name ? "page" : undefined}>${title}<//>`)}
    ${Object.entries(PLACES).filter(([name]) => name !== "welcome").map(([name, { title }]) => html`<${Link} to=${address(name)} aria-current=${page === name ? "page" : undefined}>${title}<//>`)}
    <span class="grow"></span>
    <button class="quiet" onClick=${turn} title="light, dark, or as the system">${`theme: ${theme.value || "auto"}`}</button>
    <${SignOut} />
  </nav>`;
}

const session = signal({});

async function loadSession() {
  session.value = await post("/session", null, { method: "GET" });
}

function SignOut() {
  if (!session.value.session) return null;
  const out = async () => {
    await post("/session", {}, { method: "DELETE" });
    // Loaded anew, the page has nothing left of what it showed.
    location.replace("/");
  };
  return html`<button class="quiet" onClick=${out}>sign out</button>`;
}

function Login() {
  const [secret, setSecret] = useState("");
  const [error, setError] = useState(null);
  const enter = async (event) => {
    event.preventDefault();
    try {
      await login({ secret });
      setSecret("");
      await loadSession();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Dialog} title="Who are you?">
    ${session.value.takesKeys === false || session.value.takesKeys === undefined
      ? html`<p>Open the address that the console printed when it started. It can be used once, for a minute; start the console again for another one.</p>`
      : html`<form onSubmit=${enter}><p>The server asks for a key or a token. It stays in the console's memory, and this page forgets it.</p>
        <input type="password" aria-label="Key or token" autocomplete="off" autofocus required value=${secret} onInput=${(e) => setSecret(e.target.value)} /> <button>Enter</button>
        ${error && html`<p class="problem" role="alert">${error.code === "unauthenticated" ? "The server does not accept this key or token: it may be mistyped, taken back or past its end." : error.message}</p>`}</form>`}
  <//>`;
}

function Page() {
  const { page, index } = route.value;
  const [loaded, setLoaded] = useState({});
  const known = index ? PAGES[page] : PLACES[page];
  useEffect(() => {
    document.title = index ? `${index} · ${known?.title ?? page} · Scannery` : "Scannery";
    known?.load().then((Part) => setLoaded({ known, Part }));
  }, [known, index]);
  if (!known) return html`<main class="page"><h1>There is no such page</h1><${Link} to="/">Indexes<//></main>`;
  return loaded.known === known ? html`<${loaded.Part} key=${index} session=${session.value} />` : null;
}

function App() {
  const { index } = route.value;
  const away = awaySince.value;
  return html`<a class="skip" href="#main">To the page</a>
    <${Bar} index=${index} />
    ${away && html`<p class="banner" role="alert">The server has been away since ${away.toLocaleTimeString()}; the page goes on by itself when it is back.</p>`}
    <div id="main"><${Page} /></div>
    ${needsLogin.value && html`<${Login} />`}
    <${KeyList} />`;
}

async function start() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  // The code is worth nothing once it is used, and leaves the address all the same.
  if (code) history.replaceState(null, "", location.pathname + location.search);
  try {
    if (code) await login({ code });
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
  }
  await loadSession().catch(() => {});
  if (session.value.needsSession && !session.value.session) needsLogin.value = true;
  returns.value += 1;
}

await start();
render(html`<${App} />`, document.getElementById("app"));
