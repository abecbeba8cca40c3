//! Which products of a graph are ours, and the graph with these, each with what is done to its rows before.
//!
//! What is found is a normalisation, or a gate, that a product alone reads, as `scripts/forge/decoder.py` writes them; a
//! product behind anything else has its rows as they are.

use std::collections::HashMap;

use super::{BEFORE, BLOCK, Before, DOMAIN, FINE, Gate, HEAD, INNER, NAME};
#[cfg(target_arch = "x86_64")]
use crate::runtime::attention;
use crate::runtime::{
    nodes::{FLOAT, Graph, LAST, MICROSOFT, Name, Node, ONNX, UINT8, with_graph},
    wire::{field, put_bytes, put_number, real},
};

/// The level at which `MatMulNBits` rounds its rows to 8 bits.
const ROUNDED: u64 = 4;

/// What a generator's graph calls the numbers that say how likely tokens are.
const LOGITS: &[u8] = b"logits";

/// `AttributeProto.AttributeType` of a whole number.
const WHOLE_NUMBER: u64 = 2;

/// The model with its products and its attentions as ours; none where it has no such product, an attention of another kind,
/// or cannot be read.
pub(crate) fn with_products(model: &[u8]) -> Option<Vec<u8>> {
    #[expect(clippy::redundant_closure_for_method_calls, reason = "a method of a graph of one lifetime is none of any")]
    with_graph(model, DOMAIN, |graph| graph.with_products())
}

/// What the name of a constant ends with that has zero points in sixteenths, behind the name of the whole ones. No node reads
/// it: `MatMulNBits` cannot.
const IN_SIXTEENTHS: &[u8] = b".fine";

/// A product whose inputs a product has behind its own, as an adapter beside weights has it.
struct Inner<'a> {
    rows: Name<'a>,
    columns: u64,
    /// Its codes, scales and zero points.
    weights: [Name<'a>; 3],
    nodes: Vec<usize>,
}

/// What a product's rows are made of, and the nodes that do that.
struct Prepared<'a> {
    before: Before,
    rows: Name<'a>,
    /// What is added to them, before they are normalised.
    added: Name<'a>,
    /// By what channels are multiplied when they are.
    gain: Name<'a>,
    /// The sum, where something else reads it.
    sum: Name<'a>,
    /// As the normalisation has it.
    epsilon: Option<&'a [u8]>,
    nodes: Vec<usize>,
}

impl<'a> Graph<'a> {
    fn with_products(&self) -> Option<Vec<u8>> {
        let mut readers: HashMap<Name<'_>, usize> = HashMap::new();
        for name in self.nodes.iter().flat_map(|node| &node.inputs).chain(&self.outputs) {
            *readers.entry(name).or_default() += 1;
        }
        let mut replaced: HashMap<usize, Option<Vec<u8>>> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| self.ours(node)) {
            // Wherever it stands, what is made behind a row is no product by itself.
            if replaced.get(&index).is_some_and(Option::is_none) {
                continue;
            }
            let alone = |name: &Name<'_>| readers.get(name) == Some(&1);
            let inner = self.inner(node).filter(|inner| {
                let made = inner.nodes.iter().filter_map(|index| self.nodes.get(*index)).flat_map(|node| &node.outputs);
                made.into_iter().all(alone)
            });
            let rows = inner.as_ref().map_or(node.input(0), |inner| inner.rows);
            let plain = || Prepared {
                before: Before::Nothing,
                rows,
                added: &[],
                gain: &[],
                sum: &[],
                epsilon: None,
                nodes: Vec::new(),
            };
            // Those who read a row are the product, or both that make one.
            let alone =
                |name: &Name<'_>| readers.get(name) == Some(if **name == *rows && inner.is_some() { &2 } else { &1 });
            let depth = node.number("K").and_then(|depth| usize::try_from(depth).ok()).unwrap_or_default();
            let depth = inner
                .as_ref()
                .map_or(depth, |inner| depth.saturating_sub(inner.columns.try_into().unwrap_or_default()));
            let prepared = self.normalised(rows, depth).or_else(|| self.gated(rows)).filter(|found| {
                // What they make goes with them.
                let made = found.nodes.iter().filter_map(|index| self.nodes.get(*index)).flat_map(|node| &node.outputs);
                made.filter(|name| **name != found.sum && !name.is_empty()).all(alone)
            });
            let prepared = prepared.unwrap_or_else(plain);
            replaced.extend(
                prepared.nodes.iter().chain(inner.iter().flat_map(|inner| &inner.nodes)).map(|index| (*index, None)),
            );
            let head = node.outputs.iter().any(|name| self.tells_tokens(name) && alone(name));
            replaced.insert(index, Some(self.our_product(node, &prepared, inner.as_ref(), head)));
        }
        if replaced.is_empty() {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        attention::replace(self, DOMAIN, &mut replaced)?;
        Some(self.with(&replaced))
    }

    /// What a product of 4 bits has behind its rows, if that is a product of 8 bits with the same rows.
    fn inner(&self, node: &Node<'a>) -> Option<Inner<'a>> {
        let mut nodes = Vec::new();
        let joined = self.made(node.input(0), ONNX, "Concat", &mut nodes)?;
        let [rows, behind] = *joined.inputs.as_slice() else { return None };
        let product = self.made(behind, MICROSOFT, NAME, &mut nodes)?;
        let columns = product.number("N")?;
        let fits = joined.number("axis") == Some(LAST)
            && self.ours(product)
            && product.input(0) == rows
            && product.input(5).is_empty()
            && product.number("bits") == Some(8)
            && node.number("bits") == Some(4)
            && columns % BLOCK as u64 == 0
            && product.number("K")?.checked_add(columns) == node.number("K");
        let weights = [1, 2, 3].map(|place| product.input(place));
        fits.then_some(Inner { rows, columns, weights, nodes })
    }

    /// Rows that are normalised by their root mean square, of themselves or of a sum.
    fn normalised(&self, rows: Name<'a>, width: usize) -> Option<Prepared<'a>> {
        let mut nodes = Vec::new();
        let (node, added, gain, sum);
        if let Some(found) = self.made(rows, MICROSOFT, "SkipSimplifiedLayerNormalization", &mut nodes) {
            let fits = found.inputs.len() == 3 && found.outputs.iter().skip(1).take(2).all(|name| name.is_empty());
            (node, added, gain) = (fits.then_some(found)?, found.input(1), found.input(2));
            sum = found.outputs.get(3).copied().unwrap_or_default();
        } else {
            let found = self.made(rows, ONNX, "SimplifiedLayerNormalization", &mut nodes)?;
            let fits = found.number("axis") == Some(LAST) && found.outputs.len() == 1;
            (node, added, gain) = (fits.then_some(found)?, Name::default(), found.input(1));
            sum = Name::default();
        }
        let epsilon = *node.attributes.get(b"epsilon".as_slice())?;
        self.is_constant(gain, FLOAT, &[width]).then_some(Prepared {
            before: Before::Norm,
            rows: node.input(0),
            added,
            gain,
            sum,
            epsilon: Some(epsilon),
            nodes,
        })
    }

    /// Rows of which one half goes through a gate and is multiplied with the other.
    fn gated(&self, rows: Name<'a>) -> Option<Prepared<'a>> {
        let mut nodes = Vec::new();
        let product = self.made(rows, ONNX, "Mul", &mut nodes)?;
        let gate = match self.made(product.input(0), MICROSOFT, "QuickGelu", &mut nodes) {
            Some(node) => {
                let alpha = real(node.attributes.get(b"alpha".as_slice())?, field::ATTRIBUTE_REAL)?;
                #[expect(clippy::float_cmp, reason = "of this number alone it is what `Gate` says")]
                (alpha == 1.0).then_some((Gate::Silu, node))?
            }
            None => (Gate::Gelu, self.made(product.input(0), MICROSOFT, "FastGelu", &mut nodes)?),
        };
        let (gate, node) = gate;
        let split = self.made(node.input(0), ONNX, "Split", &mut nodes)?;
        let fits = split.outputs == [node.input(0), product.input(1)]
            && split.number("axis") == Some(LAST)
            // In equal parts.
            && split.inputs.len() == 1
            && node.inputs.len() == 1
            && product.inputs.len() == 2;
        fits.then(|| Prepared {
            before: Before::Gate(gate),
            rows: split.input(0),
            added: &[],
            gain: &[],
            sum: &[],
            epsilon: None,
            nodes,
        })
    }

    /// Whether a value is what the graph says of tokens, but for its shape.
    fn tells_tokens(&self, name: Name<'_>) -> bool {
        let reshaped = |node: &Node<'_>| {
            node.kind == b"Reshape" && node.domain == ONNX && node.input(0) == name && node.outputs == [LOGITS]
        };
        name == LOGITS || self.nodes.iter().any(reshaped)
    }

    /// Whether a node is a product that ours can do: of blocks of 32 in 4 or 8 bits with constant weights, whole scales in
    /// single precision and whole zero points, on rows that are rounded to 8 bits.
    fn ours(&self, node: &Node<'_>) -> bool {
        let kind = |input: usize| self.constants.get(node.input(input)).map(|constant| constant.kind);
        let attribute = |name: &str| node.number(name).unwrap_or_default();
        node.kind == NAME.as_bytes()
            && node.domain == MICROSOFT
            && kind(1) == Some(UINT8)
            && kind(2) == Some(FLOAT)
            && kind(3) == Some(UINT8)
            && node.input(4).is_empty()
            && (node.input(5).is_empty() || kind(5) == Some(FLOAT))
            && attribute("block_size") == BLOCK as u64
            && matches!(attribute("bits"), 4 | 8)
            && attribute("accuracy_level") == ROUNDED
            && attribute("N") > 0
            && attribute("K") > 0
            && attribute("K") % BLOCK as u64 == 0
    }

    /// The node that stands for a product, what is before it and what is beside.
    fn our_product(&self, node: &Node<'_>, prepared: &Prepared<'_>, inner: Option<&Inner<'_>>, head: bool) -> Vec<u8> {
        let mut ours = Vec::new();
        let weights = [1, 2, 3].map(|place| node.input(place));
        let [codes, scales, zeros] = weights;
        let in_sixteenths = [zeros, IN_SIXTEENTHS].concat();
        let columns = node.number("N").and_then(|columns| usize::try_from(columns).ok()).unwrap_or_default();
        let blocks = node.number("K").and_then(|depth| usize::try_from(depth).ok()).unwrap_or_default() / BLOCK;
        let fine =
            node.number("bits") == Some(4) && self.is_constant(in_sixteenths.as_slice(), UINT8, &[columns, blocks]);
        let zeros = if fine { in_sixteenths.as_slice() } else { zeros };
        let of_rows = [prepared.rows, codes, scales, zeros, node.input(5), prepared.added, prepared.gain];
        for input in of_rows.into_iter().chain(inner.iter().flat_map(|inner| inner.weights)) {
            put_bytes(&mut ours, field::NODE_INPUT, input);
        }
        let product = node.outputs.first().copied().unwrap_or_default();
        for output in [product, prepared.sum].into_iter().take(if prepared.sum.is_empty() { 1 } else { 2 }) {
            put_bytes(&mut ours, field::NODE_OUTPUT, output);
        }
        put_bytes(&mut ours, field::NODE_NAME, product);
        put_bytes(&mut ours, field::NODE_KIND, NAME.as_bytes());
        put_bytes(&mut ours, field::NODE_DOMAIN, DOMAIN.as_bytes());
        for attribute in node.attributes.values().copied().chain(prepared.epsilon) {
            put_bytes(&mut ours, field::NODE_ATTRIBUTE, attribute);
        }
        let numbers = [
            (BEFORE, prepared.before.number()),
            (HEAD, u64::from(head)),
            (INNER, inner.map_or(0, |inner| inner.columns)),
            (FINE, u64::from(fine)),
        ];
        for (name, value) in numbers {
            let mut attribute = Vec::new();
            put_bytes(&mut attribute, field::ATTRIBUTE_NAME, name.as_bytes());
            put_number(&mut attribute, field::ATTRIBUTE_NUMBER, value);
            put_number(&mut attribute, field::ATTRIBUTE_KIND, WHOLE_NUMBER);
            put_bytes(&mut ours, field::NODE_ATTRIBUTE, &attribute);
        }
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::wire::{Fields, Value, bytes, number};

    fn fixture(name: &str) -> Vec<u8> {
        std::fs::read(format!("tests/fixtures/tiny-products/{name}.onnx")).unwrap()
    }

    fn graph(model: &[u8]) -> Graph<'_> {
        Graph::read(bytes(model, field::MODEL_GRAPH).unwrap()).unwrap()
    }

    /// What the graph of a model has, node by node: its kind where it is not ours, and else what is before it and how many
    /// outputs it has.
    fn nodes(model: &[u8]) -> Vec<Result<(Before, usize), String>> {
        let node = |node: &Node<'_>| {
            if node.domain != DOMAIN.as_bytes() {
                return Err(String::from_utf8(node.kind.to_vec()).unwrap());
            }
            assert_eq!(node.kind, NAME.as_bytes());
            let before = number(node.attributes[BEFORE.as_bytes()], field::ATTRIBUTE_NUMBER).unwrap();
            Ok((Before::of(usize::try_from(before).unwrap()).unwrap(), node.outputs.len()))
        };
        graph(model).nodes.iter().map(node).collect()
    }

    /// The model with a value shown that it kept to itself.
    fn showing(model: &[u8], inner: &str) -> Vec<u8> {
        let mut output = Vec::new();
        put_bytes(&mut output, field::VALUE_NAME, inner.as_bytes());
        let mut graph = bytes(model, field::MODEL_GRAPH).unwrap().to_vec();
        put_bytes(&mut graph, field::GRAPH_OUTPUT, &output);
        let mut shown = Vec::new();
        put_bytes(&mut shown, field::MODEL_GRAPH, &graph);
        shown
    }

    #[test]
    fn a_product_alone_becomes_ours() {
        for name in ["4", "8"] {
            let model = fixture(name);
            assert_eq!(nodes(&model), [Err(NAME.into())]);
            assert_eq!(nodes(&with_products(&model).unwrap()), [Ok((Before::Nothing, 1))]);
        }
    }

    #[test]
    fn a_product_that_tells_how_likely_tokens_are_is_a_head() {
        let heads = |model: &[u8]| {
            let model = with_products(model).unwrap();
            let of = |node: &Node<'_>| node.number(HEAD).unwrap();
            graph(&model).nodes.iter().filter(|node| node.domain == DOMAIN.as_bytes()).map(of).collect::<Vec<_>>()
        };
        let plain = fixture("8");
        assert_eq!(heads(&plain), [0]);
        assert_eq!(heads(&telling(&plain, "logits", None)), [1]);
        assert_eq!(heads(&telling(&plain, "told", Some("logits"))), [1]);
        assert_eq!(heads(&telling(&plain, "told", Some("states"))), [0]);
        // Where something else reads what it tells, that is no matter of likely tokens alone.
        assert_eq!(heads(&showing(&telling(&plain, "told", Some("logits")), "told")), [0]);
    }

    /// The model of a single product with other names: what that makes, and what this is called in another shape.
    fn telling(model: &[u8], product: &str, reshaped: Option<&str>) -> Vec<u8> {
        let mut graph = Vec::new();
        for field in Fields(bytes(model, field::MODEL_GRAPH).unwrap()) {
            let field = field.unwrap();
            let Value::Bytes(value) = field.value else { continue };
            let mut changed = Vec::new();
            match field.number {
                field::GRAPH_NODE => {
                    for field in Fields(value).map(Option::unwrap) {
                        match field.number {
                            field::NODE_OUTPUT => put_bytes(&mut changed, field::NODE_OUTPUT, product.as_bytes()),
                            _ => changed.extend_from_slice(field.whole),
                        }
                    }
                }
                field::GRAPH_OUTPUT => {
                    put_bytes(&mut changed, field::VALUE_NAME, reshaped.unwrap_or(product).as_bytes());
                }
                _ => changed.extend_from_slice(value),
            }
            put_bytes(&mut graph, field.number, &changed);
        }
        if let Some(reshaped) = reshaped {
            let mut node = Vec::new();
            put_bytes(&mut node, field::NODE_INPUT, product.as_bytes());
            put_bytes(&mut node, field::NODE_INPUT, b"shape");
            put_bytes(&mut node, field::NODE_OUTPUT, reshaped.as_bytes());
            put_bytes(&mut node, field::NODE_KIND, b"Reshape");
            put_bytes(&mut graph, field::GRAPH_NODE, &node);
        }
        let mut telling = Vec::new();
        put_bytes(&mut telling, field::MODEL_GRAPH, &graph);
        telling
    }

    #[test]
    fn what_a_product_alone_reads_goes_with_it() {
        for (name, gate) in [("QuickGelu", Gate::Silu), ("FastGelu", Gate::Gelu)] {
            // Two norms tell their sums to others, the first has none.
            let expected = [(Before::Norm, 1), (Before::Norm, 2), (Before::Gate(gate), 1), (Before::Norm, 2)];
            assert_eq!(nodes(&with_products(&fixture(name)).unwrap()), expected.map(Ok));
        }
    }

    #[test]
    fn what_follows_a_row_goes_with_its_product() {
        let model = fixture("beside");
        let changed = with_products(&model).unwrap();
        assert_eq!(nodes(&changed), [Ok((Before::Norm, 2))]);
        let of = |model: &[u8], name: &str| graph(model).nodes[0].number(name).unwrap();
        assert_eq!([INNER, FINE, "K"].map(|name| of(&changed, name)), [32, 1, 96]);
        assert_eq!(of(&with_products(&fixture("fine")).unwrap(), FINE), 1);
        assert_eq!(of(&with_products(&fixture("4")).unwrap(), FINE), 0);
        // Where something else reads it, it is a product by itself.
        let shown = nodes(&with_products(&showing(&model, "inner")).unwrap());
        let kinds: Vec<_> = shown.into_iter().map(|node| node.map(|(before, _)| before)).collect();
        let (norm, joined) = ("SkipSimplifiedLayerNormalization", "Concat");
        let alone = Ok(Before::Nothing);
        assert_eq!(kinds, [Err(norm.into()), alone.clone(), Err(joined.into()), alone]);
    }

    #[test]
    fn what_something_else_reads_too_stays_a_node() {
        let model = fixture("QuickGelu");
        let stays = |inner: &str| {
            let nodes = nodes(&with_products(&showing(&model, inner)).unwrap());
            nodes.into_iter().filter_map(Result::err).collect::<Vec<_>>()
        };
        assert_eq!(stays("first"), ["SimplifiedLayerNormalization"]);
        assert_eq!(stays("middle"), ["SkipSimplifiedLayerNormalization"]);
        for inner in ["gate", "up", "open", "gated"] {
            assert_eq!(stays(inner), ["Split", "QuickGelu", "Mul"], "{inner}");
        }
        assert!(stays("gate_up").is_empty() && stays("middle.sum").is_empty());
    }

    // Inside it any value might be read.
    #[test]
    fn a_graph_that_holds_another_stays_as_it_is() {
        let model = fixture("QuickGelu");
        let mut attribute = Vec::new();
        put_bytes(&mut attribute, field::ATTRIBUTE_NAME, b"then_branch");
        put_bytes(&mut attribute, field::ATTRIBUTE_GRAPH, b"");
        let mut node = Vec::new();
        put_bytes(&mut node, field::NODE_KIND, b"If");
        put_bytes(&mut node, field::NODE_ATTRIBUTE, &attribute);
        let mut graph = bytes(&model, field::MODEL_GRAPH).unwrap().to_vec();
        put_bytes(&mut graph, field::GRAPH_NODE, &node);
        let mut holding = Vec::new();
        put_bytes(&mut holding, field::MODEL_GRAPH, &graph);
        assert_eq!(with_products(&holding), None);
    }

    #[test]
    fn a_graph_of_other_products_stays_as_it_is() {
        // Its rows are not rounded.
        assert_eq!(with_products(&std::fs::read("tests/fixtures/tiny-generator/model.onnx").unwrap()), None);
        assert_eq!(with_products(&std::fs::read("tests/fixtures/tiny-text/model.onnx").unwrap()), None);
    }

    #[test]
    fn what_is_no_model_is_left_alone() {
        let model = fixture("QuickGelu");
        let graph = bytes(&model, field::MODEL_GRAPH).unwrap();
        let start = graph.as_ptr().addr() - model.as_ptr().addr();
        for length in start..start + graph.len() {
            assert_eq!(with_products(model.get(..length).unwrap()), None, "{length}");
        }
        assert_eq!(with_products(b"no model"), None);
        assert_eq!(with_products(&[0xff; 64]), None);
        assert_eq!(with_products(&[]), None);
    }
}
