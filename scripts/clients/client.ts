// A client in TypeScript whose types are generated from the OpenAPI document. scripts/tests/test_clients.py compiles it
// beside them and runs it against a server.
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

declare const process: { env: Record<string, string | undefined> };

type ModelId = components["schemas"]["ModelId"];
type Category = keyof components["schemas"]["CategoryScores"];

const { CLIENT_URL: baseUrl = "", CLIENT_KEY: key = "", CLIENT_IMAGE: image = "" } = process.env;
const headers = { Authorization: `Bearer ${key}` };
const client = createClient<paths>({ baseUrl, headers });
const model: ModelId = "beta-3-haiku";
const text = "My train is half an hour late again.";
const threat = "I will hunt you down and kill you";

const prism = await client.POST("/v1/prisms/text", { body: { text, model } });
const sunshine = await client.POST("/v1/sunshines/text", { body: { text, model } });
const spoken = await client.POST("/v1/guardians/text", { body: { text: threat, model, score_threshold: 0.1 } });
const seen = await client.POST("/v1/guardians/image", { body: { image, model, score_threshold: null } });
const moderation = await client.POST("/v1/moderations", { body: { input: [text, threat], model } });
const parts = await client.POST("/v1/moderations", {
  body: {
    input: [
      { type: "text", text },
      { type: "image_url", image_url: { url: `data:image/png;base64,${image}` } },
    ],
    model,
  },
});
const blank = await client.POST("/v1/prisms/text", { body: { text: " ", model } });
const stranger = await client.POST("/v1/prisms/text", { body: { text }, headers: { Authorization: "Bearer dk_none" } });
const ready = await client.GET("/readyz");

// Each line reads fields by the names and types that the document gives them.
const found = Object.keys(spoken.data?.category_scores ?? {}) as Category[];
const answers = {
  prism: [prism.data?.positive, prism.data?.negative],
  sunshine: sunshine.data?.text,
  violence: spoken.data?.categories.violence,
  found,
  seen: seen.data?.flagged,
  moderation: moderation.data?.results.map((result) => result.flagged),
  "self-harm": moderation.data?.results[1]?.category_scores["self-harm"],
  applied: parts.data?.results[0]?.category_applied_input_types.violence,
  blank: [blank.response.status, blank.error?.error.code, blank.error?.error.param],
  stranger: [stranger.response.status, stranger.error?.error.code],
  ready: ready.data?.status,
};
console.log(JSON.stringify(answers));

// What the document rules out, the compiler refuses; it also refuses an "expect-error" without an error. Never called.
export function refused(): void {
  // @ts-expect-error: the text is missing
  void client.POST("/v1/prisms/text", { body: {} });
  // @ts-expect-error: there is no such model
  void client.POST("/v1/prisms/text", { body: { text, model: "epsilon-5" } });
  // @ts-expect-error: a threshold is a number
  void client.POST("/v1/guardians/text", { body: { text, score_threshold: "0.5" } });
  // @ts-expect-error: there is no such path
  void client.POST("/v1/prisms/texts", { body: { text } });
  // @ts-expect-error: a reply has no such field
  void sunshine.data?.reply;
}
