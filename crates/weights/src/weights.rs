//! Loads a checkpoint's files into arrays: each rank reads its own byte ranges, exactly those that
//! the description gives it.

mod fused;
mod settling;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use jackalope_mlx::{self as mlx, Array, Dtype};
use jackalope_simd::{QuantFormat, QuantMode};
use jackalope_spec::{
    ElementType, FusedSource, HeadRows, NumberEdit, QuantizationMode, StackedModule,
};

use crate::checkpoint::{Checkpoint, NUM_READERS, Pieces, TensorEntry, in_parallel};
use crate::error::LoadError;
use crate::weights::fused::FusedPart;
use crate::weights::settling::Settler;
use jackalope_protocol::split::Cut;

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
pub struct LoadCounters {
    /// Type that the model is computed in.
    pub dtype: Dtype,
    /// Number of bytes read, of matrices that are converted as they are afterwards.
    pub bytes_read: u64,
    /// Part of `bytes_read` that other ranks read too.
    pub replicated_bytes: u64,
    /// Size in bytes of the arrays created.
    pub weights_bytes: u64,
}

/// The part of a tensor that a rank needs.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Everything; every rank needs it.
    Whole,
    /// A part of one dimension.
    Axis {
        /// Index of the dimension.
        axis: usize,
        /// The rank's part of it.
        cut: &'a Cut,
    },
    /// Several ranges of one dimension, which follow one another in memory.
    Ranges {
        /// Index of the dimension.
        axis: usize,
        /// The rank's ranges of it, in the order in which they lie in memory.
        ranges: &'a [Range<usize>],
        /// Whether other ranks read them too.
        is_shared: bool,
    },
}

impl<'a> Part<'a> {
    /// Returns the part with these rows (of the first dimension).
    pub fn rows(cut: &'a Cut) -> Part<'a> {
        Part::Axis { axis: 0, cut }
    }

    /// Returns the first row of the part; 0 if rows are not divided.
    fn first_row(self) -> usize {
        match self {
            Part::Axis { axis: 0, cut } => cut.own.start,
            Part::Ranges { axis: 0, ranges, .. } => ranges.first().map_or(0, |range| range.start),
            Part::Whole | Part::Axis { .. } | Part::Ranges { .. } => 0,
        }
    }

    /// Returns the shape of the part of a tensor of `shape`.
    fn shape(self, shape: &[usize]) -> Vec<usize> {
        let mut shape = shape.to_vec();
        match self {
            Part::Whole => {}
            Part::Axis { axis, cut } => shape[axis] = cut.len(),
            Part::Ranges { axis, ranges, .. } => shape[axis] = ranges.iter().map(Range::len).sum(),
        }
        shape
    }

    /// Returns the bytes of the part in a tensor of `shape` that begins at `offset` in its file, in
    /// the order in which they follow one another in memory.
    fn pieces(self, shape: &[usize], dtype: Dtype, offset: u64) -> Vec<Pieces> {
        let bytes = |dims: &[usize]| dims.iter().product::<usize>() * dtype.size_bytes();
        let element_bytes = |axis: usize| bytes(&shape[axis + 1..]);
        match self {
            Part::Whole => vec![Pieces::run(offset, bytes(shape))],
            Part::Axis { axis, cut } => {
                let offset = offset + (cut.own.start * element_bytes(axis)) as u64;
                if axis == 0 || cut.is_whole() {
                    return vec![Pieces::run(offset, bytes(&self.shape(shape)))];
                }
                let stride_bytes = (shape[axis] * element_bytes(axis)) as u64;
                let piece_bytes = cut.len() * element_bytes(axis);
                vec![Pieces { offset, piece_bytes, stride_bytes }]
            }
            Part::Ranges { axis, ranges, .. } => {
                let outer = (0..shape[..axis].iter().product()).map(|idx: usize| idx * shape[axis]);
                let each = outer.flat_map(|first| ranges.iter().map(move |range| (first, range)));
                let piece = |(first, range): (usize, &Range<usize>)| {
                    let start = (first + range.start) * element_bytes(axis);
                    Pieces::run(offset + start as u64, range.len() * element_bytes(axis))
                };
                each.map(piece).collect()
            }
        }
    }
}

/// A checkpoint being loaded.
pub struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    dtype: Dtype,
    counters: Cell<LoadCounters>,
    total_bytes: u64,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
    /// `None` on a GPU, which does not read weights through the processor's pages.
    settler: RefCell<Option<Settler>>,
}

impl fmt::Debug for Loader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader").field("dir", &self.checkpoint.dir()).finish_non_exhaustive()
    }
}

impl<'a> Loader<'a> {
    /// Starts loading `total_bytes` of a checkpoint.
    pub fn new(
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
            settler: RefCell::new((mlx::device() == mlx::Device::Cpu).then(Settler::start)),
        }
    }

    /// Returns the root of the checkpoint's tensor names.
    pub fn root(&'a self) -> Weights<'a> {
        Weights { loader: self, path: String::new(), stacked: None, fused: None, view: None }
    }

    /// Ends loading and returns the counters.
    ///
    /// # Panics
    /// Panics if the layers have not read exactly what the description gives this rank.
    pub fn finish(&self) -> LoadCounters {
        if let Some(settler) = self.settler.take() {
            settler.finish();
        }
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
            if self.settler.borrow().is_some() {
                jackalope_simd::advise_huge_pages(target);
            }
            fill(target);
            if let Some(settler) = &mut *self.settler.borrow_mut() {
                settler.add(target);
            }
        })
    }

    /// Counts the bytes of a part of a tensor that was read.
    fn count(&self, num_bytes: u64, part: Part<'_>) {
        let is_replicated = match part {
            Part::Whole => true,
            Part::Axis { cut, .. } => cut.is_shared,
            Part::Ranges { is_shared, .. } => is_shared,
        };
        let mut counters = self.counters.get();
        counters.bytes_read += num_bytes;
        counters.replicated_bytes += if is_replicated { num_bytes } else { 0 };
        counters.weights_bytes += num_bytes;
        self.counters.set(counters);
        let (done_bytes, total_bytes) = (counters.bytes_read, self.total_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes });
    }
}

/// A path in the names of a checkpoint's tensors.
#[derive(Clone, Debug)]
pub struct Weights<'a> {
    loader: &'a Loader<'a>,
    path: String,
    /// Set if each tensor is stored in parts, at these paths, which are stacked along a new first
    /// dimension.
    stacked: Option<Vec<String>>,
    /// Set if each tensor lies in one with other tensors.
    fused: Option<FusedSource>,
    /// Set if only some rows of each tensor belong here.
    view: Option<HeadRows>,
}

impl<'a> Weights<'a> {
    /// Returns the numbers of tokens of the checkpoint, if it has any.
    pub fn token_map(&self) -> Option<Arc<[u32]>> {
        self.loader.checkpoint.token_map.clone()
    }

    /// Returns the path below this one.
    pub fn at(&self, name: impl fmt::Display) -> Weights<'a> {
        let path =
            if self.path.is_empty() { name.to_string() } else { format!("{}.{name}", self.path) };
        Weights { loader: self.loader, path, stacked: None, fused: None, view: None }
    }

    /// Returns the path of a module that owns only some rows of its tensors.
    pub fn rows(&self, rows: HeadRows) -> Weights<'a> {
        Weights { view: Some(rows.clone()), ..self.at(rows.module) }
    }

    /// Returns the path of a projection of `num_experts` experts, in whichever way the checkpoint
    /// has it. If it has a matrix for each expert, they are stacked.
    pub fn experts(&self, module: &StackedModule, num_experts: usize) -> Weights<'a> {
        let StackedModule { stacked, each: [before, after], fused } = module;
        let has = |name: &str| self.loader.checkpoint.tensors.find(name).is_some();
        let is_stacked = has(&format!("{stacked}.weight"));
        let fused = fused.iter().find(|source| !is_stacked && has(&source.name("weight")));
        let each = (!is_stacked && fused.is_none())
            .then(|| (0..num_experts).map(|idx| format!("{before}{idx}{after}")).collect());
        let path = stacked.clone();
        Weights { loader: self.loader, path, stacked: each, fused: fused.cloned(), view: None }
    }

    /// Whether the checkpoint has the tensor `name` below this path.
    pub fn has(&self, name: &str) -> bool {
        self.loader.checkpoint.tensors.find(&format!("{}.{name}", self.path)).is_some()
    }

    /// Returns the type that the model is computed in.
    pub fn dtype(&self) -> Dtype {
        self.loader.dtype
    }

    /// Returns the quantisation of the matrix at this path; `None` if it is not quantised.
    pub fn format(&self) -> Option<QuantFormat> {
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
    ///
    /// # Errors
    /// Fails if a file cannot be read or its content differs from what is expected, or memory runs out.
    ///
    /// # Panics
    /// Panics if the description has no such tensor, or another shape or type of it.
    pub fn floats(&self, name: &str, shape: &[usize], part: Part<'_>) -> Result<Array, LoadError> {
        self.floats_as(self.loader.dtype, name, shape, part)
    }

    /// Loads a tensor of floats, converted to `dtype`.
    ///
    /// # Errors
    /// Fails if a file cannot be read or its content differs from what is expected, or memory runs out.
    ///
    /// # Panics
    /// Panics if the description has no such tensor, or another shape or type of it.
    pub fn floats_as(
        &self,
        dtype: Dtype,
        name: &str,
        shape: &[usize],
        part: Part<'_>,
    ) -> Result<Array, LoadError> {
        let entries = self.entries(name, shape);
        let stored = float_dtype(&entries[0].header.element_type);
        let mut array = self.read(&entries, shape, stored, part)?;
        let (layout, full_name) = (&self.loader.checkpoint.layout, format!("{}.{name}", self.path));
        let num_bytes = match layout.is_counted_converted(&full_name) {
            true => array.size() as u64 * layout.element_type.size_bytes(),
            false => array.nbytes() as u64,
        };
        self.loader.count(num_bytes, part);
        let edit = layout.edit(&full_name);
        if stored == dtype && edit.is_none() {
            return Ok(array);
        }
        if let Some(edit) = edit {
            let row = self.view.as_ref().map_or(part.first_row(), |view| view.start);
            array = edited(&array, edit, row);
        }
        let array = array.astype(dtype);
        array.eval()?;
        Ok(array)
    }

    /// Loads a part of the vector of `len` floats at this very path, converted to `dtype`.
    ///
    /// # Errors
    /// Fails if a file cannot be read or its content differs from what is expected, or memory runs out.
    ///
    /// # Panics
    /// Panics if the description has no such tensor, or another shape or type of it.
    pub fn vector_as(&self, dtype: Dtype, len: usize, part: Part<'_>) -> Result<Array, LoadError> {
        let (path, name) = self.path.rsplit_once('.').unwrap_or(("", &self.path));
        let parent = Weights {
            loader: self.loader,
            path: path.to_owned(),
            stacked: None,
            fused: None,
            view: None,
        };
        parent.floats_as(dtype, name, &[len], part)
    }

    /// Loads a single number.
    ///
    /// # Errors
    /// Fails if a file cannot be read or its content differs from what is expected, or memory runs out.
    ///
    /// # Panics
    /// Panics if the description has no such tensor, or another shape or type of it.
    pub fn number(&self, name: &str) -> Result<f32, LoadError> {
        let number = self.floats_as(Dtype::F32, name, &[], Part::Whole)?;
        Ok(number.item::<f32>()?)
    }

    /// Loads a tensor of packed codes or of their eight-bit scales.
    ///
    /// # Errors
    /// Fails if a file cannot be read or its content differs from what is expected, or memory runs out.
    ///
    /// # Panics
    /// Panics if the description has no such tensor, or another shape or type of it.
    pub fn integers(
        &self,
        name: &str,
        shape: &[usize],
        part: Part<'_>,
        dtype: Dtype,
    ) -> Result<Array, LoadError> {
        let array = self.read(&self.entries(name, shape), shape, dtype, part)?;
        self.loader.count(array.nbytes() as u64, part);
        Ok(array)
    }

    /// Loads the tensor of indices at this very path, i32, all of which are less than `bound`.
    ///
    /// # Errors
    /// Fails if a file cannot be read or its content differs from what is expected, memory runs out, or an
    /// index is out of bounds.
    ///
    /// # Panics
    /// Panics if the description has no such tensor, or another shape or type of it.
    pub fn indices(&self, shape: &[usize], bound: usize) -> Result<Array, LoadError> {
        let (path, name) = self.path.rsplit_once('.').unwrap_or(("", &self.path));
        let (stacked, fused, view) = (None, None, None);
        let parent = Weights { loader: self.loader, path: path.to_owned(), stacked, fused, view };
        let array = parent.integers(name, shape, Part::Whole, Dtype::I32)?;
        let is_valid = |index: &i32| usize::try_from(*index).is_ok_and(|index| index < bound);
        if let Some(found) = array.to_vec::<i32>()?.iter().find(|index| !is_valid(index)) {
            let path = parent.entries(name, shape)[0].path().to_owned();
            let reason = format!("{} has the index {found}, not one below {bound}", self.path);
            return Err(LoadError::Content { path, reason });
        }
        Ok(array)
    }

    /// Returns a tensor, or the parts of one that is stacked. Opening the checkpoint has found them
    /// to be of this shape.
    ///
    /// # Panics
    /// Panics if the description lists no such tensor, or another shape or type of it.
    fn entries(&self, name: &str, shape: &[usize]) -> Vec<&'a TensorEntry> {
        if let Some(source) = &self.fused {
            let tensor = source.name(name);
            let entry = self.loader.checkpoint.tensors.find(&tensor);
            return vec![entry.unwrap_or_else(|| panic!("the description lacks {tensor}"))];
        }
        let (paths, shape) = match &self.stacked {
            Some(paths) => (&paths[..], shape[1..].to_vec()),
            None => (std::slice::from_ref(&self.path), self.stored_shape(shape)),
        };
        let entries = paths.iter().map(|path| {
            let tensor = format!("{path}.{name}");
            let entry = self.loader.checkpoint.tensors.find(&tensor);
            let entry = entry.unwrap_or_else(|| panic!("the description lacks {tensor}"));
            let num_elements = |shape: &[usize]| shape.iter().product::<usize>();
            let is_same = num_elements(&entry.header.shape) == num_elements(&shape);
            assert!(is_same, "the description has another shape of {tensor}: {shape:?}");
            entry
        });
        let entries: Vec<&TensorEntry> = entries.collect();
        let element_type = &entries[0].header.element_type;
        let is_same = entries.iter().all(|entry| entry.header.element_type == *element_type);
        assert!(is_same, "the description has several types of {}.{name}", self.path);
        entries
    }

    /// Returns the shape of the tensor whose rows of this path have `shape`.
    fn stored_shape(&self, shape: &[usize]) -> Vec<usize> {
        let mut stored = shape.to_vec();
        if let Some(view) = &self.view {
            stored[0] = view.num_rows;
        }
        stored
    }

    /// Copies a part of a tensor of `shape` from its files directly into MLX's memory.
    fn read(
        &self,
        entries: &[&TensorEntry],
        shape: &[usize],
        dtype: Dtype,
        part: Part<'_>,
    ) -> Result<Array, LoadError> {
        let mut result = Ok(());
        let array = self.loader.array(&part.shape(shape), dtype, |target| {
            let tensor = TensorShape { shape, dtype };
            result = if let Some(source) = &self.fused {
                read_fused(entries[0], tensor, part, source, target)
            } else if self.stacked.is_some() {
                read_stacked(entries, tensor, part, target)
            } else if let Some(view) = &self.view {
                read_rows(entries[0], view, part, target)
            } else {
                read_part(entries[0], tensor, part, target)
            };
        });
        result?;
        Ok(array)
    }
}

/// Returns the numbers of an original as a conversion has them, rounded as there. All rows have the factors
/// of the stored `row`.
fn edited(stored: &Array, edit: &NumberEdit, row: usize) -> Array {
    let scalar = |value: f32| Array::scalar_of(value, stored.dtype());
    match edit {
        NumberEdit::AddOne => stored.add(&scalar(1.0)),
        NumberEdit::Multiply(_) => {
            let factors = edit.factors(row).iter().map(|factor| scalar(*factor));
            let product = factors.reduce(|product, factor| product.mul(&factor));
            product.map_or(stored.clone(), |product| stored.mul(&product))
        }
    }
}

/// Dimensions and elements of a tensor, as the layers see it.
#[derive(Clone, Copy, Debug)]
struct TensorShape<'a> {
    shape: &'a [usize],
    dtype: Dtype,
}

fn read_part(
    entry: &TensorEntry,
    tensor: TensorShape<'_>,
    part: Part<'_>,
    target: &mut [u8],
) -> Result<(), LoadError> {
    read_pieces(entry, part.pieces(tensor.shape, tensor.dtype, entry.offset), target)
}

/// Reads pieces one after another.
fn read_pieces(
    entry: &TensorEntry,
    mut pieces: Vec<Pieces>,
    target: &mut [u8],
) -> Result<(), LoadError> {
    let last = pieces.pop();
    let mut rest = target;
    for pieces in pieces {
        let (own, others) = rest.split_at_mut(pieces.piece_bytes);
        entry.file.read(pieces, own)?;
        rest = others;
    }
    last.map_or(Ok(()), |pieces| entry.file.read(pieces, rest))
}

/// Reads a part of the rows of a view.
///
/// # Panics
/// Panics if another dimension than the rows is divided.
fn read_rows(
    entry: &TensorEntry,
    view: &HeadRows,
    part: Part<'_>,
    target: &mut [u8],
) -> Result<(), LoadError> {
    let Part::Axis { axis: 0, cut } = part else { panic!("views are divided by their rows") };
    let row_bytes = target.len() / cut.len().max(1);
    let mut rest = target;
    for range in view.rows(cut.own.clone()) {
        let (own, others) = rest.split_at_mut(range.len() * row_bytes);
        entry.file.read_at(entry.offset + (range.start * row_bytes) as u64, own)?;
        rest = others;
    }
    Ok(())
}

/// Reads a part of the tensor that consists of `entries`, stacked along a new first dimension.
fn read_stacked(
    entries: &[&TensorEntry],
    tensor: TensorShape<'_>,
    part: Part<'_>,
    target: &mut [u8],
) -> Result<(), LoadError> {
    let (entries, part) = match part {
        Part::Axis { axis: 0, cut } => (&entries[cut.own.clone()], Part::Whole),
        Part::Axis { axis, cut } => (entries, Part::Axis { axis: axis - 1, cut }),
        Part::Ranges { axis: 0, .. } => panic!("experts are not read in ranges"),
        Part::Ranges { axis, ranges, is_shared } => {
            (entries, Part::Ranges { axis: axis - 1, ranges, is_shared })
        }
        Part::Whole => (entries, Part::Whole),
    };
    let part_bytes = target.len() / entries.len().max(1);
    if part_bytes == 0 {
        return Ok(());
    }
    let tensor = TensorShape { shape: &tensor.shape[1..], ..tensor };
    let jobs = entries.iter().zip(target.chunks_exact_mut(part_bytes));
    in_parallel(jobs, NUM_READERS, |(entry, target)| read_part(entry, tensor, part, target))
}

/// Reads a part of a projection of all experts, `[experts, rows, …]`, that lies in a tensor with
/// others.
///
/// # Panics
/// Panics if the experts are divided, or rows in ranges.
fn read_fused(
    entry: &TensorEntry,
    TensorShape { shape, dtype }: TensorShape<'_>,
    part: Part<'_>,
    source: &FusedSource,
    target: &mut [u8],
) -> Result<(), LoadError> {
    let (num_rows, num_columns) = (shape[1], shape[2..].iter().product());
    let (rows, columns) = match part {
        Part::Whole => (0..num_rows, 0..num_columns),
        Part::Axis { axis: 1, cut } => (cut.own.clone(), 0..num_columns),
        Part::Axis { axis: 2, cut } => (0..num_rows, cut.own.clone()),
        Part::Axis { axis, .. } | Part::Ranges { axis, .. } => {
            panic!("axis {axis} of experts is not divided in this way")
        }
    };
    let (is_matrix, element_bytes) = (shape.len() == 3, dtype.size_bytes());
    let part = FusedPart { source, is_matrix, num_rows, num_columns, element_bytes, rows, columns };
    part.read(entry, target)
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
