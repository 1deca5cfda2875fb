// The TypeScript SDK's client: node client.mjs SDK-FOLDER URL KEY...
// Lists everything, uses the tools of each KEY, and prints what it saw as JSON.
import { pathToFileURL } from "node:url";

const [sdk, url, ...keys] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${sdk}/dist/esm/${name}`).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");

const client = new Client({ name: "a-ts-test", version: "1.0.0" }, { capabilities: {} });
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);

const seen = {
  server: client.getServerVersion().name,
  version: transport.protocolVersion,
  session: typeof transport.sessionId,
  tools: (await client.listTools()).tools.map((tool) => tool.name),
  prompts: (await client.listPrompts()).prompts.map((prompt) => prompt.name),
  resources: (await client.listResources()).resources.map((resource) => resource.uri),
  templates: (await client.listResourceTemplates()).resourceTemplates.map((t) => t.uriTemplate),
  calls: {},
};
for (const key of keys) {
  const progress = [];
  const call = (tool, args, options) =>
    client.callTool({ name: `${key}.${tool}`, arguments: args }, undefined, options);
  const echo = await call("echo", { message: key });
  const long = await call(
    "trigger-long-running-operation",
    { duration: 0.3, steps: 3 },
    { onprogress: (step) => progress.push([step.progress, step.total]) },
  );
  const structured = await call("get-structured-content", { location: "Chicago" });
  seen.calls[key] = {
    echo: echo.content[0].text,
    long: long.content[0].text,
    progress,
    structured: structured.structuredContent,
  };
}
await transport.terminateSession();
seen.ended = transport.sessionId === undefined;
await client.close();
console.log(JSON.stringify(seen));
