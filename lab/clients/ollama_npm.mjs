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
const messages = [{ role: "user", content: "Which wall is far?" }];
const options = { temperature: 0, num_predict: 60 };

async function ask(more) {
  const how = { model, messages, options, ...more };
  if (check !== "streamed") return (await client.chat(how)).message;
  const whole = { role: "assistant", content: "", tool_calls: [] };
  for await (const { message } of await client.chat({ ...how, stream: true })) {
    whole.content += message.content;
    whole.tool_calls.push(...(message.tool_calls ?? []));
  }
  return whole;
}

// Beside a format, the model calls the tool.
const format = z.toJSONSchema(Wall);
const asked = await ask({ tools: [{ type: "function", function: look }], format });
const [call] = asked.tool_calls;
assert.equal(call.function.name, "look");
const looked = z.object({ side }).parse(call.function.arguments);
messages.push(asked, { role: "tool", tool_name: "look", content: `a wall on the ${looked.side}` });
const answer = await ask(check === "typed" ? { format } : {});
assert(answer.content);
if (check === "typed") Wall.parse(JSON.parse(answer.content));
assert.deepEqual((await client.ps()).models.map(one => one.model), [model]);
await assert.rejects(client.chat({ model: "other", messages }), /there is no model 'other' here/);
