// Asks all four operations of a Dichroic server. Needs nothing but Node.js 20.
//
//     DICHROIC_URL=http://127.0.0.1:8080 DICHROIC_KEY=dk_… node examples/example.mjs [model]
import { setTimeout as sleep } from "node:timers/promises";

const url = process.env.DICHROIC_URL ?? "http://127.0.0.1:8080";
const key = process.env.DICHROIC_KEY;
const model = process.argv[2] ?? "alpha-4o-mini";
const tries = 5;
// A picture of eight by eight pixels. Yours: (await readFile("picture.png")).toString("base64"), from node:fs/promises
const picture =
  "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAdklEQVR42g3JoQEEIQwAsB+HIRiCIRgi+nQ1uhpdjWasJza/5janqWY32awmmu/X" +
  "3e501e0uu9VFfzHc4Qw17CGHNcR4Md3pTDXtKac1xXzB5VBskkV4EW44ocIOGVaIeJFuOqnSTplWinxRbjmlyi5ZVony/QEfRGLB4iT3qwAAAABJ" +
  "RU5ErkJggg==";

/** The server's error: `code` is the word to act on, `requestId` finds it in the server's log. */
class Refused extends Error {
  constructor(status, { code, message, param, request_id: requestId }) {
    super(`${status} ${code}: ${message} (request ${requestId})`);
    Object.assign(this, { status, code, param, requestId });
  }
}

/** The answer to `body`. Waits and asks again when the server says so. */
async function ask(path, body) {
  for (let attempt = 1; ; attempt += 1) {
    const answer = await fetch(url + path, {
      method: "POST",
      headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(60_000),
    });
    const said = await answer.json();
    if (answer.ok) return said;
    if (answer.status !== 429 || attempt === tries) throw new Refused(answer.status, said.error);
    await sleep(1000 * Number(answer.headers.get("retry-after") ?? 1));
  }
}

if (!key) {
  console.error("set DICHROIC_KEY to an API key");
  process.exit(1);
}
const questions = {
  "/v1/prisms/text": { text: "My train is half an hour late again." },
  "/v1/sunshines/text": { text: "I have an exam tomorrow and I am nervous." },
  "/v1/guardians/text": { text: "I will find you and hurt you.", score_threshold: 0.5 },
  "/v1/guardians/image": { image: picture },
};
for (const [path, body] of Object.entries(questions)) {
  try {
    console.log(path, JSON.stringify(await ask(path, { ...body, model })));
  } catch (error) {
    // fetch's own errors say "fetch failed" and keep the reason inside.
    console.error(`${path}: ${error.cause?.message ?? error.message}`);
    process.exit(1);
  }
}
