//! Which products of a graph are ours, and the graph with these renamed.
//!
//! Of a field that occurs twice the later one holds, so that a node is renamed by what is put behind it.

use std::collections::HashMap;

use super::{BLOCK, DOMAIN, NAME};
use crate::runtime::wire::{Field, Fields, Value, bytes, field, number, put_bytes, with_operators};

/// `TensorProto.DataType`.
const FLOAT: u64 = 1;
const UINT8: u64 = 2;

/// The level at which `MatMulNBits` rounds its rows to 8 bits.
const ROUNDED: u64 = 4;

/// The model with its products renamed to ours; none where it has no such product, or cannot be read.
pub(crate) fn renamed(model: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(model.len() + model.len() / 8);
    let mut found = 0;
    for field in Fields(model) {
        let field = field?;
        match field.value {
            Value::Bytes(graph) if field.number == field::MODEL_GRAPH => {
                put_bytes(&mut out, field::MODEL_GRAPH, &renamed_graph(graph, &mut found)?);
            }
            _ => out.extend_from_slice(field.whole),
        }
    }
    (found > 0).then(|| with_operators(out, DOMAIN))
}

fn renamed_graph(graph: &[u8], found: &mut usize) -> Option<Vec<u8>> {
    let mut kinds = HashMap::new();
    for field in Fields(graph) {
        if let Field { number: field::GRAPH_INITIALIZER, value: Value::Bytes(tensor), .. } = field? {
            let name = bytes(tensor, field::TENSOR_NAME)?;
            kinds.insert(name, number(tensor, field::TENSOR_KIND)?);
        }
    }
    let mut out = Vec::with_capacity(graph.len() + graph.len() / 8);
    for field in Fields(graph) {
        let field = field?;
        match field.value {
            Value::Bytes(node) if field.number == field::GRAPH_NODE && ours(node, &kinds)? => {
                let mut node = node.to_vec();
                put_bytes(&mut node, field::NODE_KIND, NAME.as_bytes());
                put_bytes(&mut node, field::NODE_DOMAIN, DOMAIN.as_bytes());
                put_bytes(&mut out, field::GRAPH_NODE, &node);
                *found += 1;
            }
            _ => out.extend_from_slice(field.whole),
        }
    }
    Some(out)
}

/// Whether a node is a product that ours can do: of blocks of 32 in 4 or 8 bits with constant weights, whole scales in
/// single precision and whole zero points, on rows that are rounded to 8 bits.
fn ours(node: &[u8], kinds: &HashMap<&[u8], u64>) -> Option<bool> {
    if bytes(node, field::NODE_KIND)? != NAME.as_bytes() || bytes(node, field::NODE_DOMAIN)? != b"com.microsoft" {
        return Some(false);
    }
    let mut inputs = Vec::new();
    let mut attributes = HashMap::new();
    for field in Fields(node) {
        match field? {
            Field { number: field::NODE_INPUT, value: Value::Bytes(name), .. } => inputs.push(name),
            Field { number: field::NODE_ATTRIBUTE, value: Value::Bytes(attribute), .. } => {
                attributes
                    .insert(bytes(attribute, field::ATTRIBUTE_NAME)?, number(attribute, field::ATTRIBUTE_NUMBER)?);
            }
            _ => {}
        }
    }
    let kind = |input: usize| inputs.get(input).and_then(|name| kinds.get(name)).copied();
    let attribute = |name: &str| attributes.get(name.as_bytes()).copied().unwrap_or_default();
    let named = |input: usize| inputs.get(input).is_some_and(|name| !name.is_empty());
    Some(
        kind(1) == Some(UINT8)
            && kind(2) == Some(FLOAT)
            && kind(3) == Some(UINT8)
            && !named(4)
            && (!named(5) || kind(5) == Some(FLOAT))
            && attribute("block_size") == BLOCK as u64
            && matches!(attribute("bits"), 4 | 8)
            && attribute("accuracy_level") == ROUNDED
            && attribute("N") > 0
            && attribute("K") > 0
            && attribute("K") % BLOCK as u64 == 0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        std::fs::read(format!("tests/fixtures/{name}.onnx")).unwrap()
    }

    /// Nodes by domain and kind.
    fn nodes(model: &[u8]) -> Vec<(String, String)> {
        let graph = bytes(model, field::MODEL_GRAPH).unwrap();
        let text = |node: &[u8], number| String::from_utf8(bytes(node, number).unwrap().to_vec()).unwrap();
        Fields(graph)
            .filter_map(|field| match field.unwrap() {
                Field { number: field::GRAPH_NODE, value: Value::Bytes(node), .. } => {
                    Some((text(node, field::NODE_DOMAIN), text(node, field::NODE_KIND)))
                }
                _ => None,
            })
            .collect()
    }

    #[test]
    fn products_are_renamed_and_nothing_else() {
        for name in ["tiny-products/4", "tiny-products/8"] {
            let model = fixture(name);
            assert_eq!(nodes(&model), [("com.microsoft".into(), NAME.into())]);
            assert_eq!(nodes(&renamed(&model).unwrap()), [(DOMAIN.into(), NAME.into())]);
        }
    }

    #[test]
    fn a_graph_of_other_products_stays_as_it_is() {
        // Its rows are not rounded.
        assert_eq!(renamed(&fixture("tiny-generator/model")), None);
        assert_eq!(renamed(&fixture("tiny-text/model")), None);
    }

    #[test]
    fn what_is_no_model_is_left_alone() {
        let model = fixture("tiny-products/4");
        let graph = bytes(&model, field::MODEL_GRAPH).unwrap();
        let start = graph.as_ptr().addr() - model.as_ptr().addr();
        for length in start..start + graph.len() {
            assert_eq!(renamed(model.get(..length).unwrap()), None, "{length}");
        }
        assert_eq!(renamed(b"no model"), None);
        assert_eq!(renamed(&[0xff; 64]), None);
        assert_eq!(renamed(&[]), None);
    }
}
