// Values of attributes: from messages to texts and to filters of the SDK's form.

/** Returns an object with the same entries and nothing else: names of a corpus may be those of what all objects have. */
export const bare = (object) => Object.assign(Object.create(null), object);

/** Returns the plain value of a `Value` message: text, number, boolean, list, or null. */
export function plain(value) {
  if (value == null) return null;
  if ("stringValue" in value) return value.stringValue;
  if ("intValue" in value) return Number(value.intValue);
  if ("floatValue" in value) return Number(value.floatValue);
  if ("boolValue" in value) return value.boolValue;
  if ("timestampValue" in value) return value.timestampValue;
  if ("stringListValue" in value) return value.stringListValue.values ?? [];
  if ("listValue" in value) return (value.listValue.values ?? []).map(plain);
  if ("geoValue" in value) return value.geoValue;
  if ("jsonValue" in value) return JSON.parse(value.jsonValue);
  return null;
}

/** Returns a short text for a plain value. */
export function shown(value) {
  if (value == null) return "–";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "string") return /^\d{4}-\d\d-\d\dT00:00:00Z$/.test(value) ? value.slice(0, 10) : value;
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

/** Returns the attributes of a datapoint by name as plain values, dynamic ones among them. */
export function attributesOf(datapoint) {
  const declared = Object.entries(datapoint.attributes ?? {}).map(([name, value]) => [name, plain(value)]);
  return Object.assign(bare(Object.fromEntries(declared)), datapoint.dynamicJson ? JSON.parse(datapoint.dynamicJson) : {});
}

/** Returns a filter with a further value of an attribute: values of one attribute are alternatives. */
export function withValue(where, name, value) {
  const before = where[name];
  const values = before?.$in ?? (before === undefined || typeof before === "object" ? [] : [before]);
  if (values.includes(value)) return where;
  return { ...where, [name]: values.length ? { $in: [...values, value] } : value };
}

/** Returns seconds as a clock shows them: 8:07, 1:02:03. */
export function clock(seconds) {
  const [h, m, s] = [seconds / 3600, (seconds / 60) % 60, seconds % 60].map(Math.floor);
  return h ? `${h}:${String(m).padStart(2, "0")}:${String(s).padStart(2, "0")}` : `${m}:${String(s).padStart(2, "0")}`;
}

/** Returns a number with three digits that count. */
export const number = (value) => (value == null ? "–" : String(Number(Number(value).toPrecision(3))));

/** Returns a count with separators. */
export const count = (value) => Number(value ?? 0).toLocaleString("en");

/** Returns bytes with a unit. */
export function bytes(value) {
  const unit = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${(value / 2 ** (10 * unit)).toFixed(unit ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
