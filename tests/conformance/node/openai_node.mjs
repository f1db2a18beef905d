// The official `openai` client for Node, unmodified.
import assert from "node:assert/strict";
import process from "node:process";
import OpenAI from "openai";

const { WEIR_BASE_URL: baseURL, WEIR_API_KEY: apiKey, WEIR_MODEL: model } = process.env;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 240_000 });
const messages = [{ role: "user", content: "Say hello." }];
const tools = [{
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 20 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
}];

const checks = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0 });
    assert.ok(answer.choices[0].message.content);
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
  async chat_stream() {
    const body = { model, messages, max_tokens: 8, temperature: 0 };
    const whole = await client.chat.completions.create(body);
    const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },
  async stream_helper() {
    const stream = client.chat.completions.stream({ model, messages, max_tokens: 8 });
    assert.ok(await stream.finalContent());
  },
  async a_stream_is_aborted() {
    const stream = await client.chat.completions.create({ model, messages, max_tokens: 500, stream: true });
    for await (const _ of stream) {
      stream.controller.abort();
      break;
    }
  },
  async choices_and_logprobs() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 4, n: 2, seed: 7, logprobs: true });
    assert.equal(answer.choices.length, 2);
    assert.equal(answer.choices[1].logprobs.content.length, 4);
  },
  async tool_calls() {
    const body = { model, messages: [{ role: "user", content: "The weather in Rome?" }], tools, max_tokens: 80, temperature: 0 };
    const stream = client.chat.completions.stream({ ...body, tool_choice: "required", parallel_tool_calls: false });
    const message = await stream.finalMessage();
    assert.equal(message.tool_calls[0].function.name, "get_weather");
    assert.deepEqual(Object.keys(JSON.parse(message.tool_calls[0].function.arguments)), ["city"]);
  },
  async json_schema() {
    const schema = {
      type: "object",
      properties: { name: { type: "string" }, population: { type: "integer" } },
      required: ["name", "population"],
      additionalProperties: false,
    };
    const answer = await client.chat.completions.parse({
      model,
      messages: [{ role: "user", content: "A city as JSON." }],
      max_tokens: 100,
      temperature: 0,
      response_format: { type: "json_schema", json_schema: { name: "city", strict: true, schema } },
    });
    assert.deepEqual(Object.keys(JSON.parse(answer.choices[0].message.content)).sort(), ["name", "population"]);
  },
  async completions() {
    const answer = await client.completions.create({ model, prompt: "Once upon a time", max_tokens: 5 });
    assert.ok(answer.choices[0].text);
  },
  async models() {
    const names = [];
    for await (const one of client.models.list()) names.push(one.id);
    assert.ok(names.includes(model));
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ model: "gpt-none", messages }), OpenAI.NotFoundError);
    await assert.rejects(client.chat.completions.create({ model, messages, temperature: 9 }), OpenAI.BadRequestError);
    const other = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
  },
};

for (const [check, run] of Object.entries(checks)) {
  let detail = "";
  try {
    await run();
  } catch (error) {
    detail = `${error.name}: ${error.message}`.slice(0, 600);
  }
  console.log(JSON.stringify({ suite: "openai-node", check, passed: detail === "", detail }));
}
