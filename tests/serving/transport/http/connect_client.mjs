// Calls methods through @connectrpc/connect-node: a line of JSON in, a line of JSON out.
import { createInterface } from "node:readline";
import { createFileRegistry, fromBinary, toBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";

const [baseUrl, descriptors] = process.argv.slice(2);
const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, Buffer.from(descriptors, "base64")));
const transports = [true, false].map((useBinaryFormat) =>
  createConnectTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat }),
);

async function called({ path, request, headers, timeoutMs, json }) {
  const [, service, name] = path.split("/");
  const method = registry.getService(service).methods.find((each) => each.name === name);
  const message = fromBinary(method.input, Buffer.from(request, "base64"));
  try {
    const answer = await transports[json ? 1 : 0].unary(method, undefined, timeoutMs, headers, message);
    return { code: "ok", data: Buffer.from(toBinary(method.output, answer.message)).toString("base64") };
  } catch (thrown) {
    const error = ConnectError.from(thrown);
    const code = Code[error.code].replace(/(?<!^)[A-Z]/g, "_$&").toLowerCase();
    const [detail] = error.details;
    return { code, data: detail === undefined ? "" : Buffer.from(detail.value).toString("base64") };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await called(JSON.parse(line))));
}
