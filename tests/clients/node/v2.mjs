// The second generation of the official SDK: node v2.mjs SET (http|sse|stdio) (URL [KEY] | COMMAND ARGS…)

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { drive } from "./flow.mjs";

const [set, kind, ...rest] = process.argv.slice(2);

function transport() {
  if (kind === "stdio") {
    const [command, ...args] = rest;
    return new StdioClientTransport({ command, args, stderr: "inherit" });
  }
  const [url, key] = rest;
  const requestInit = key ? { headers: { Authorization: `Bearer ${key}` } } : {};
  const Transport = kind === "sse" ? SSEClientTransport : StreamableHTTPClientTransport;
  return new Transport(new URL(url), { requestInit });
}

// Over HTTP and stdio it asks for the stateless revision first; HTTP+SSE is older than that question.
const mode = kind === "sse" ? "legacy" : "auto";
const client = new Client({ name: "v2", version: "1" }, { versionNegotiation: { mode } });
await client.connect(transport());
console.log(`protocol ${client.getNegotiatedProtocolVersion()}`);
const call = (name, args, options) => client.callTool({ name, arguments: args }, options);
await drive(client, call, set);
await client.close();
