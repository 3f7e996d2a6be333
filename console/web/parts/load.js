// What a view shows is asked when the view appears, when what it depends on changes, and when the server is back.

import { html, useEffect, useState } from "../vendor/preact.js";
import { isOvertaken, returns } from "../calls.js";

/**
 * Returns `{value, error, busy, again}` of what `ask(signal)` resolves to; the former value stays while it is asked again.
 * `depends`: as of useEffect.
 */
export function useLoaded(ask, depends) {
  const [state, setState] = useState({ busy: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const controller = new AbortController();
    setState((before) => ({ ...before, busy: true }));
    Promise.resolve(ask(controller.signal)).then(
      (value) => !controller.signal.aborted && setState({ value, busy: false }),
      (error) => !controller.signal.aborted && !isOvertaken(error) && setState((before) => ({ ...before, error, busy: false })),
    );
    return () => controller.abort();
  }, [...depends, turn, returns.value]);
  return { ...state, again: () => setTurn((n) => n + 1) };
}

/** An error, with what the person can do about it. */
export function Problem({ error }) {
  if (!error) return null;
  const hint = {
    permission_denied: "The key that you use lacks a scope for this.",
    data_loss: "Files of the index are damaged: run “scannery index verify”.",
    resource_exhausted: "The server is busy; try again in a few seconds.",
    unavailable: "The console tries again by itself.",
  }[error.code];
  return html`<p class="problem" role="alert">${error.message}${hint && html` <span>${hint}</span>`}</p>`;
}
