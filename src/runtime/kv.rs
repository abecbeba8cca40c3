//! Memory: the KV cache of a generator, and how what models no longer need is given back.
//!
//! The cache is plain memory of ours, shown to ONNX Runtime row by row.
//!
//! The graph reads its past from and writes its present to the same buffer, so nothing is copied a step. The safe
//! binding would copy a borrowed tensor, hence the raw calls; so that this file holds `unsafe`.
//!
//! The buffers lie where the graph's attention computes: in the host's memory, or for a graph in half precision on a
//! GPU in that GPU's. [`KvCache::new`] is the one place that decides.
#![expect(unsafe_code, reason = "tensors over borrowed memory and the heap's settings need C; see the safety comments")]

use std::{
    fs, io,
    ops::{Deref, DerefMut, Range},
    ptr::{self, NonNull},
    slice,
    sync::Arc,
};

use ort::{
    AsPointer as _,
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session},
    sys,
    value::{DynTensor, TensorElementType, Value},
};

use super::RuntimeError;
use crate::domain::Device;

/// Bytes from which the heap maps each piece of memory by itself, and unmaps it when it is freed.
#[cfg(target_env = "gnu")]
const MAPPED_FROM: i32 = 1 << 20;

/// Bytes of a large page, the smallest there are.
const LARGE_PAGE: usize = 2 << 20;

/// Bytes that [`Room`] asks the system for at once.
const ROOM: usize = 64 << 20;

/// Bytes of a line of a cache.
const LINE: usize = 64;

/// Has glibc give large pieces of memory back to the system as soon as they are freed.
///
/// By itself it raises that size to 32 MB as such pieces are freed. What opening a graph needs for a while then stays in
/// the heap between weights that stay for good, a third of the resident set.
pub(super) fn give_back_large_pieces() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number inside the C library, under a lock of its own.
    let _: i32 = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
}

/// Gives back to the system what of the heap holds nothing any more.
///
/// Files that are read, tokenizers that are parsed and weights that are packed leave holes all over it, which glibc keeps for
/// allocations that do not come: a quarter of what the server has resident after its start with one identifier. Takes some
/// milliseconds for each 100 MB, in which other threads may wait for an allocation.
pub fn give_back_what_is_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and each part of the heap has a lock of its own.
    let _: i32 = unsafe { libc::malloc_trim(0) };
}

/// Zeroed bytes in large pages where the system has them: fewer to ask for, and fewer to find again. A page is given out
/// when it is first written to, to the thread that writes: several that fill it share that work.
pub(super) struct Pages {
    mapping: Arc<Mapping>,
    /// Which of the mapping's bytes they are; no other `Pages` has any of these.
    bytes: Range<usize>,
}

/// Memory from the system, given back at the end.
struct Mapping {
    first: NonNull<u8>,
    length: usize,
}

// SAFETY: it gives out no memory itself, and `Pages` lends theirs by their own borrow only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Pages {
    /// So many bytes, at least one.
    ///
    /// # Errors
    /// The system's, when there is no such memory.
    pub(super) fn zeroed(bytes: usize) -> io::Result<Self> {
        // Room to begin with a large page, where there is one to fill.
        let length = if bytes < LARGE_PAGE { bytes } else { bytes.saturating_add(LARGE_PAGE) };
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, which lies over nothing that is in use.
        let first = unsafe { libc::mmap(ptr::null_mut(), length, access, kind, -1, 0) };
        let mapping = NonNull::new(first.cast::<u8>())
            .filter(|_| first != libc::MAP_FAILED)
            .map(|first| Mapping { first, length })
            .ok_or_else(io::Error::last_os_error)?;
        let address = mapping.first.addr().get();
        let start = if bytes < LARGE_PAGE { 0 } else { address.next_multiple_of(LARGE_PAGE) - address };
        #[cfg(target_os = "linux")]
        {
            let within = bytes / LARGE_PAGE * LARGE_PAGE;
            // SAFETY: it is advice on a part of the mapping, which nobody has used yet.
            let _: i32 = unsafe {
                libc::madvise(mapping.first.as_ptr().wrapping_add(start).cast(), within, libc::MADV_HUGEPAGE)
            };
        }
        Ok(Self { mapping: Arc::new(mapping), bytes: start..start + bytes })
    }

    /// Cuts off the first bytes; nothing where there are not as many.
    fn cut(&mut self, bytes: usize) -> Option<Self> {
        let end = self.bytes.start.checked_add(bytes).filter(|end| *end <= self.bytes.end)?;
        let first = Self { mapping: Arc::clone(&self.mapping), bytes: self.bytes.start..end };
        self.bytes.start = end;
        Some(first)
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes lie within the mapping, which was zeroed and lives as long as `self`.
        unsafe { slice::from_raw_parts(self.mapping.first.as_ptr().wrapping_add(self.bytes.start), self.bytes.len()) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and nobody else has them.
        unsafe {
            slice::from_raw_parts_mut(self.mapping.first.as_ptr().wrapping_add(self.bytes.start), self.bytes.len())
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole of the mapping, of which nothing is borrowed any more.
        let _: i32 = unsafe { libc::munmap(self.first.as_ptr().cast(), self.length) };
    }
}

/// Memory for matrices that are read one after the other: pieces of large mappings, so that those which would not fill a
/// large page lie in such pages too.
#[derive(Default)]
pub(super) struct Room(Option<Pages>);

impl Room {
    /// So many zeroed bytes, which begin with a line of a cache.
    ///
    /// # Errors
    /// The system's, when there is no such memory.
    pub(super) fn zeroed(&mut self, bytes: usize) -> io::Result<Pages> {
        let whole = bytes.next_multiple_of(LINE);
        let mut pages = if let Some(pages) = self.0.as_mut().and_then(|rest| rest.cut(whole)) {
            pages
        } else {
            // What is left of the last one stays untouched, and so takes no memory.
            let rest = self.0.insert(Pages::zeroed(whole.max(ROOM))?);
            rest.cut(whole).ok_or(io::ErrorKind::OutOfMemory)?
        };
        pages.bytes.end = pages.bytes.start + bytes;
        Ok(pages)
    }
}

/// Where files are mapped into the process's memory.
pub(super) struct MappedFiles(Vec<Range<usize>>);

impl MappedFiles {
    /// Those of now; none where the system does not tell.
    pub(super) fn now() -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        // `start-end permissions offset device inode path`, by address; only a file has an inode.
        let mapped = maps.lines().filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let inode: u64 = fields.nth(3)?.parse().ok()?;
            let address = |text| usize::from_str_radix(text, 16).ok();
            (inode > 0).then_some(address(start)?..address(end)?)
        });
        Self(mapped.collect())
    }

    /// Takes memory out of the resident set that is a file's and will hardly be read again. What is read all the same
    /// comes from the file anew. Other memory stays as it is.
    pub(super) fn forget<T>(&self, values: &[T]) {
        let bytes = values.as_ptr_range();
        let (start, end) = (bytes.start.addr(), bytes.end.addr());
        let following = self.0.partition_point(|mapped| mapped.start <= start);
        let within =
            following.checked_sub(1).and_then(|index| self.0.get(index)).is_some_and(|mapped| end <= mapped.end);
        // SAFETY: it asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(usize::MAX);
        let skipped = start.next_multiple_of(page) - start;
        let length = (end - start).saturating_sub(skipped) / page * page;
        if within && length > 0 {
            // SAFETY: the pages lie within `values`, in a private mapping of a file that nobody has written to, so that
            // what they hold is what the file holds, before and after.
            let _: i32 = unsafe {
                let first = bytes.start.cast_mut().cast::<u8>().wrapping_add(skipped);
                libc::madvise(first.cast(), length, libc::MADV_DONTNEED)
            };
        }
    }
}

/// Dimensions of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KvShape {
    pub(super) layers: usize,
    pub(super) rows: usize,
    pub(super) heads: usize,
    pub(super) window: usize,
    pub(super) width: usize,
    pub(super) element: KvElement,
}

impl KvShape {
    /// Elements of one row of one buffer: `[heads, window, width]`.
    fn row(&self) -> usize {
        self.heads * self.window * self.width
    }

    /// Bytes of some elements.
    fn bytes(&self, elements: usize) -> usize {
        elements * self.element.bytes()
    }

    /// The dimensions of a tensor over `count` rows.
    fn dimensions(&self, count: usize) -> [i64; 4] {
        [count, self.heads, self.window, self.width].map(|dimension| i64::try_from(dimension).unwrap_or(i64::MAX))
    }
}

/// The numbers that a graph's cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KvElement {
    /// Single precision: graphs for the CPU.
    Single,
    /// Half precision: graphs for GPUs.
    Half,
}

impl KvElement {
    /// What the graph of `session` takes as its past.
    pub(super) fn of(session: &Session) -> Result<Self, RuntimeError> {
        let past = session.inputs().iter().find(|input| input.name() == "past.0.key");
        match past.and_then(|past| past.dtype().tensor_type()) {
            Some(TensorElementType::Float32) => Ok(Self::Single),
            Some(TensorElementType::Float16) => Ok(Self::Half),
            other => Err(RuntimeError::Shape(format!("the graph's past is {other:?}"))),
        }
    }

    fn bytes(self) -> usize {
        match self {
            Self::Single => 4,
            Self::Half => 2,
        }
    }

    fn tensor(self) -> TensorElementType {
        match self {
            Self::Single => TensorElementType::Float32,
            Self::Half => TensorElementType::Float16,
        }
    }
}

/// The memory behind a cache.
enum Buffers {
    /// Words of four bytes, which hold one number or two.
    Host(Vec<Box<[f32]>>),
    /// Tensors `[rows, heads, window, width]` in the memory of a GPU.
    Cuda(Vec<DynTensor>),
}

/// Key and value buffers `[rows, heads, window, width]`, two a layer.
///
/// The host's memory is asked for zeroed and untouched pages cost nothing, so a wide window is paid for only when used.
/// A GPU's memory is taken whole.
pub(super) struct KvCache {
    shape: KvShape,
    /// Key of layer 0, value of layer 0, key of layer 1, … Never resized: bindings point into it.
    buffers: Buffers,
    memory: MemoryInfo<'static>,
}

impl KvCache {
    pub(super) fn new(shape: KvShape, device: Device) -> Result<Self, RuntimeError> {
        let buffers = 0..shape.layers * 2;
        // CUDA's attention knows half precision alone. In a graph of single precision it falls to the CPU, also where
        // the rest computes on a GPU, and the cache belongs to it.
        let (buffers, place) = if device == Device::Cuda && shape.element == KvElement::Half {
            let zeroed = DynTensor::new(&Allocator::default(), shape.element.tensor(), shape.dimensions(shape.rows))?;
            let copies = buffers.map(|_| zeroed.to(AllocationDevice::CUDA, 0)).collect::<Result<_, _>>()?;
            (Buffers::Cuda(copies), AllocationDevice::CUDA)
        } else {
            // Each token starts with a word, so that tokens can be copied as words.
            if !shape.bytes(shape.width).is_multiple_of(size_of::<f32>()) {
                return Err(RuntimeError::Shape(format!("a KV cache of half precision {} wide", shape.width)));
            }
            let words = shape.bytes(shape.rows * shape.row()) / size_of::<f32>();
            let zeroed = buffers.map(|_| vec![0.0; words].into_boxed_slice()).collect();
            (Buffers::Host(zeroed), AllocationDevice::CPU)
        };
        Ok(Self { shape, buffers, memory: MemoryInfo::new(place, 0, AllocatorType::Device, MemoryType::Default)? })
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
    ///
    /// # Errors
    /// [`RuntimeError`] when a GPU fails; row `to` is then undefined.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) -> Result<(), RuntimeError> {
        let KvShape { heads, window, layers, .. } = self.shape;
        match &mut self.buffers {
            Buffers::Host(buffers) => {
                let token = self.shape.bytes(self.shape.width) / size_of::<f32>();
                let row = heads * window * token;
                for buffer in buffers {
                    for head in 0..heads {
                        let source = from * row + head * window * token;
                        buffer.copy_within(source..source + length * token, to * row + head * window * token);
                    }
                }
            }
            // Whole rows, because a copy is one piece of memory: the tokens behind `length` are never read.
            Buffers::Cuda(_) => {
                for buffer in 0..layers * 2 {
                    let (source, target) = (self.view(buffer, from, 1)?, self.view(buffer, to, 1)?);
                    source.copy_into(target)?;
                }
            }
        }
        Ok(())
    }

    /// Rows `start..start + count` of a buffer as a tensor that borrows them.
    fn view(&mut self, buffer: usize, start: usize, count: usize) -> Result<DynTensor, RuntimeError> {
        let memory = match &mut self.buffers {
            Buffers::Host(buffers) => buffers.get_mut(buffer).map(|words| words.as_mut_ptr().cast::<u8>()),
            Buffers::Cuda(buffers) => buffers.get_mut(buffer).map(|tensor| tensor.data_ptr_mut().cast::<u8>()),
        };
        let memory = memory
            .filter(|_| start + count <= self.shape.rows)
            .ok_or_else(|| RuntimeError::Shape("rows outside the KV cache".into()))?;
        let first = memory.wrapping_add(self.shape.bytes(start * self.shape.row()));
        let dimensions = self.shape.dimensions(count);
        let mut value: *mut sys::OrtValue = ptr::null_mut();
        // SAFETY: the buffer has `rows` rows in the memory that `self.memory` names, so the rows asked for are live,
        // writable and as long as the dimensions say; ONNX Runtime only records the pointer. The box or tensor behind
        // it is never resized or moved, and `Decoder` drops every binding before the cache.
        let status = unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                self.memory.ptr(),
                first.cast(),
                self.shape.bytes(count * self.shape.row()),
                dimensions.as_ptr(),
                dimensions.len(),
                self.shape.element.tensor().into(),
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
