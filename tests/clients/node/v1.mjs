// The first generation of the official SDK: node v1.mjs SET (http|sse|stdio) (URL [KEY] | COMMAND ARGS…)

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
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

const client = new Client({ name: "v1", version: "1" });
await client.connect(transport());
const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);
await drive(client, call, set);
await client.close();
