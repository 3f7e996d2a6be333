// What is known of the indexes; asked once, and again when the server is back.

import { call } from "../calls.js";
import { useLoaded } from "./load.js";
import { bare } from "./values.js";

/** Returns all indexes (IndexInfo), as `useLoaded` does. */
export function useIndexes() {
  return useLoaded(async (signal) => {
    const indexes = [];
    let pageToken = "";
    do {
      const page = await call("IndexService/ListIndexes", { pageToken }, { signal });
      indexes.push(...page.indexes);
      pageToken = page.nextPageToken;
    } while (pageToken);
    return indexes;
  }, []);
}

/** Returns one index with its spec, as `useLoaded` does. */
export function useIndex(name) {
  return useLoaded(async (signal) => {
    const { index } = await call("IndexService/GetIndex", { index: name }, { signal });
    return { ...index, attributes: bare(index.attributes), spec: JSON.parse(index.specJson || "{}") };
  }, [name]);
}
