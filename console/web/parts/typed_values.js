// Values of attributes as people type them: from texts to messages, and back.

import { attributesOf, bare, plain } from "./values.js";

/** Types of attributes, as a spec names them. */
export const TYPES = ["string", "string_list", "int", "float", "bool", "timestamp", "geo"];

/** Returns the name of a type in the messages as the spec has it: ATTRIBUTE_TYPE_INT becomes int. */
export const typeName = (type) => String(type).replace("ATTRIBUTE_TYPE_", "").toLowerCase();

/** What a field for a type asks for. */
export const HINTS = {
  string_list: "one value a line", int: "a whole number", float: "a number", timestamp: "2024-05-17 or 2024-05-17T10:00:00Z",
  geo: "latitude, longitude", json: "JSON",
};

/** Returns the text of a `Value` message for a field of its type; empty for none. */
export function textOf(value, type) {
  if (value == null) return "";
  if (type === "json") return "jsonValue" in value ? value.jsonValue : JSON.stringify(plain(value));
  if ("intValue" in value) return String(value.intValue); // as text: JavaScript would round large ones
  if ("stringListValue" in value) return (value.stringListValue.values ?? []).join("\n");
  if ("geoValue" in value) return `${value.geoValue.latitude ?? 0}, ${value.geoValue.longitude ?? 0}`;
  if ("listValue" in value) return JSON.stringify(plain(value));
  return String(plain(value));
}

/** Returns the `Value` message of a text, `{}` for an empty one, which clears the attribute; throws an Error that says what is wrong. */
export function messageOf(text, type) {
  const trimmed = text.trim();
  if (type === "string") return text === "" ? {} : { stringValue: text };
  if (trimmed === "") return {};
  switch (type) {
    case "string_list":
      return { stringListValue: { values: text.split("\n").filter((line) => line !== "") } };
    case "int":
      if (!/^[+-]?\d+$/.test(trimmed)) throw new Error("must be a whole number");
      return { intValue: trimmed.replace(/^\+/, "") };
    case "float":
      if (!Number.isFinite(Number(trimmed))) throw new Error("must be a number");
      return { floatValue: Number(trimmed) };
    case "bool":
      if (!["true", "false"].includes(trimmed)) throw new Error("must be true or false");
      return { boolValue: trimmed === "true" };
    case "timestamp":
      return { stringValue: trimmed };
    case "geo": {
      const [latitude, longitude, more] = trimmed.split(",").map(Number);
      if (![latitude, longitude].every(Number.isFinite) || more !== undefined) throw new Error("must be latitude, longitude");
      return { geoValue: { latitude, longitude } };
    }
    default:
      return jsonMessage(trimmed);
  }
}

/** Returns the `Value` message of an attribute without a declared type. */
function jsonMessage(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("must be JSON; texts stand in quotes");
  }
  if (value === null) return {};
  if (typeof value === "string") return { stringValue: value };
  if (typeof value === "boolean") return { boolValue: value };
  if (typeof value === "number") return /^-?\d+$/.test(text) ? { intValue: text } : { floatValue: value };
  if (Array.isArray(value) && value.every((each) => typeof each === "string")) return { stringListValue: { values: value } };
  if (Array.isArray(value) && value.every((each) => each === null || typeof each !== "object")) return { listValue: { values: value.map((each) => jsonMessage(JSON.stringify(each))) } };
  return { jsonValue: text };
}

/** Returns the fields of a form for a datapoint: `[{name, type, text}]`, declared attributes and then dynamic ones. */
export function fieldsOf(datapoint, attributes) {
  const declared = Object.entries(attributes).map(([name, type]) => ({ name, type: typeName(type), text: textOf(bare(datapoint.attributes)[name], typeName(type)) }));
  const dynamic = datapoint.dynamicJson ? Object.keys(JSON.parse(datapoint.dynamicJson)) : [];
  const all = attributesOf(datapoint);
  return [...declared, ...dynamic.map((name) => ({ name, type: "json", text: JSON.stringify(all[name]) }))];
}
