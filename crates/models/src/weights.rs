//! Loads a checkpoint's files into arrays: each rank reads its own byte ranges, and every tensor of
//! the checkpoint must be used.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;

use jackalope_mlx::{self as mlx, Array, Dtype};

use crate::checkpoint::{Checkpoint, ElementType, Pieces, QuantFormat, TensorEntry};
use crate::error::{Dims, LoadError};
use crate::split::Cut;

/// Progress of loading.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoadProgress {
    /// Size in bytes of the tensors processed so far, whether this rank needed all of them or only
    /// parts.
    pub done_bytes: u64,
    /// Size in bytes of all tensors.
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
    taken: RefCell<BTreeSet<String>>,
    counters: Cell<LoadCounters>,
    done_bytes: Cell<u64>,
    total_bytes: u64,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
    /// Weights that have not been moved into huge pages yet.
    settling: RefCell<Vec<Range<*const u8>>>,
    settling_bytes: Cell<usize>,
}

/// Number of bytes after whose reading weights are moved into huge pages.
const SETTLE_BYTES: usize = 256 << 20;

impl<'a> Loader<'a> {
    /// Starts loading. `norm` names a tensor that is never quantised; the whole model is computed
    /// in its type.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        norm: &str,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Result<Loader<'a>, LoadError> {
        let dtype = match checkpoint.tensors.find(norm) {
            Some(entry) => float_dtype(norm, entry)?,
            None => {
                let (tensor, dir) = (norm.to_owned(), checkpoint.dir().to_path_buf());
                return Err(LoadError::MissingTensor { tensor, expected: Dims(vec![]), dir });
            }
        };
        Ok(Loader {
            checkpoint,
            dtype,
            taken: RefCell::default(),
            counters: Cell::new(LoadCounters {
                dtype,
                bytes_read: 0,
                replicated_bytes: 0,
                weights_bytes: 0,
            }),
            done_bytes: Cell::new(0),
            total_bytes: checkpoint.tensors.num_bytes(),
            progress: RefCell::new(progress),
            settling: RefCell::default(),
            settling_bytes: Cell::new(0),
        })
    }

    /// Returns the root of the checkpoint's tensor names.
    pub(crate) fn root(&'a self) -> Weights<'a> {
        Weights { loader: self, path: String::new() }
    }

    /// Whether a layer used this tensor.
    pub(crate) fn has_taken(&self, name: &str) -> bool {
        self.taken.borrow().contains(name)
    }

    /// Ends loading and returns the counters.
    ///
    /// # Errors
    /// Fails if a tensor was not used and `is_unneeded` returns false for it.
    pub(crate) fn finish(
        &self,
        is_unneeded: impl Fn(&str) -> bool,
    ) -> Result<LoadCounters, LoadError> {
        let taken = self.taken.borrow();
        let tensors: Vec<String> = self
            .checkpoint
            .tensors
            .names()
            .filter(|name| !taken.contains(*name) && !is_unneeded(name))
            .map(str::to_owned)
            .collect();
        if !tensors.is_empty() {
            let dir = self.checkpoint.dir().to_path_buf();
            let architecture = self.checkpoint.model_type().to_owned();
            return Err(LoadError::LeftoverTensors { dir, architecture, tensors });
        }
        self.settle();
        let total_bytes = self.total_bytes;
        (self.progress.borrow_mut())(LoadProgress { done_bytes: total_bytes, total_bytes });
        Ok(self.counters.get())
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

    fn count(&self, entry: &TensorEntry, array: &Array, read: u64, part: Part<'_>) {
        let is_replicated = match part {
            Part::Whole => true,
            Part::Rows(cut) | Part::Columns(cut) => cut.is_shared,
        };
        let mut counters = self.counters.get();
        counters.bytes_read += read;
        counters.replicated_bytes += if is_replicated { read } else { 0 };
        counters.weights_bytes += array.nbytes() as u64;
        self.counters.set(counters);
        let done_bytes = self.done_bytes.get() + entry.num_bytes;
        self.done_bytes.set(done_bytes);
        if SETTLE_BYTES <= self.settling_bytes.get() {
            self.settle();
        }
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes: self.total_bytes });
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

    /// Returns the quantisation of the layer at this path; `None` if it is not quantised.
    pub(crate) fn quantization(&self, input: usize) -> Result<Option<QuantFormat>, LoadError> {
        self.loader.checkpoint.quantization(&self.path, input)
    }

    /// Counts every tensor below this path as used: another rank loads these tensors and checks
    /// them.
    pub(crate) fn leave_to_others(&self) {
        let loader = self.loader;
        let prefix = format!("{}.", self.path);
        let mut done_bytes = loader.done_bytes.get();
        for (name, entry) in loader.checkpoint.tensors.below(&prefix) {
            loader.taken.borrow_mut().insert(name.to_owned());
            done_bytes += entry.num_bytes;
        }
        loader.done_bytes.set(done_bytes);
    }

    /// Whether the checkpoint has this tensor.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.loader.checkpoint.tensors.find(&self.at(name).path).is_some()
    }

    /// Loads a tensor of floats, converted to the type of the model.
    pub(crate) fn floats(
        &self,
        name: &str,
        shape: &[usize],
        part: Part<'_>,
    ) -> Result<Array, LoadError> {
        let (name, entry) = self.take(name, shape)?;
        let stored = float_dtype(&name, entry)?;
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
        expected: Dtype,
    ) -> Result<Array, LoadError> {
        let (tensor, entry) = self.take(name, shape)?;
        match (entry.element_type, expected) {
            (ElementType::U32, Dtype::U32) | (ElementType::U8, Dtype::U8) => {
                self.read(entry, expected, part)
            }
            _ => Err(LoadError::ElementType {
                path: entry.path().to_path_buf(),
                tensor,
                found: entry.element_type.name(),
                expected: if expected == Dtype::U8 { "U8" } else { "U32" },
            }),
        }
    }

    /// Finds a tensor, checks its shape, and records that it was used.
    fn take(&self, name: &str, shape: &[usize]) -> Result<(String, &'a TensorEntry), LoadError> {
        let tensor = self.at(name).path;
        let expected = Dims(shape.to_vec());
        let checkpoint = self.loader.checkpoint;
        let Some(entry) = checkpoint.tensors.find(&tensor) else {
            let dir = checkpoint.dir().to_path_buf();
            return Err(LoadError::MissingTensor { tensor, expected, dir });
        };
        if entry.shape != shape {
            let (path, found) = (entry.path().to_path_buf(), Dims(entry.shape.clone()));
            return Err(LoadError::Shape { path, tensor, found, expected });
        }
        self.loader.taken.borrow_mut().insert(tensor.clone());
        Ok((tensor, entry))
    }

    /// Copies a part of a tensor from its file directly into MLX's memory.
    fn read(&self, entry: &TensorEntry, dtype: Dtype, part: Part<'_>) -> Result<Array, LoadError> {
        let mut shape = entry.shape.clone();
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
        self.loader.count(entry, &array, array.nbytes() as u64, part);
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

fn float_dtype(tensor: &str, entry: &TensorEntry) -> Result<Dtype, LoadError> {
    match entry.element_type {
        ElementType::F32 => Ok(Dtype::F32),
        ElementType::F16 => Ok(Dtype::F16),
        ElementType::Bf16 => Ok(Dtype::Bf16),
        ElementType::U32 | ElementType::U8 | ElementType::Other(_) => Err(LoadError::ElementType {
            path: entry.path().to_path_buf(),
            tensor: tensor.to_owned(),
            found: entry.element_type.name(),
            expected: "F32, F16 or BF16",
        }),
    }
}

/// Converts a shape to MLX's integer type.
fn dims(shape: &[usize]) -> Vec<i32> {
    let dims = shape.iter().map(|&dim| i32::try_from(dim));
    dims.collect::<Result<_, _>>().expect("config.json bounds every dimension")
}
