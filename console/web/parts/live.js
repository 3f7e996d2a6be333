// Recall as live queries have it, by index; for callers with the scope `admin`.

import { useEffect, useState } from "../vendor/preact.js";
import { call } from "../calls.js";
import { useEvery } from "./every.js";
import { bare } from "./values.js";

const EVERY_MS = 5000;
const METRICS = { now: "scannery_recall_now", error: "scannery_recall_error", target: "scannery_recall_target", effective: "scannery_recall_effective_target" };

/** Returns `{INDEX: {now, error, target, effective}}` of indexes whose searches are sampled; `caller`: of `useCaller`. */
export function useLive(caller) {
  const isAllowed = caller.admin && caller.value.serverRole !== "embedded";
  const [live, setLive] = useState(bare());
  const ask = async () => {
    if (!isAllowed) return;
    const answer = await call("IndexService/GetMetrics", { names: Object.values(METRICS) }).catch(() => ({ metrics: [] }));
    const indexes = bare();
    for (const [name, metric] of Object.entries(METRICS)) {
      for (const { labels, value } of answer.metrics.find((each) => each.name === metric)?.samples ?? []) (indexes[labels[0]] ??= {})[name] = value;
    }
    setLive(bare(Object.fromEntries(Object.entries(indexes).filter(([, values]) => values.now !== undefined && values.effective !== undefined))));
  };
  useEffect(() => void ask(), [isAllowed]);
  useEvery(EVERY_MS, ask, [isAllowed]);
  return live;
}
