//! Which nodes of a graph are layers of an encoder that ours can do, and the graph with one node for each of them.
//!
//! A layer is found from its end, the second normalisation, by who makes the input of whom. What `scripts/forge/encoder.py`
//! writes is found; a graph that has other nodes there, or whose inner values something else reads, stays as it is.

use std::collections::{HashMap, HashSet};

use super::{DOMAIN, HEAD_SIZES, Input, NAME, PANEL, Part};
use crate::runtime::{
    nodes::{FLOAT, Graph, INT8, INT64, LAST, MICROSOFT, Name, Node, ONNX, UINT8, with_graph},
    wire::{field, put_bytes},
};

/// The model with one node a layer; none where it has no such layer, or cannot be read.
pub(crate) fn with_whole_layers(model: &[u8]) -> Option<Vec<u8>> {
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a method of a graph of one lifetime is none of any")]
    with_graph(model, DOMAIN, |graph| graph.with_whole_layers())
}

/// A matrix product, in the order of [`Part::ALL`]: [`super::Product`] says what they are.
struct Product<'a> {
    x: Name<'a>,
    parts: [Name<'a>; Part::ALL.len()],
    depth: usize,
    columns: usize,
}

/// A layer: the node that stands for it, and those that it stands for.
struct Layer<'a> {
    node: Vec<u8>,
    replaced: Vec<usize>,
    inner_outputs: Vec<Name<'a>>,
}

impl<'a> Graph<'a> {
    fn with_whole_layers(&self) -> Option<Vec<u8>> {
        let layers: HashMap<usize, Layer<'_>> =
            (0..self.nodes.len()).filter_map(|end| Some((end, self.layer(end)?))).collect();
        let replaced: HashSet<usize> = layers.values().flat_map(|layer| layer.replaced.iter().copied()).collect();
        let inner: HashSet<Name<'_>> = layers.values().flat_map(|layer| layer.inner_outputs.iter().copied()).collect();
        let kept = self.nodes.iter().enumerate().filter(|(index, _)| !replaced.contains(index));
        let mut read = kept.flat_map(|(_, node)| &node.inputs).chain(&self.outputs);
        if layers.is_empty() || read.any(|name| inner.contains(name)) {
            return None;
        }
        let node = |index| layers.get(&index).map(|layer| layer.node.clone());
        Some(self.with(&replaced.into_iter().map(|index| (index, node(index))).collect()))
    }

    /// The layer whose second normalisation is this node.
    fn layer(&self, end: usize) -> Option<Layer<'a>> {
        let mut used = Vec::new();
        let output = *self.nodes.get(end)?.outputs.first()?;
        let (second, down, middle) = self.sum_normalised(output, &mut used)?;
        let down = self.product(down, &mut used)?;
        let gelu = self.made(down.x, MICROSOFT, "Gelu", &mut used)?;
        let inner = self.product(gelu.input(0), &mut used)?;
        let (first, attended, x) = self.sum_normalised(middle, &mut used)?;
        let attended = self.product(attended, &mut used)?;
        let attention = self.made(attended.x, MICROSOFT, "MultiHeadAttention", &mut used)?;
        let split = self.made(attention.input(0), ONNX, "Split", &mut used)?;
        let packed = self.product(split.input(0), &mut used)?;
        let (width, heads) = (packed.depth, attention.number("num_heads").and_then(|n| usize::try_from(n).ok())?);
        let fits = inner.x == middle
            && packed.x == x
            && split.outputs == attention.inputs.get(..3)?
            && split.number("axis") == Some(LAST)
            && attention.attributes.len() == 1
            && attention.input(3).is_empty()
            && !attention.input(4).is_empty()
            && attention.inputs.len() <= 6
            && heads > 0
            && width.is_multiple_of(heads)
            && HEAD_SIZES.contains(&(width / heads))
            && packed.columns == 3 * width
            && (attended.depth, attended.columns) == (width, width)
            && inner.depth == width
            && (down.depth, down.columns) == (inner.columns, width)
            && self.fits(first, width)
            && self.fits(second, width)
            && first.attributes.get(b"epsilon".as_slice()) == second.attributes.get(b"epsilon".as_slice());
        let inputs = fits.then(|| {
            Input::ALL.map(|input| match input {
                Input::States => x,
                Input::Lengths => attention.input(4),
                Input::Distances => attention.input(5),
                Input::Packed(part) => packed.part(part),
                Input::Attended(part) => attended.part(part),
                Input::Inner(part) => inner.part(part),
                Input::Down(part) => down.part(part),
                Input::FirstScale => first.input(1),
                Input::FirstShift => first.input(2),
                Input::SecondScale => second.input(1),
                Input::SecondShift => second.input(2),
            })
        })?;
        let attributes =
            [attention.attributes.get(b"num_heads".as_slice())?, *second.attributes.get(b"epsilon".as_slice())?];
        let mut node = Vec::new();
        for input in inputs {
            put_bytes(&mut node, field::NODE_INPUT, input);
        }
        put_bytes(&mut node, field::NODE_OUTPUT, output);
        put_bytes(&mut node, field::NODE_NAME, output);
        put_bytes(&mut node, field::NODE_KIND, NAME.as_bytes());
        put_bytes(&mut node, field::NODE_DOMAIN, DOMAIN.as_bytes());
        for attribute in attributes {
            put_bytes(&mut node, field::NODE_ATTRIBUTE, attribute);
        }
        let outputs = used.iter().filter_map(|index| self.nodes.get(*index)).flat_map(|node| &node.outputs);
        let inner_outputs = outputs.copied().filter(|name| *name != output).collect();
        Some(Layer { node, replaced: used, inner_outputs })
    }

    /// A normalised sum: the normalisation and the two that are added.
    fn sum_normalised(&self, output: Name<'a>, used: &mut Vec<usize>) -> Option<(&Node<'a>, Name<'a>, Name<'a>)> {
        let normalised = self.made(output, ONNX, "LayerNormalization", used)?;
        let sum = self.made(normalised.input(0), ONNX, "Sum", used)?;
        let fits = normalised.number("axis") == Some(LAST) && normalised.outputs.len() == 1 && sum.inputs.len() == 2;
        fits.then_some((normalised, sum.input(0), sum.input(1)))
    }

    /// Whether a normalisation is of states so wide.
    fn fits(&self, normalised: &Node<'_>, width: usize) -> bool {
        [1, 2].into_iter().all(|place| self.is_constant(normalised.input(place), FLOAT, &[width]))
    }

    fn product(&self, output: Name<'a>, used: &mut Vec<usize>) -> Option<Product<'a>> {
        let (mut rounded, mut exact) = (output, None);
        if let Some(sum) = self.made(output, ONNX, "Add", used) {
            rounded = sum.input(0);
            let exactly = self.made(sum.input(1), ONNX, "MatMul", used)?;
            let chosen = self.made(exactly.input(0), ONNX, "Gather", used)?;
            exact =
                (chosen.number("axis") == Some(LAST)).then_some((chosen.input(0), chosen.input(1), exactly.input(1)));
            exact?;
        }
        let product = self.made(rounded, MICROSOFT, "MatMulIntegerToFloat", used)?;
        let rounding = self.made(product.input(0), ONNX, "QuantizeLinear", used)?;
        let [weight, step, scales, zero, bias] = [1, 2, 3, 4, 6].map(|place| product.input(place));
        let [depth, columns] = self.constants.get(weight)?.shape.as_slice().try_into().ok()?;
        let even = rounding.input(0);
        let [mut x, mut narrowing, mut offset]: [Name<'a>; 3] = [even, &[], &[]];
        if let Some(moved) = self.made(even, ONNX, "Sub", used) {
            let narrowed = self.made(moved.input(0), ONNX, "Mul", used)?;
            [x, narrowing, offset] = [narrowed.input(0), narrowed.input(1), moved.input(1)];
        }
        let spread = narrowing.is_empty()
            || self.is_constant(narrowing, FLOAT, &[depth]) && self.is_constant(offset, FLOAT, &[depth]);
        let (chosen, exact) = match exact {
            None => (Name::default(), Name::default()),
            Some((from, chosen, weights)) => {
                let count = *self.constants.get(chosen)?.shape.first()?;
                let fits = from == even
                    && self.is_constant(chosen, INT64, &[count])
                    && self.is_constant(weights, FLOAT, &[count, columns]);
                fits.then_some((chosen, weights))?
            }
        };
        let fits = spread
            && product.input(5).is_empty()
            && (step, zero) == (rounding.input(1), rounding.input(2))
            && self.is_constant(weight, INT8, &[depth, columns])
            && self.is_number(step, FLOAT)
            && self.is_number(zero, UINT8)
            && self.is_constant(scales, FLOAT, &[columns])
            && self.is_constant(bias, FLOAT, &[columns])
            && depth.is_multiple_of(PANEL)
            && columns.is_multiple_of(PANEL);
        let parts = Part::ALL.map(|part| match part {
            Part::Codes => weight,
            Part::Scales => scales,
            Part::Bias => bias,
            Part::Step => step,
            Part::Zero => zero,
            Part::Narrowing => narrowing,
            Part::Offset => offset,
            Part::Chosen => chosen,
            Part::Exact => exact,
        });
        fits.then_some(Product { x, parts, depth, columns })
    }
}

impl<'a> Product<'a> {
    fn part(&self, part: Part) -> Name<'a> {
        let place = Part::ALL.iter().position(|other| *other == part);
        place.and_then(|place| self.parts.get(place)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wire::bytes;

    fn fixture(name: &str) -> Vec<u8> {
        std::fs::read(format!("tests/fixtures/{name}.onnx")).unwrap()
    }

    fn graph(model: &[u8]) -> Graph<'_> {
        Graph::read(bytes(model, field::MODEL_GRAPH).unwrap()).unwrap()
    }

    #[test]
    fn a_layer_becomes_one_node_and_the_rest_stays() {
        for (name, layers) in [("tiny-encoder/16", 2), ("tiny-encoder/32", 1), ("tiny-encoder/64", 1)] {
            let model = fixture(name);
            let before = graph(&model);
            let changed = with_whole_layers(&model).unwrap();
            let after = graph(&changed);
            let ours = after.nodes.iter().filter(|node| node.domain == DOMAIN.as_bytes());
            assert_eq!(
                ours.map(|node| (node.kind, node.inputs.len())).collect::<Vec<_>>(),
                vec![(NAME.as_bytes(), Input::ALL.len()); layers]
            );
            assert!(after.nodes.iter().all(|node| node.kind != b"MatMulIntegerToFloat" && node.kind != b"Gelu"));
            let rest = |graph: &Graph<'_>| {
                let heads = graph.nodes.iter().filter(|node| node.kind == b"Gemm" || node.kind == b"ReduceMax").count();
                (heads, graph.constants.len(), graph.outputs.len())
            };
            assert_eq!(rest(&after), rest(&before));
        }
    }

    #[test]
    fn a_layer_of_which_something_else_reads_a_part_stays() {
        let model = fixture("tiny-encoder/32");
        for (inner, stays) in [("layer.0.gelu", true), ("layer.0.middle", true), ("layer.1.in", false)] {
            let mut output = Vec::new();
            put_bytes(&mut output, field::VALUE_NAME, inner.as_bytes());
            let mut graph = bytes(&model, field::MODEL_GRAPH).unwrap().to_vec();
            put_bytes(&mut graph, field::GRAPH_OUTPUT, &output);
            let mut shown = Vec::new();
            put_bytes(&mut shown, field::MODEL_GRAPH, &graph);
            assert_eq!(with_whole_layers(&shown).is_none(), stays, "{inner}");
        }
    }

    #[test]
    fn other_graphs_stay_as_they_are() {
        for name in ["tiny-text/model", "tiny-generator/model", "tiny-products/8"] {
            assert_eq!(with_whole_layers(&fixture(name)), None, "{name}");
        }
        let model = fixture("tiny-encoder/64");
        let (graph, whole) = (bytes(&model, field::MODEL_GRAPH).unwrap(), model.as_ptr().addr());
        for length in graph.as_ptr().addr() - whole..graph.as_ptr().addr() - whole + graph.len() {
            assert_eq!(with_whole_layers(&model[..length]), None, "{length}");
        }
        assert_eq!(with_whole_layers(b"no model"), None);
        assert_eq!(with_whole_layers(&[]), None);
    }
}
