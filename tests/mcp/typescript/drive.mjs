// Drives a server through the TypeScript SDK and prints what it saw as one JSON object.
//
//   node drive.mjs v1|v2-handshake|v2-modern COMMAND ARGS…
//
// v1 is the package of the handshake protocol, v2 the one that speaks both.

const [flavour, command, ...args] = process.argv.slice(2);
const info = { name: "driver", version: "1" };
const capabilities = { elicitation: {} };
const asked = [];

async function connect() {
  if (flavour === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StdioClientTransport } = await import(
      "@modelcontextprotocol/sdk/client/stdio.js"
    );
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client(info, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, answer);
    await client.connect(new StdioClientTransport({ command, args, env: process.env }));
    return client;
  }
  const { Client } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = flavour === "v2-modern" ? "auto" : "legacy";
  const client = new Client(info, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", answer);
  await client.connect(new StdioClientTransport({ command, args, env: process.env }));
  return client;
}

async function answer(request) {
  asked.push(request.params.message);
  return { action: "accept", content: {} };
}

const client = await connect();
const call = (name, args) => client.callTool({ name, arguments: args });
const bash = (command, extra = {}) =>
  call("bash", { command, description: "Do what the test says", ...extra });

const seen = {
  protocol: client.getNegotiatedProtocolVersion?.(),
  tools: (await client.listTools()).tools.map((tool) => tool.name),
  run: await bash("echo out; echo err >&2; exit 3"),
  denied: await bash("touch f"),
  granted: await bash("touch f", {
    sandbox_permissions: "workspace-write",
    justification: "Tests need it.",
  }),
  started: await bash("echo background", { run_in_background: true }),
  unknown: await call("bash_kill", { task_id: "bash-999999" }),
};
const task_id = seen.started.structuredContent.task.task_id;
do {
  seen.read = await call("bash_output", { task_id });
} while (seen.read.structuredContent.task.status === "running");
seen.asked = asked;
console.log(JSON.stringify(seen));
await client.close();
