// Writes tests/golden/images/golden.json: what nsfwjs answers for each picture.
//
// Owns the golden values only. nsfwjs loads its own bundled weights through its
// own handlers and does its own pre-processing (fromPixels, /255, resizeBilinear
// with aligned corners) on tf.js's plain JavaScript backend; this script hands it
// pixels and records what comes out. Usage: npm ci && npm run golden
import { readFileSync, readdirSync, renameSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import * as tf from "@tensorflow/tfjs";
import { PNG } from "pngjs";

// The CommonJS build: its import paths need no bundler.
const require = createRequire(import.meta.url);
const nsfwjs = require("nsfwjs");
const PINNED = require("./package.json").dependencies;

const FOLDER = join(dirname(fileURLToPath(import.meta.url)), "../../tests/golden/images");
const MODELS = { inception_v3: "InceptionV3", mobilenet_v2: "MobileNetV2", mobilenet_v2_mid: "MobileNetV2Mid" };
const SIZES = [224, 299];
const CLASSES = ["Drawing", "Hentai", "Neutral", "Porn", "Sexy"];

const round = (value) => Number(value.toFixed(6));

/** The resize exactly as NSFWJS.infer does it. */
function preprocess(pixels, size) {
  return tf.tidy(() => {
    const scaled = tf.browser.fromPixels(pixels).toFloat().div(tf.scalar(255));
    const same = pixels.width === size && pixels.height === size;
    return same ? scaled : tf.image.resizeBilinear(scaled, [size, size], true);
  });
}

/** Corners, edges and a fixed scatter of inner points: [y, x] pairs. */
function samplePoints(size) {
  const points = [[0, 0], [0, size - 1], [size - 1, 0], [size - 1, size - 1]];
  for (let i = 1; i <= 28; i += 1) {
    points.push([(i * 7919) % size, (i * 104729) % size]);
  }
  return points;
}

async function main() {
  await tf.setBackend("cpu");
  await tf.ready();
  const pictures = {};
  for (const name of readdirSync(FOLDER).filter((file) => file.endsWith(".png")).sort()) {
    const bytes = readFileSync(join(FOLDER, name));
    const png = PNG.sync.read(bytes);
    const pixels = { data: new Uint8Array(png.data), width: png.width, height: png.height };
    const entry = {
      sha256: createHash("sha256").update(bytes).digest("hex"),
      width: png.width,
      height: png.height,
      tensors: {},
      probabilities: {},
    };
    for (const size of SIZES) {
      const tensor = preprocess(pixels, size);
      const values = tensor.arraySync();
      entry.tensors[size] = {
        mean: round(tensor.mean().arraySync()),
        samples: samplePoints(size).map(([y, x]) => [y, x, ...values[y][x].map(round)]),
      };
      tensor.dispose();
    }
    pictures[name] = { pixels, entry };
  }
  for (const [key, name] of Object.entries(MODELS)) {
    const model = await nsfwjs.load(name);
    for (const [file, { pixels, entry }] of Object.entries(pictures)) {
      const logits = model.infer(pixels);
      entry.probabilities[key] = Array.from(await logits.data(), round);
      logits.dispose();
      console.error(`${key} ${file} ${entry.probabilities[key].join(" ")}`);
    }
    model.dispose();
  }
  const golden = {
    made_by: `nsfwjs ${PINNED.nsfwjs} on @tensorflow/tfjs ${tf.version.tfjs}, backend ${tf.getBackend()}`,
    classes: CLASSES,
    pictures: Object.fromEntries(Object.entries(pictures).map(([file, { entry }]) => [file, entry])),
  };
  const target = join(FOLDER, "golden.json");
  writeFileSync(`${target}.partial`, `${JSON.stringify(golden, null, 1)}\n`);
  renameSync(`${target}.partial`, target);
}

await main();
