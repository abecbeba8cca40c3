//! What a generator's graph says of itself: the form of its cache, and its dimensions.
//!
//! A graph that `add` is given must keep to one of two contracts, that of [`super::decoder`] or that of
//! [`super::growing`]. Refuses everything else, with the export that would fit.

use std::path::Path;

use ort::value::{Outlet, TensorElementType, ValueType};

use super::{Runtime, RuntimeError};
use crate::registry::manifest::CacheForm;

const EXPORT: &str = "export the model with `optimum-cli export onnx --task text-generation-with-past`, in float32";

/// The dimensions of a generator, by its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeneratorGraph {
    /// Which contract it keeps to.
    pub cache: CacheForm,
    /// Transformer layers.
    pub layers: usize,
    /// Key/value heads a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the logits.
    pub vocab: usize,
}

impl GeneratorGraph {
    /// Reads the graph at `path`.
    ///
    /// # Errors
    /// [`RuntimeError::Load`] when it cannot be opened, or keeps to no contract.
    pub fn read(runtime: &Runtime, path: &Path) -> Result<Self, RuntimeError> {
        let session = runtime.open(path)?;
        let refuse = |reason: String| RuntimeError::Load(format!("{}: {reason}", path.display()));
        understood(session.inputs(), session.outputs()).map_err(refuse)
    }
}

fn understood(inputs: &[Outlet], outputs: &[Outlet]) -> Result<GeneratorGraph, String> {
    let has = |name: &str| inputs.iter().any(|input| input.name() == name);
    let (cache, past, fixed): (_, _, &[&str]) = if has("past.0.key") {
        (CacheForm::Shared, "past", &["input_ids", "seqlens_k", "total_sequence_length"])
    } else if has("past_key_values.0.key") {
        (CacheForm::Growing, "past_key_values", &["input_ids"])
    } else {
        return Err(format!(
            "its inputs are {}: without past_key_values it would read a text anew for each token; {EXPORT}",
            names(inputs)
        ));
    };
    if let Some(missing) = fixed.iter().find(|name| !has(name)) {
        return Err(format!("it has no input named {missing}; {EXPORT}"));
    }
    let layers = (0..inputs.len()).take_while(|layer| has(&format!("{past}.{layer}.key"))).count();
    let mut shape = None;
    for layer in 0..layers {
        for half in ["key", "value"] {
            let found = dimensions(inputs, &format!("{past}.{layer}.{half}"))?;
            let [_, Some(heads), _, Some(width)] = found[..] else {
                return Err(format!(
                    "the shape of {past}.{layer}.{half} is not [batch, heads, tokens, width] with fixed heads and \
                     width, as it must be"
                ));
            };
            if *shape.get_or_insert((heads, width)) != (heads, width) {
                return Err("its keys and values differ in shape; such a model cannot be run here".into());
            }
            dimensions(outputs, &format!("present.{layer}.{half}"))?;
        }
    }
    let optional: &[&str] = if cache == CacheForm::Growing { &["attention_mask", "position_ids"] } else { &[] };
    let known = |name: &str| {
        let of_layer = name.strip_prefix(past).and_then(|rest| rest.strip_prefix('.')).and_then(|rest| {
            let (layer, half) = rest.split_once('.')?;
            (half == "key" || half == "value").then(|| layer.parse::<usize>().ok()).flatten()
        });
        fixed.contains(&name) || optional.contains(&name) || of_layer.is_some_and(|layer| layer < layers)
    };
    if let Some(other) = inputs.iter().find(|input| !known(input.name())) {
        return Err(format!("it has an input named {}, which nothing here could fill; {EXPORT}", other.name()));
    }
    let Some(Some(vocab)) = dimensions(outputs, "logits")?.last().copied() else {
        return Err(format!("its logits do not say how many tokens it knows; {EXPORT}"));
    };
    let (kv_heads, head_dim) = shape.unwrap_or_default();
    Ok(GeneratorGraph { cache, layers, kv_heads, head_dim, vocab })
}

/// The dimensions of a float32 tensor, those that are fixed.
fn dimensions(of: &[Outlet], name: &str) -> Result<Vec<Option<usize>>, String> {
    let outlet = of.iter().find(|outlet| outlet.name() == name);
    match outlet.map(Outlet::dtype) {
        Some(ValueType::Tensor { ty: TensorElementType::Float32, shape, .. }) => {
            Ok(shape.iter().map(|&size| usize::try_from(size).ok()).collect())
        }
        Some(other) => Err(format!("{name} is {other} and not a float32 tensor; {EXPORT}")),
        None => Err(format!("it has no {name}; {EXPORT}")),
    }
}

fn names(outlets: &[Outlet]) -> String {
    outlets.iter().map(Outlet::name).collect::<Vec<_>>().join(", ")
}
