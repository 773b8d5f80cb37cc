//! Loads a checkpoint's files into arrays: each rank reads its own byte ranges, exactly those that
//! the description gives it.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use jackalope_kernels::{QuantFormat, QuantMode};
use jackalope_mlx::{self as mlx, Array, Dtype};
use jackalope_spec::{ElementType, QuantizationMode};

use crate::checkpoint::{Checkpoint, Pieces, TensorEntry};
use crate::error::LoadError;
use crate::split::Cut;

/// Progress of loading.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoadProgress {
    /// Number of bytes that this rank has read.
    pub done_bytes: u64,
    /// Number of bytes that this rank reads in all.
    pub total_bytes: u64,
}

/// Counters of a finished load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LoadCounters {
    /// Type that the model is computed in.
    pub(crate) dtype: Dtype,
    /// Number of bytes read from the files.
    pub(crate) bytes_read: u64,
    /// Part of `bytes_read` that other ranks read too.
    pub(crate) replicated_bytes: u64,
    /// Size in bytes of the arrays created.
    pub(crate) weights_bytes: u64,
}

/// The part of a tensor that a rank needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part<'a> {
    /// Everything; every rank needs it.
    Whole,
    /// These rows (of the first dimension).
    Rows(&'a Cut),
    /// These columns (of the last dimension).
    Columns(&'a Cut),
}

/// A checkpoint being loaded.
pub(crate) struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    dtype: Dtype,
    counters: Cell<LoadCounters>,
    total_bytes: u64,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
    /// Weights that have not been moved into huge pages yet.
    settling: RefCell<Vec<Range<*const u8>>>,
    settling_bytes: Cell<usize>,
}

/// Number of bytes after whose reading weights are moved into huge pages.
const SETTLE_BYTES: usize = 256 << 20;

impl<'a> Loader<'a> {
    /// Starts loading `total_bytes` of a checkpoint.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        total_bytes: u64,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Loader<'a> {
        let dtype = float_dtype(&checkpoint.layout.element_type);
        Loader {
            checkpoint,
            dtype,
            counters: Cell::new(LoadCounters {
                dtype,
                bytes_read: 0,
                replicated_bytes: 0,
                weights_bytes: 0,
            }),
            total_bytes,
            progress: RefCell::new(progress),
            settling: RefCell::default(),
            settling_bytes: Cell::new(0),
        }
    }

    /// Returns the root of the checkpoint's tensor names.
    pub(crate) fn root(&'a self) -> Weights<'a> {
        Weights { loader: self, path: String::new() }
    }

    /// Ends loading and returns the counters.
    ///
    /// # Panics
    /// Panics if the layers have not read exactly what the description gives this rank.
    pub(crate) fn finish(&self) -> LoadCounters {
        self.settle();
        let counters = self.counters.get();
        assert_eq!(
            counters.bytes_read, self.total_bytes,
            "the layers read what the description says"
        );
        let (done_bytes, total_bytes) = (counters.bytes_read, self.total_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes });
        counters
    }

    /// Creates an array for weights.
    fn array(&self, shape: &[usize], dtype: Dtype, fill: impl FnOnce(&mut [u8])) -> Array {
        Array::from_bytes(&dims(shape), dtype, |target| {
            fill(target);
            self.settling.borrow_mut().push(target.as_ptr_range());
            self.settling_bytes.set(self.settling_bytes.get() + target.len());
        })
    }

    /// Moves the weights read since the last call into huge pages: on the CPU a step reads all
    /// weights, and small pages cost up to half of the memory bandwidth.
    fn settle(&self) {
        let read = self.settling.take();
        if mlx::device() == mlx::Device::Cpu {
            jackalope_kernels::move_into_huge_pages(read);
        }
        self.settling_bytes.set(0);
    }

    fn count(&self, array: &Array, part: Part<'_>) {
        let is_replicated = match part {
            Part::Whole => true,
            Part::Rows(cut) | Part::Columns(cut) => cut.is_shared,
        };
        let (mut counters, read) = (self.counters.get(), array.nbytes() as u64);
        counters.bytes_read += read;
        counters.replicated_bytes += if is_replicated { read } else { 0 };
        counters.weights_bytes += read;
        self.counters.set(counters);
        if SETTLE_BYTES <= self.settling_bytes.get() {
            self.settle();
        }
        let (done_bytes, total_bytes) = (counters.bytes_read, self.total_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes });
    }
}

/// A path in the names of a checkpoint's tensors.
#[derive(Clone)]
pub(crate) struct Weights<'a> {
    loader: &'a Loader<'a>,
    path: String,
}

impl<'a> Weights<'a> {
    /// Returns the path below this one.
    pub(crate) fn at(&self, name: impl std::fmt::Display) -> Weights<'a> {
        let path =
            if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Weights { loader: self.loader, path }
    }

    /// Returns the type that the model is computed in.
    pub(crate) fn dtype(&self) -> Dtype {
        self.loader.dtype
    }

    /// Returns the quantisation of the matrix at this path; `None` if it is not quantised.
    pub(crate) fn format(&self) -> Option<QuantFormat> {
        let format = self.loader.checkpoint.layout.format(&self.path)?;
        let mode = match format.mode {
            QuantizationMode::Affine => QuantMode::Affine,
            QuantizationMode::Mxfp4 => QuantMode::Mxfp4,
            QuantizationMode::Nvfp4 => QuantMode::Nvfp4,
            QuantizationMode::Mxfp8 => QuantMode::Mxfp8,
        };
        Some(QuantFormat { mode, bits: format.bits, group_size: format.group_size })
    }

    /// Loads a tensor of floats, converted to the type of the model.
    pub(crate) fn floats(
        &self,
        name: &str,
        shape: &[usize],
        part: Part<'_>,
    ) -> Result<Array, LoadError> {
        let entry = self.entry(name, shape);
        let stored = float_dtype(&entry.header.element_type);
        let array = self.read(entry, stored, part)?;
        if stored == self.loader.dtype {
            return Ok(array);
        }
        let array = array.astype(self.loader.dtype);
        array.eval()?;
        Ok(array)
    }

    /// Loads a tensor of packed codes or of their eight-bit scales.
    pub(crate) fn integers(
        &self,
        name: &str,
        shape: &[usize],
        part: Part<'_>,
        dtype: Dtype,
    ) -> Result<Array, LoadError> {
        self.read(self.entry(name, shape), dtype, part)
    }

    /// Returns a tensor, which opening the checkpoint has found to be of this shape.
    ///
    /// # Panics
    /// Panics if the description lists no such tensor.
    fn entry(&self, name: &str, shape: &[usize]) -> &'a TensorEntry {
        let tensor = self.at(name).path;
        let entry = self.loader.checkpoint.tensors.find(&tensor);
        let entry = entry.unwrap_or_else(|| panic!("the description lacks {tensor}"));
        assert_eq!(entry.header.shape, shape, "the description has another shape of {tensor}");
        entry
    }

    /// Copies a part of a tensor from its file directly into MLX's memory.
    fn read(&self, entry: &TensorEntry, dtype: Dtype, part: Part<'_>) -> Result<Array, LoadError> {
        let mut shape = entry.header.shape.clone();
        let width_bytes = shape.last().copied().unwrap_or(1) * dtype.size_bytes();
        let mut result = Ok(());
        let array = match part {
            Part::Whole => self.loader.array(&shape, dtype, |target| {
                result = entry.file.read_at(entry.offset, target);
            }),
            Part::Rows(cut) => {
                shape[0] = cut.len();
                let row_bytes = entry.num_bytes / (cut.full as u64).max(1);
                let offset = entry.offset + cut.own.start as u64 * row_bytes;
                self.loader.array(&shape, dtype, |target| {
                    result = entry.file.read_at(offset, target);
                })
            }
            Part::Columns(cut) => {
                let last = shape.len() - 1;
                shape[last] = cut.len();
                let part_bytes = cut.len() * dtype.size_bytes();
                let start_bytes = (cut.own.start * dtype.size_bytes()) as u64;
                self.loader.array(&shape, dtype, |target| {
                    result = read_columns(entry, target, start_bytes, (part_bytes, width_bytes));
                })
            }
        };
        result?;
        self.loader.count(&array, part);
        Ok(array)
    }
}

/// Reads `part_bytes` of each row of `width_bytes`, from `start_bytes` on.
fn read_columns(
    entry: &TensorEntry,
    target: &mut [u8],
    start_bytes: u64,
    (part_bytes, width_bytes): (usize, usize),
) -> Result<(), LoadError> {
    if part_bytes == width_bytes {
        return entry.file.read_at(entry.offset, target);
    }
    let offset = entry.offset + start_bytes;
    let stride_bytes = width_bytes as u64;
    entry.file.read(Pieces { offset, piece_bytes: part_bytes, stride_bytes }, target)
}

/// Returns the type of a tensor that opening the checkpoint has found to hold floats.
fn float_dtype(element_type: &ElementType) -> Dtype {
    match element_type {
        ElementType::F32 => Dtype::F32,
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::Bf16,
        other => panic!("the description expects floats, found {other:?}"),
    }
}

/// Converts a shape to MLX's integer type.
fn dims(shape: &[usize]) -> Vec<i32> {
    let dims = shape.iter().map(|&dim| i32::try_from(dim));
    dims.collect::<Result<_, _>>().expect("config.json bounds every dimension")
}
