// What a model's host does with a set of tools, for both generations of the SDK: their clients have the
// same methods, and `call` hides where they differ.

import assert from "node:assert/strict";

const text = (result) => result.content.filter((b) => b.type === "text").map((b) => b.text).join("\n");

function succeeded(result) {
  assert.ok(!result.isError, text(result));
  return result.structuredContent;
}

// Every tool with its schemas: the SDK checks structured content against the output schema.
async function listed(client, first) {
  const { tools } = await client.listTools();
  for (const tool of tools) {
    assert.ok(tool.description.length > 40, tool.name);
    assert.equal(tool.inputSchema.type, "object", tool.name);
    assert.equal(tool.outputSchema.type, "object", tool.name);
  }
  assert.ok(tools.some((tool) => tool.name === first), `${first} is missing`);
  return tools.length;
}

async function resources(client, id) {
  const { resources } = await client.listResources();
  const uri = `sandcell://${id}/a%20note.txt`;
  const found = resources.find((resource) => resource.uri === uri);
  assert.ok(found, JSON.stringify(resources));
  assert.equal(found.size, 5);
  const { contents } = await client.readResource({ uri });
  assert.equal(contents[0].text, "grün");
  const missing = client.readResource({ uri: `sandcell://${id}/missing` });
  // The older revisions have a code of its own for this, which the newer SDK does not pass on.
  await assert.rejects(missing, (error) => [-32602, -32002].includes(error.code));
  const { resourceTemplates } = await client.listResourceTemplates();
  assert.equal(resourceTemplates.length, 1);
}

async function prompts(client, name) {
  const { prompts } = await client.listPrompts();
  assert.deepEqual(prompts.map((prompt) => prompt.name), [name]);
  const got = await client.getPrompt({ name, arguments: { task: "Count to three." } });
  assert.ok(got.messages[0].content.text.endsWith("Count to three."));
}

async function sandbox(client, call) {
  const count = await listed(client, "create_sandbox");
  const { sandbox_id } = succeeded(await call("create_sandbox", { name: "node" }));
  const run = (code, more) => call("execute_python_code", { sandbox_id, code }, more);
  const first = succeeded(await run("open('a note.txt', 'w').write('grün')\nprint('Hello 👋')\n6 * 7"));
  assert.equal(first.stdout, "Hello 👋\n");
  assert.equal(first.results.at(-1).text, "42");
  const raised = await run("1 / 0");
  assert.ok(raised.isError && text(raised).includes("ZeroDivisionError"));
  const refused = await call("execute_python_code", { sandbox_id });
  assert.ok(refused.isError && text(refused).includes("code"), text(refused));
  const told = [];
  const code = "import time\nfor n in range(3):\n    print('part', n, flush=True)\n    time.sleep(0.3)";
  succeeded(await run(code, { onprogress: (progress) => told.push(progress.message) }));
  assert.ok(told.join("").includes("part 0"), JSON.stringify(told));
  await resources(client, sandbox_id);
  await prompts(client, "use_sandbox");
  const abort = new AbortController();
  setTimeout(() => abort.abort(), 1500);
  await assert.rejects(run("while True: pass", { signal: abort.signal }));
  // Called off, it makes room for the next.
  assert.equal(succeeded(await run("print(1 + 1)")).stdout, "2\n");
  succeeded(await call("close_sandbox", { sandbox_id }));
  return count;
}

async function env(client, call) {
  const count = await listed(client, "create_python_env");
  const { container_id } = succeeded(await call("create_python_env", {}));
  const run = (code) => call("execute_python_code", { container_id, code });
  const ran = succeeded(await run("open('a note.txt', 'w').write('grün')\nprint('Hello 👋')"));
  assert.equal(ran.stdout, "Hello 👋\n");
  assert.equal(ran.exit_code, 0);
  assert.deepEqual(ran.files, ["a note.txt"]);
  const raised = (await run("1 / 0")).structuredContent;
  assert.equal(raised.exit_code, 1);
  const status = await call("check_package_status", { container_id, package_name: "pip" });
  assert.ok(status.structuredContent.status, text(status));
  await resources(client, container_id);
  await prompts(client, "use_python_env");
  return count;
}

async function workspace(client, call) {
  const count = await listed(client, "sandbox_initialize");
  const place = succeeded(await call("sandbox_initialize", {}));
  const at = { container_id: place.container_id, workspace_id: place.workspace_id };
  const file = { ...at, file_name: "main.py", file_contents: "print('Hello 👋')" };
  succeeded(await call("write_file_sandbox", file));
  const ran = succeeded(await call("sandbox_exec", { ...at, commands: ["python main.py", "exit 3"] }));
  assert.equal(ran.results[0].stdout, "Hello 👋\n");
  assert.deepEqual(ran.results.map((result) => result.exit_code), [0, 3]);
  await prompts(client, "use_workspace");
  succeeded(await call("clean_workspace", at));
  return count;
}

export async function drive(client, call, set) {
  const flows = { default: sandbox, env, workspace };
  const count = await flows[set](client, call);
  console.log(`ok ${set}: ${count} tools`);
}
