//! Which nodes of a graph are layers of an encoder that ours can do, and the graph with one node for each of them.
//!
//! A layer is found from its end, the second normalisation, by who makes the input of whom. What `scripts/forge/encoder.py`
//! writes is found; a graph that has other nodes there, or whose inner values something else reads, stays as it is.

use std::collections::{HashMap, HashSet};

use super::{DOMAIN, HEAD_SIZES, Input, NAME, PANEL, Part};
use crate::runtime::wire::{Field, Fields, Value, bytes, field, number, put_bytes, with_operators};

/// The domain of ONNX Runtime's own operators.
const MICROSOFT: &[u8] = b"com.microsoft";

/// That of ONNX's.
const ONNX: &[u8] = b"";

/// `TensorProto.DataType`.
const FLOAT: u64 = 1;
const UINT8: u64 = 2;
const INT8: u64 = 3;
const INT64: u64 = 7;

/// -1, the last axis, as a whole number is written.
const LAST: u64 = u64::MAX;

/// The model with one node a layer; none where it has no such layer, or cannot be read.
pub(crate) fn with_whole_layers(model: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(model.len() + model.len() / 8);
    let mut found = false;
    for field in Fields(model) {
        let field = field?;
        match field.value {
            Value::Bytes(graph) if field.number == field::MODEL_GRAPH => {
                put_bytes(&mut out, field::MODEL_GRAPH, &Graph::read(graph)?.with_whole_layers()?);
                found = true;
            }
            _ => out.extend_from_slice(field.whole),
        }
    }
    found.then(|| with_operators(out, DOMAIN))
}

/// A value's name.
type Name<'a> = &'a [u8];

struct Node<'a> {
    kind: &'a [u8],
    domain: &'a [u8],
    inputs: Vec<Name<'a>>,
    outputs: Vec<Name<'a>>,
    /// Each as it is written, by its name.
    attributes: HashMap<&'a [u8], &'a [u8]>,
}

impl<'a> Node<'a> {
    fn read(node: &'a [u8]) -> Option<Self> {
        let (mut inputs, mut outputs, mut attributes) = (Vec::new(), Vec::new(), HashMap::new());
        for field in Fields(node) {
            match field? {
                Field { number: field::NODE_INPUT, value: Value::Bytes(name), .. } => inputs.push(name),
                Field { number: field::NODE_OUTPUT, value: Value::Bytes(name), .. } => outputs.push(name),
                Field { number: field::NODE_ATTRIBUTE, value: Value::Bytes(attribute), .. } => {
                    attributes.insert(bytes(attribute, field::ATTRIBUTE_NAME)?, attribute);
                }
                _ => {}
            }
        }
        let (kind, domain) = (bytes(node, field::NODE_KIND)?, bytes(node, field::NODE_DOMAIN)?);
        Some(Self { kind, domain, inputs, outputs, attributes })
    }

    fn input(&self, place: usize) -> Name<'a> {
        self.inputs.get(place).copied().unwrap_or_default()
    }

    fn number(&self, attribute: &str) -> Option<u64> {
        number(self.attributes.get(attribute.as_bytes())?, field::ATTRIBUTE_NUMBER)
    }
}

/// A constant's element type and dimensions.
struct Constant {
    kind: u64,
    shape: Vec<usize>,
}

impl Constant {
    fn read(tensor: &[u8]) -> Option<Self> {
        let mut shape = Vec::new();
        for field in Fields(tensor) {
            if let Field { number: field::TENSOR_DIMENSIONS, value: Value::Number(size), .. } = field? {
                shape.push(usize::try_from(size).ok()?);
            }
        }
        Some(Self { kind: number(tensor, field::TENSOR_KIND)?, shape })
    }
}

struct Graph<'a> {
    /// As they are written, with the place in `nodes` of those that are nodes.
    fields: Vec<(Field<'a>, Option<usize>)>,
    nodes: Vec<Node<'a>>,
    constants: HashMap<Name<'a>, Constant>,
    /// Which node a value comes from.
    makers: HashMap<Name<'a>, usize>,
    outputs: Vec<Name<'a>>,
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
    fn read(graph: &'a [u8]) -> Option<Self> {
        let mut read = Self {
            fields: Vec::new(),
            nodes: Vec::new(),
            constants: HashMap::new(),
            makers: HashMap::new(),
            outputs: Vec::new(),
        };
        for field in Fields(graph) {
            let field = field?;
            let mut place = None;
            if let Value::Bytes(message) = field.value {
                match field.number {
                    field::GRAPH_NODE => {
                        let node = Node::read(message)?;
                        let index = read.nodes.len();
                        read.makers.extend(node.outputs.iter().map(|output| (*output, index)));
                        read.nodes.push(node);
                        place = Some(index);
                    }
                    field::GRAPH_INITIALIZER => {
                        read.constants.insert(bytes(message, field::TENSOR_NAME)?, Constant::read(message)?);
                    }
                    field::GRAPH_OUTPUT => read.outputs.push(bytes(message, field::VALUE_NAME)?),
                    _ => {}
                }
            }
            read.fields.push((field, place));
        }
        Some(read)
    }

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
        let mut out = Vec::new();
        for (field, place) in &self.fields {
            match place {
                Some(index) if replaced.contains(index) => {
                    if let Some(layer) = layers.get(index) {
                        put_bytes(&mut out, field::GRAPH_NODE, &layer.node);
                    }
                }
                _ => out.extend_from_slice(field.whole),
            }
        }
        Some(out)
    }

    /// The node that makes a value, if it is of this kind.
    fn made(&self, name: Name<'a>, domain: &[u8], kind: &str, used: &mut Vec<usize>) -> Option<&Node<'a>> {
        let index = *self.makers.get(name)?;
        let node = self.nodes.get(index).filter(|node| node.domain == domain && node.kind == kind.as_bytes())?;
        used.push(index);
        Some(node)
    }

    fn is_constant(&self, name: Name<'_>, kind: u64, shape: &[usize]) -> bool {
        self.constants.get(name).is_some_and(|constant| constant.kind == kind && constant.shape == shape)
    }

    fn is_number(&self, name: Name<'_>, kind: u64) -> bool {
        self.is_constant(name, kind, &[]) || self.is_constant(name, kind, &[1])
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
