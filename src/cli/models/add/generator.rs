//! A causal language model that is added: its graph, its prompts, and one reply written by it.

use anyhow::{Context as _, bail};

use super::{AddArgs, Understood};
use crate::{
    config::Config,
    registry::{
        Bundle,
        causal::CausalModel,
        export::Part,
        manifest::{CacheForm, GeneratorSpec, Languages, TaskPrompt},
        prompts::Prompts,
    },
    runtime::{Decode, Decoder, GeneratorGraph, GrowingDecoder, PromptTokenizer, Runtime, Step},
};

const TRIAL: &str = "Our team shipped the release on Friday.";
/// Tokens of the reply that is shown.
const SHOWN: usize = 24;
/// Tokens that must be left beside a prompt: a long text, and as long an answer as there may be.
const ROOM: usize = 640;
/// Least correlation of the logits after a text in one pass and in several. Measured on seeded random models: rounded
/// to 8 bits by the pass, as dynamic quantisation does, they keep 0.97 and more; those that miscount the positions after
/// their past have 0.57 and less.
const SAME: f64 = 0.9;

pub(super) fn understood(args: &AddArgs, config: &Config) -> anyhow::Result<Understood> {
    let model = CausalModel::open(&args.dir, args.graph.as_deref())?;
    let tokenizer = PromptTokenizer::read(&model.export().tokenizer())?;
    let runtime = Runtime::load(&config.runtime_library, config.threads.get())?;
    let GeneratorGraph { cache, layers, kv_heads, head_dim, vocab } =
        GeneratorGraph::read(&runtime, model.export().graph())?;
    tokenizer.fits(vocab)?;
    let prompts = match &args.prompts {
        Some(path) => Prompts::read(path)?,
        None => model.prompts(&tokenizer.opening()?)?,
    };
    let stop_ids = stop_ids(&model, &tokenizer, &prompts)?;
    let window = model.window();
    for prompt in [&prompts.tasks.positive, &prompts.tasks.negative, &prompts.tasks.reply] {
        let taken = tokenizer.prefix(prompt)?.len() + tokenizer.body(prompt, "")?.len();
        if taken + ROOM > window {
            bail!(
                "the model takes {window} tokens and its prompts are {taken} of them, which leaves no room for a text \
                 and its answer; take a model with more positions, or shorter prompts with --prompts"
            );
        }
    }
    let mut tasks = prompts.tasks;
    for task in [&mut tasks.positive, &mut tasks.negative, &mut tasks.reply] {
        // The judge learned from answers of our own models: of others' it knows nothing.
        task.least_right = None;
    }
    let spec = GeneratorSpec {
        layers,
        kv_heads,
        head_dim,
        vocab,
        answer_tokens: None,
        mood: None,
        languages: Languages::Any,
        cache,
        prefill: None,
        products: None,
        window,
        stop_ids,
        tasks,
    };
    Ok((model.into_export(), Part::Generator(spec)))
}

/// Tokens that end an answer: those of the configuration, of the prompts, and the one that ends a turn or a line.
fn stop_ids(model: &CausalModel, tokenizer: &PromptTokenizer, prompts: &Prompts) -> anyhow::Result<Vec<u32>> {
    let mut ids = model.stop_ids().to_vec();
    if let Some(unknown) = ids.iter().find(|&&id| tokenizer.token(id).is_none()) {
        bail!(
            "the model ends its answers with token {unknown}, which {} does not have; take the tokenizer.json that \
             belongs to the model",
            model.export().tokenizer().display()
        );
    }
    for token in &prompts.stop {
        ids.push(tokenizer.id(token).with_context(|| format!("the prompts stop at {token:?}, which is no token"))?);
    }
    ids.extend(tokenizer.ending(&prompts.after_answer)?);
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// A reply of the model, which is seen to keep its past as it says.
pub(super) fn trial(bundle: &Bundle, config: &Config) -> anyhow::Result<Vec<String>> {
    let runtime = Runtime::load(&config.runtime_library, config.threads.get())?;
    let tokenizer = PromptTokenizer::open(bundle)?;
    let spec = bundle.manifest().generator.as_ref().context("the manifest has no generator part")?;
    let tokens = match spec.cache {
        CacheForm::Shared => reply(&mut Decoder::open(&runtime, bundle, 2)?, &tokenizer, spec)?,
        CacheForm::Growing => reply(&mut GrowingDecoder::open(&runtime, bundle, 2)?, &tokenizer, spec)?,
    };
    let text = tokenizer.decode(&tokens)?;
    Ok(vec![format!("To {TRIAL:?} it begins its reply with {:?}.", text.trim())])
}

fn reply<D: Decode>(decoder: &mut D, tokenizer: &PromptTokenizer, spec: &GeneratorSpec) -> anyhow::Result<Vec<u32>> {
    let prompt: &TaskPrompt = &spec.tasks.reply;
    let (prefix, body) = (tokenizer.prefix(prompt)?, tokenizer.body(prompt, TRIAL)?);
    let whole = [prefix.as_slice(), &body].concat();
    let Some((&last, but_last)) = whole.split_last() else { bail!("its prompt is empty") };

    // The ways in which the engine feeds a text must come to the same.
    let at_once = decoder.prefill(0, 0, &whole)?;
    decoder.prefill(1, 0, &prefix)?;
    decoder.copy(1, 0, prefix.len());
    let after_prefix = decoder.prefill(0, prefix.len(), &body)?;
    decoder.prefill(0, 0, but_last)?;
    let step = decoder.step(&[Step { token: last, past: but_last.len() }])?.pop().context("a step gave no logits")?;
    for (logits, how) in [(after_prefix, "after a cached prompt"), (step, "token by token")] {
        let alike = correlation(&at_once, &logits);
        if alike.is_nan() || alike < SAME {
            bail!("a text read {how} is to it another than the same text at once (correlation {alike:.3})");
        }
    }

    let mut logits = at_once;
    let mut tokens = Vec::new();
    decoder.prefill(0, 0, &whole)?;
    while tokens.len() < SHOWN {
        let best = logits.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let token = decoder.token(u32::try_from(best.context("it gave no logits")?.0)?);
        if spec.stop_ids.contains(&token) {
            break;
        }
        let past = whole.len() + tokens.len();
        logits = decoder.step(&[Step { token, past }])?.pop().context("a step gave no logits")?;
        tokens.push(token);
    }
    Ok(tokens)
}

/// Pearson's, of equally many numbers.
fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let mean = |values: &[f32]| {
        let (sum, count) = values.iter().fold((0.0, 0.0), |(sum, count), &value| (sum + f64::from(value), count + 1.0));
        sum / count
    };
    let (mean_a, mean_b) = (mean(a), mean(b));
    let (mut both, mut square_a, mut square_b) = (0.0, 0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (f64::from(a) - mean_a, f64::from(b) - mean_b);
        both += a * b;
        square_a += a * a;
        square_b += b * b;
    }
    both / (square_a * square_b).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_correlation_heeds_neither_scale_nor_offset_and_is_none_of_what_is_no_number() {
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
        close(correlation(&[1.0, 2.0, 4.0], &[12.0, 14.0, 18.0]), 1.0);
        close(correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        close(correlation(&[1.0, -1.0, 1.0, -1.0], &[1.0, 1.0, -1.0, -1.0]), 0.0);
        assert!(correlation(&[1.0, f32::NAN], &[1.0, 2.0]).is_nan());
    }
}
