//! ONNX models as what they are on the wire: fields of protocol buffers.
//!
//! Who changes a graph before a session opens it knows the few fields that matter to it and copies the others as they are.

/// Field numbers of `onnx.proto`.
pub(super) mod field {
    pub(in crate::runtime) const MODEL_GRAPH: u64 = 7;
    pub(in crate::runtime) const MODEL_OPERATORS: u64 = 8;
    pub(in crate::runtime) const GRAPH_NODE: u64 = 1;
    pub(in crate::runtime) const GRAPH_INITIALIZER: u64 = 5;
    pub(in crate::runtime) const GRAPH_OUTPUT: u64 = 12;
    pub(in crate::runtime) const NODE_INPUT: u64 = 1;
    pub(in crate::runtime) const NODE_OUTPUT: u64 = 2;
    pub(in crate::runtime) const NODE_NAME: u64 = 3;
    pub(in crate::runtime) const NODE_KIND: u64 = 4;
    pub(in crate::runtime) const NODE_ATTRIBUTE: u64 = 5;
    pub(in crate::runtime) const NODE_DOMAIN: u64 = 7;
    pub(in crate::runtime) const ATTRIBUTE_NAME: u64 = 1;
    pub(in crate::runtime) const ATTRIBUTE_REAL: u64 = 2;
    pub(in crate::runtime) const ATTRIBUTE_NUMBER: u64 = 3;
    pub(in crate::runtime) const ATTRIBUTE_GRAPH: u64 = 6;
    pub(in crate::runtime) const ATTRIBUTE_GRAPHS: u64 = 11;
    pub(in crate::runtime) const ATTRIBUTE_KIND: u64 = 20;
    pub(in crate::runtime) const TENSOR_DIMENSIONS: u64 = 1;
    pub(in crate::runtime) const TENSOR_KIND: u64 = 2;
    pub(in crate::runtime) const TENSOR_NAME: u64 = 8;
    pub(in crate::runtime) const VALUE_NAME: u64 = 1;
    pub(in crate::runtime) const OPERATORS_DOMAIN: u64 = 1;
    pub(in crate::runtime) const OPERATORS_VERSION: u64 = 2;
}

/// The last value of a field of bytes; nothing of it is no bytes.
pub(super) fn bytes(message: &[u8], number: u64) -> Option<&[u8]> {
    let mut found: &[u8] = &[];
    for field in Fields(message) {
        let field = field?;
        if let Value::Bytes(value) = field.value
            && field.number == number
        {
            found = value;
        }
    }
    Some(found)
}

/// The last value of a field of whole numbers; nothing of it is 0.
pub(super) fn number(message: &[u8], number: u64) -> Option<u64> {
    let mut found = 0;
    for field in Fields(message) {
        let field = field?;
        if let Value::Number(value) = field.value
            && field.number == number
        {
            found = value;
        }
    }
    Some(found)
}

/// The last value of a field of single precision; nothing of it is 0.
pub(super) fn real(message: &[u8], number: u64) -> Option<f32> {
    let mut found = 0.0;
    for field in Fields(message) {
        let field = field?;
        if let Value::Fixed(value) = field.value
            && field.number == number
        {
            found = f32::from_le_bytes(value.try_into().ok()?);
        }
    }
    Some(found)
}

#[derive(Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) number: u64,
    pub(super) value: Value<'a>,
    /// The field as it stands in its message.
    pub(super) whole: &'a [u8],
}

#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of 4 or 8 bytes.
    Fixed(&'a [u8]),
}

/// The fields of a message; `None` where it is none, and then nothing more.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Option<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Option<Field<'a>> {
        let start = self.0;
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Fixed(self.bytes(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => Value::Fixed(self.bytes(4)?),
            _ => return None,
        };
        let whole = start.get(..start.len() - self.0.len())?;
        Some(Field { number: key >> 3, value, whole })
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_number(out: &mut Vec<u8>, number: u64, value: u64) {
    put_varint(out, number << 3);
    put_varint(out, value);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// A model that may use the operators of a domain of ours.
pub(super) fn with_operators(mut model: Vec<u8>, domain: &str) -> Vec<u8> {
    let mut operators = Vec::new();
    put_bytes(&mut operators, field::OPERATORS_DOMAIN, domain.as_bytes());
    put_number(&mut operators, field::OPERATORS_VERSION, 1);
    put_bytes(&mut model, field::MODEL_OPERATORS, &operators);
    model
}
