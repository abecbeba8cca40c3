//! A graph's nodes by what they read and make, for whoever puts operators of ours in the place of others before a session
//! opens it.

use std::collections::HashMap;

use super::wire::{Field, Fields, Value, bytes, field, number, put_bytes, with_operators};

/// The domain of ONNX Runtime's own operators.
pub(super) const MICROSOFT: &[u8] = b"com.microsoft";

/// That of ONNX's.
pub(super) const ONNX: &[u8] = b"";

/// `TensorProto.DataType`.
pub(super) const FLOAT: u64 = 1;
pub(super) const UINT8: u64 = 2;
pub(super) const INT8: u64 = 3;
pub(super) const INT64: u64 = 7;

/// -1, the last axis, as a whole number is written.
pub(super) const LAST: u64 = u64::MAX;

/// A value's name.
pub(super) type Name<'a> = &'a [u8];

/// The model with a changed graph that may use the operators of `domain`; none where the graph stays, holds others, or
/// cannot be read.
pub(super) fn with_graph(
    model: &[u8],
    domain: &str,
    change: impl Fn(&Graph<'_>) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(model.len() + model.len() / 8);
    let mut found = false;
    for field in Fields(model) {
        let field = field?;
        match field.value {
            Value::Bytes(graph) if field.number == field::MODEL_GRAPH => {
                put_bytes(&mut out, field::MODEL_GRAPH, &change(&Graph::read(graph)?)?);
                found = true;
            }
            _ => out.extend_from_slice(field.whole),
        }
    }
    found.then(|| with_operators(out, domain))
}

pub(super) struct Node<'a> {
    pub(super) kind: &'a [u8],
    pub(super) domain: &'a [u8],
    pub(super) inputs: Vec<Name<'a>>,
    pub(super) outputs: Vec<Name<'a>>,
    /// Each as it is written, by its name.
    pub(super) attributes: HashMap<&'a [u8], &'a [u8]>,
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

    pub(super) fn input(&self, place: usize) -> Name<'a> {
        self.inputs.get(place).copied().unwrap_or_default()
    }

    /// Whether it holds graphs, whose nodes may read any value of the one around them.
    fn holds_graphs(&self) -> bool {
        let graphs = [field::ATTRIBUTE_GRAPH, field::ATTRIBUTE_GRAPHS];
        self.attributes
            .values()
            .flat_map(|attribute| Fields(attribute))
            .flatten()
            .any(|field| graphs.contains(&field.number))
    }

    pub(super) fn number(&self, attribute: &str) -> Option<u64> {
        number(self.attributes.get(attribute.as_bytes())?, field::ATTRIBUTE_NUMBER)
    }
}

/// A constant's element type and dimensions.
pub(super) struct Constant {
    pub(super) kind: u64,
    pub(super) shape: Vec<usize>,
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

pub(super) struct Graph<'a> {
    /// As they are written, with the place in `nodes` of those that are nodes.
    fields: Vec<(Field<'a>, Option<usize>)>,
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) constants: HashMap<Name<'a>, Constant>,
    /// Which node a value comes from.
    makers: HashMap<Name<'a>, usize>,
    pub(super) outputs: Vec<Name<'a>>,
}

impl<'a> Graph<'a> {
    pub(super) fn read(graph: &'a [u8]) -> Option<Self> {
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
                        let node = Node::read(message).filter(|node| !node.holds_graphs())?;
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

    /// The graph with nodes in the place of others, by index; what stands for one is written where it stood.
    pub(super) fn with(&self, replaced: &HashMap<usize, Option<Vec<u8>>>) -> Vec<u8> {
        let mut out = Vec::new();
        for (field, place) in &self.fields {
            match place.and_then(|index| replaced.get(&index)) {
                Some(Some(node)) => put_bytes(&mut out, field::GRAPH_NODE, node),
                Some(None) => {}
                None => out.extend_from_slice(field.whole),
            }
        }
        out
    }

    /// The node that makes a value, if it is of this kind.
    pub(super) fn made(&self, name: Name<'a>, domain: &[u8], kind: &str, used: &mut Vec<usize>) -> Option<&Node<'a>> {
        let index = *self.makers.get(name)?;
        let node = self.nodes.get(index).filter(|node| node.domain == domain && node.kind == kind.as_bytes())?;
        used.push(index);
        Some(node)
    }

    pub(super) fn is_constant(&self, name: Name<'_>, kind: u64, shape: &[usize]) -> bool {
        self.constants.get(name).is_some_and(|constant| constant.kind == kind && constant.shape == shape)
    }

    pub(super) fn is_number(&self, name: Name<'_>, kind: u64) -> bool {
        self.is_constant(name, kind, &[]) || self.is_constant(name, kind, &[1])
    }
}
