// `ollama` for JavaScript: node ollama_npm.mjs URL MODEL CHECK.
import assert from "node:assert";
import { Ollama } from "ollama";
import { z } from "zod";

const [url, model, check] = process.argv.slice(2);
const side = z.enum(["left", "right"]);
const Wall = z.object({ side, far: z.boolean() });
const client = new Ollama({ host: url.replace(/\/v1$/, "") });
assert((await client.list()).models.some(one => one.model === model));
assert((await client.show({ model })).capabilities.includes("tools"));
const look = { name: "look", description: "What is on one side.", parameters: z.toJSONSchema(z.object({ side })) };
const how = {
  model, tools: [{ type: "function", function: look }], options: { temperature: 0, num_predict: 60 },
  messages: [
    { role: "user", content: "Which wall is far?" },
    { role: "assistant", content: "", tool_calls: [{ function: { name: "look", arguments: { side: "left" } } }] },
    { role: "tool", tool_name: "look", content: "a wall on the left" },
  ],
};
let answer = "";
if (check === "streamed")
  for await (const part of await client.chat({ ...how, stream: true })) answer += part.message.content;
else {
  const format = check === "typed" ? z.toJSONSchema(Wall) : undefined;
  answer = (await client.chat({ ...how, format })).message.content;
}
assert(answer);
if (check === "typed") Wall.parse(JSON.parse(answer));
assert.deepEqual((await client.ps()).models.map(one => one.model), [model]);
await assert.rejects(client.chat({ ...how, model: "other" }), /there is no model 'other' here/);
