// Calls of the server: one function, whose errors and retries are the same for all pages.

import { signal } from "./vendor/preact.js";

/** Whether the caller has to show a key, a token or a code; the page asks for it over the view, which stays. */
export const needsLogin = signal(false);
/** Since when the server does not answer (Date); null: it answers. */
export const awaySince = signal(null);
/** Grows each time the server is back, and after a login: what a view shows is asked again. */
export const returns = signal(0);

const RETRY_S = [1, 2, 4, 8, 15, 30];

/** Name of the proof in the storage of this origin, which no page of another port reads; cookies are sent to all ports. */
const PROOF = `proof ${location.port}`;
/** Returns the header by which a call shows that it is of this page. */
export const proof = () => ({ "scannery-session": localStorage.getItem(PROOF) ?? "" });

/** An error of a call: `code` as in docs/http.md, `field` of the request, `retryAfterMs` if that is known. */
export class CallError extends Error {
  constructor(code, message, { field = "", retryAfterMs = 0 } = {}) {
    super(message);
    Object.assign(this, { code, field, retryAfterMs });
  }
}

/** Whether an error says that a later call has made this one needless. */
export const isOvertaken = (error) => error.name === "AbortError" || error.code === "aborted";

/**
 * Returns the answer of a method, `call("SearchService/Search", {index, query})`; throws CallError.
 * `view`: the search is one of many as a person types, and what shows its answer.
 */
export function call(method, request, { signal, view, timeoutMs } = {}) {
  const headers = {};
  if (view) headers["scannery-typed"] = view;
  if (timeoutMs) headers["connect-timeout-ms"] = String(timeoutMs);
  return post(`/scannery.v1.${method}`, request, { signal, headers });
}

/** Returns the error that an answer tells, which is JSON if it could be read. */
export const errorOf = (response, answer) =>
  new CallError(answer.code ?? "unknown", answer.message ?? `HTTP ${response.status}`, answer.details?.[0]?.debug ?? {});

/** Returns the answer of the console itself to a POST with JSON, or another method; throws CallError. */
export async function post(path, body, { signal, headers = {}, method = "POST" } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
      headers: { ...headers, ...proof(), "content-type": "application/json" },
      credentials: "same-origin",
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    wentAway();
    throw new CallError("unavailable", "The console does not answer; is it still running?");
  }
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    if (!response.ok) return {};
    // The console ended in the middle of its answer.
    wentAway();
    throw new CallError("unavailable", "The answer of the console broke off.");
  });
  if (response.ok) {
    cameBack();
    return answer;
  }
  const error = errorOf(response, answer);
  if (error.code === "unauthenticated") needsLogin.value = true;
  if (error.code === "unavailable") wentAway();
  throw error;
}

let attempt = 0;

function wentAway() {
  if (awaySince.value) return;
  awaySince.value = new Date();
  attempt = 0;
  tryLater();
}

function tryLater() {
  setTimeout(async () => {
    if (!awaySince.value) return;
    try {
      await call("IndexService/ListIndexes", { pageSize: 1 }, { timeoutMs: 2000 });
    } catch (error) {
      // Any other answer is one of the server.
      if (error.code !== "unavailable" && error.code !== "deadline_exceeded") cameBack();
    }
    if (awaySince.value) tryLater();
  }, RETRY_S[Math.min(attempt++, RETRY_S.length - 1)] * 1000);
}

function cameBack() {
  if (!awaySince.value) return;
  awaySince.value = null;
  returns.value += 1;
}

/** Begins a session with `{code}` or `{secret}`; throws CallError. */
export async function login(credentials) {
  localStorage.setItem(PROOF, (await post("/session", credentials)).proof);
  needsLogin.value = false;
  returns.value += 1;
}
