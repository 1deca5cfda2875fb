// A client of either era: node client.mjs ERA PACKAGE-FOLDER URL PREFIX NONCE
// ERA old is the TypeScript SDK 1.x, new is @modelcontextprotocol/client 2.x. It goes through each
// feature of the protocol and prints what it saw as JSON; a feature that failed has its error.
import { pathToFileURL } from "node:url";

const [era, folder, url, prefix, nonce] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${folder}/dist/${name}`).href);
const BOUND = 20000;
const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {} };
const info = { name: "a-ts-test", version: "1.0.0" };

const person = { asked: [], prompted: [], logs: [], news: [], waiting: [] };
const tell = (what) => {
  const waiter = person.waiting.shift();
  if (waiter) waiter(what);
  else person.news.push(what);
};
const following = () =>
  person.news.length
    ? person.news.shift()
    : new Promise((resolve, reject) => {
        person.waiting.push(resolve);
        setTimeout(() => reject(new Error("no news")), BOUND).unref();
      });
const news = async (wanted) => {
  for (;;) {
    const heard = await following();
    if (wanted(heard)) return heard;
  }
};

const answers = {
  "elicitation/create": async (request) => {
    person.asked.push(request.params.message);
    return { action: "accept", content: { name: "Ada" } };
  },
  "sampling/createMessage": async (request) => {
    const { content } = request.params.messages[0];
    person.prompted.push((Array.isArray(content) ? content[0] : content).text);
    const text = { type: "text", text: "forty-two" };
    return { role: "assistant", content: text, model: "a-model" };
  },
  "roots/list": async () => ({ roots: [{ uri: "file:///home/ada", name: "home" }] }),
};
const listeners = {
  "notifications/message": ({ params }) => person.logs.push([params.level, params.data]),
  "notifications/tools/list_changed": () => tell("tools"),
  "notifications/prompts/list_changed": () => tell("prompts"),
  "notifications/resources/list_changed": () => tell("resources"),
  "notifications/resources/updated": ({ params }) => tell(params.uri),
};

// What differs between the two packages: how they are set up, and how one asks to hear of something.
async function older() {
  const { Client } = await load("esm/client/index.js");
  const { StreamableHTTPClientTransport } = await load("esm/client/streamableHttp.js");
  const types = await load("esm/types.js");
  const client = new Client(info, { capabilities });
  const schemas = Object.values(types).filter((schema) => schema?.shape?.method);
  const of = (method) => schemas.find((schema) => schema.shape.method.value === method);
  for (const [method, answer] of Object.entries(answers))
    client.setRequestHandler(of(method), answer);
  for (const [method, listener] of Object.entries(listeners))
    client.setNotificationHandler(of(method), listener);
  const transport = new StreamableHTTPClientTransport(new URL(url));
  await client.connect(transport);
  return {
    client,
    version: () => transport.protocolVersion,
    call: (params, options) => client.callTool(params, undefined, options),
    watch: async (kinds, uris) => {
      for (const uri of uris) await client.subscribeResource({ uri });
      return async () => {
        for (const uri of uris) await client.unsubscribeResource({ uri });
      };
    },
    level: async (level) => {
      await client.setLoggingLevel(level);
      return {};
    },
  };
}

async function newer() {
  const { Client, StreamableHTTPClientTransport } = await load("index.mjs");
  const options = { capabilities, versionNegotiation: { mode: "auto" } };
  const client = new Client(info, options);
  for (const [method, answer] of Object.entries(answers)) client.setRequestHandler(method, answer);
  for (const [method, listener] of Object.entries(listeners))
    client.setNotificationHandler(method, listener);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return {
    client,
    version: () => client.getNegotiatedProtocolVersion(),
    call: (params, options) => client.callTool(params, options),
    watch: async (kinds, uris) => {
      const wanted = { resourceSubscriptions: uris };
      for (const kind of kinds) wanted[`${kind}ListChanged`] = true;
      const subscription = await client.listen(wanted);
      return () => subscription.close();
    },
    level: async (level) => ({ _meta: { "io.modelcontextprotocol/logLevel": level } }),
  };
}

const peer = await (era === "old" ? older() : newer());
const { client, call, watch } = peer;
const named = (name) => prefix + name;
const said = async (tool, args = {}, options = {}, more = {}) => {
  const result = await call({ name: named(tool), arguments: args, ...more }, options);
  if (result.isError) throw new Error(JSON.stringify(result.content));
  return result.content[0].text;
};
const every = async (list, member) => {
  const found = [];
  let cursor;
  do {
    const page = await list(cursor === undefined ? {} : { cursor });
    found.push(...page[member]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return found;
};
const tools = async () =>
  (await every((params) => client.listTools(params), "tools")).map((tool) => tool.name);

const features = {
  elicitation: async () => [
    await said("ask_user", { nonce }),
    await said("ask_twice", { nonce }),
    (await client.getPrompt({ name: named("ask_before_greeting") })).messages[0].content.text,
    (await client.readResource({ uri: "cell://asking" })).contents[0].text,
    person.asked,
  ],
  sampling: async () => [await said("ask_model", { prompt: "What?" }), person.prompted],
  roots: async () => await said("ask_roots"),
  progress: async () => {
    const heard = [];
    const onprogress = (step) => heard.push([step.progress, step.total, step.message]);
    return [await said("steps", { steps: 3 }, { onprogress }), heard];
  },
  cancellation: async () => {
    const stop = new AbortController();
    const options = { signal: stop.signal, onprogress: () => stop.abort("enough") };
    const ended = await said("hold", { nonce: `ts-${nonce}` }, options).catch(() => "aborted");
    return [ended, await said("echo", { text: "after" })];
  },
  logging: async () => {
    const more = await peer.level("warning");
    return [await said("speak", {}, {}, more), person.logs];
  },
  list_changed: async () => {
    const leave = await watch(["tools"], []);
    const before = await tools();
    await said("grow", { kind: "tools", name: `t${nonce}` });
    let after = before;
    while (!after.includes(named(`t${nonce}`))) {
      await news((heard) => heard === "tools");
      after = await tools();
    }
    await leave();
    return before.every((name) => after.includes(name)) && !before.includes(named(`t${nonce}`));
  },
  subscriptions: async () => {
    const leave = await watch([], ["cell://document"]);
    await said("touch", { uri: "cell://shelf/3" });
    await said("touch", { uri: "cell://document" });
    const heard = await news((what) => what.startsWith("cell:"));
    await leave();
    return heard;
  },
  completions: async () => {
    const complete = async (ref, name, value) =>
      (await client.complete({ ref, argument: { name, value } })).completion.values;
    return [
      await complete({ type: "ref/prompt", name: named("greet") }, "name", "A"),
      await complete({ type: "ref/resource", uri: "cell://item/{number}" }, "number", "1"),
    ];
  },
  pagination: tools,
};

const seen = { version: peer.version() };
for (const [feature, go] of Object.entries(features)) {
  try {
    seen[feature] = await go();
  } catch (error) {
    seen[feature] = { error: String(error?.stack ?? error) };
  }
}
console.log(JSON.stringify(seen));
await client.close();
process.exit(0);
