//! The KV cache of a generator: plain memory of ours, shown to ONNX Runtime row by row.
//!
//! The graph reads its past from and writes its present to the same buffer, so nothing is copied a step. The safe
//! binding would copy a borrowed tensor, hence the raw calls; this is the only file that may hold `unsafe`.
#![expect(unsafe_code, reason = "tensors over borrowed memory need the C interface; see the safety comments")]

use std::ptr::{self, NonNull};

use ort::{
    AsPointer as _,
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session},
    sys,
    value::{DynValue, Value},
};

use super::RuntimeError;

/// Dimensions of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvShape {
    pub(super) layers: usize,
    pub(super) rows: usize,
    pub(super) heads: usize,
    pub(super) window: usize,
    pub(super) width: usize,
}

impl KvShape {
    /// Elements of one row of one buffer: `[heads, window, width]`.
    fn row(&self) -> usize {
        self.heads * self.window * self.width
    }
}

/// Key and value buffers `[rows, heads, window, width]`, two a layer.
///
/// The memory is asked for zeroed and untouched pages cost nothing, so a wide window is paid for only when used.
pub(super) struct KvCache {
    shape: KvShape,
    /// Key of layer 0, value of layer 0, key of layer 1, … Never resized: bindings point into it.
    buffers: Vec<Box<[f32]>>,
    memory: MemoryInfo<'static>,
}

impl KvCache {
    pub(super) fn new(shape: KvShape) -> Result<Self, RuntimeError> {
        let length = shape.rows * shape.row();
        Ok(Self {
            shape,
            buffers: (0..shape.layers * 2).map(|_| vec![0.0; length].into_boxed_slice()).collect(),
            memory: MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default)?,
        })
    }

    /// A binding whose past and present are rows `start..start + count` of every buffer.
    ///
    /// The binding must not outlive this cache; `Decoder` keeps both and drops bindings first.
    pub(super) fn bind(&mut self, session: &Session, start: usize, count: usize) -> Result<IoBinding, RuntimeError> {
        let mut binding = session.create_binding()?;
        for layer in 0..self.shape.layers {
            for (half, name) in ["key", "value"].into_iter().enumerate() {
                let past = self.view(layer * 2 + half, start, count)?;
                binding.bind_input(format!("past.{layer}.{name}"), &past)?;
                binding.bind_output(format!("present.{layer}.{name}"), past)?;
            }
        }
        Ok(binding)
    }

    /// Copies the first `length` tokens of row `from` over row `to`, in every buffer and head.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) {
        let KvShape { heads, window, width, .. } = self.shape;
        let row = self.shape.row();
        for buffer in &mut self.buffers {
            for head in 0..heads {
                let source = from * row + head * window * width;
                buffer.copy_within(source..source + length * width, to * row + head * window * width);
            }
        }
    }

    fn view(&mut self, buffer: usize, start: usize, count: usize) -> Result<DynValue, RuntimeError> {
        let KvShape { heads, window, width, .. } = self.shape;
        let row = self.shape.row();
        let slice = self
            .buffers
            .get_mut(buffer)
            .and_then(|buffer| buffer.get_mut(start * row..(start + count) * row))
            .ok_or_else(|| RuntimeError::Shape("rows outside the KV cache".into()))?;
        let dimensions = [count, heads, window, width].map(|dimension| i64::try_from(dimension).unwrap_or(i64::MAX));
        let mut value: *mut sys::OrtValue = ptr::null_mut();
        // SAFETY: the slice is live, writable and as long as the dimensions say; ONNX Runtime only records the
        // pointer. The box behind it is never resized or moved, and `Decoder` drops every binding before the cache.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                self.memory.ptr(),
                slice.as_mut_ptr().cast(),
                size_of_val(slice),
                dimensions.as_ptr(),
                dimensions.len(),
                sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
                &raw mut value,
            )
        };
        // SAFETY: `status` is what the call above returned, and is consumed once.
        unsafe { ort::Error::result_from_status(status) }?;
        let value = NonNull::new(value).ok_or_else(|| RuntimeError::Shape("no tensor was made".into()))?;
        // SAFETY: `value` is a fresh tensor that nobody else owns. It borrows its data, so the allocator given here
        // is never asked to free any.
        Ok(unsafe { Value::from_ptr(value, Some(&Allocator::default())) })
    }
}
