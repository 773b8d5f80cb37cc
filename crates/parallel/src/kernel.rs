//! Connects MLX's buffers to our kernels: weight matrices in the form in which they are stored, and
//! access to a custom primitive's inputs in the order in which they were passed.

use std::cell::{Cell, OnceCell};
use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use jackalope_kernels as kernels;
use jackalope_kernels::{
    Elements, ElementsMut, Product, QuantFormat, QuantMode, Scales, TermColumns, Threads,
};
use jackalope_mlx::{
    self as mlx, Array, ArrayType, Buffer, BufferMut, Dtype, Pinned, custom, dim, quant,
};
use jackalope_protocol::KernelTimings;
use jackalope_spec::HeadRows;

use jackalope_protocol::split::Cut;
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// A weight matrix `[output, input]`, or this rank's part of it.
#[derive(Debug)]
pub struct WeightMatrix {
    stored: Stored,
    format: Option<QuantFormat>,
    output: usize,
    input: usize,
    /// Created when our kernels first need it.
    kernel: OnceCell<Arc<MatrixKernel>>,
}

#[derive(Debug)]
enum Stored {
    Plain(PlainMatrix),
    Quantized(quant::Quantized),
}

impl Stored {
    /// Returns the tensors, whose first dimension are the rows.
    fn tensors(&self) -> Vec<Array> {
        match self {
            Stored::Plain(plain) => vec![plain.weight.clone()],
            Stored::Quantized(quant::Quantized { words, scales, biases, .. }) => {
                [words, scales].into_iter().chain(biases).cloned().collect()
            }
        }
    }

    /// Returns a matrix of the same form with other [`Stored::tensors`].
    fn with(&self, tensors: Vec<Array>) -> Stored {
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().expect("a tensor of each kind");
        match self {
            Stored::Plain(_) => Stored::Plain(PlainMatrix::new(next())),
            Stored::Quantized(matrix) => Stored::Quantized(quant::Quantized {
                words: next(),
                scales: next(),
                biases: matrix.biases.as_ref().map(|_| next()),
                format: matrix.format,
            }),
        }
    }
}

/// A matrix that is not quantised.
#[derive(Debug)]
struct PlainMatrix {
    weight: Array, // [output, input]
    /// The same elements as `[input, output]`, when MLX first needs them: the graphs of later steps then have no
    /// node for this.
    transposed: OnceCell<Array>,
}

impl PlainMatrix {
    fn new(weight: Array) -> PlainMatrix {
        PlainMatrix { weight, transposed: OnceCell::new() }
    }

    fn transposed(&self) -> &Array {
        self.transposed.get_or_init(|| {
            let transposed = self.weight.transpose(&[1, 0]);
            transposed.eval().expect("a view of a loaded weight needs no computing");
            transposed
        })
    }
}

/// The dimension in which a matrix is divided.
#[derive(Clone, Copy, Debug)]
pub enum MatrixCut<'a> {
    /// A range of rows.
    Output {
        /// Rows.
        output: &'a Cut,
        /// Number of columns.
        input: usize,
    },
    /// A range of columns.
    Input {
        /// Number of rows.
        output: usize,
        /// Columns.
        input: &'a Cut,
    },
    /// Some of the rows.
    Rows {
        /// Rows.
        rows: &'a OwnRows,
        /// Number of columns.
        input: usize,
    },
    /// Some of several matrices `[output, input]`, the first of three dimensions.
    Stack {
        /// Matrices.
        count: &'a Cut,
        /// Number of rows of each.
        output: usize,
        /// Number of columns of each.
        input: usize,
    },
}

/// The rows of a stored matrix that a rank has of one projection.
#[derive(Clone, Debug)]
pub struct OwnRows {
    /// Number of rows of the stored matrix.
    pub full: usize,
    /// Rows of the stored matrix that this rank has.
    pub ranges: Vec<Range<usize>>,
    /// Whether another rank has the same rows.
    pub is_shared: bool,
}

impl OwnRows {
    /// Returns the rows of the heads of a cut.
    pub fn new(rows: &HeadRows, heads: &Cut) -> OwnRows {
        let ranges = rows.of_heads(heads.own.clone());
        OwnRows { full: rows.num_rows, ranges, is_shared: heads.is_shared }
    }

    /// Returns the number of rows of this rank.
    pub fn num_rows(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Returns these rows of a tensor with as many.
    pub fn part(&self) -> Part<'_> {
        self.part_of_axis(0)
    }

    fn part_of_axis(&self, axis: usize) -> Part<'_> {
        Part::Ranges { axis, ranges: &self.ranges, is_shared: self.is_shared }
    }
}

impl MatrixCut<'_> {
    fn full(&self) -> (usize, usize) {
        match *self {
            MatrixCut::Output { output, input } => (output.full, input),
            MatrixCut::Input { output, input } => (output, input.full),
            MatrixCut::Rows { rows, input } => (rows.full, input),
            MatrixCut::Stack { output, input, .. } => (output, input),
        }
    }

    fn own(&self) -> (usize, usize) {
        match *self {
            MatrixCut::Output { output, input } => (output.len(), input),
            MatrixCut::Input { output, input } => (output, input.len()),
            MatrixCut::Rows { rows, input } => (rows.num_rows(), input),
            MatrixCut::Stack { count, output, input } => (count.len() * output, input),
        }
    }

    /// Returns this rank's part of a tensor with `ndim` dimensions, of which the last two are those
    /// of the matrix. `columns` is the division of the last axis, if the input is divided.
    fn part<'c>(&'c self, ndim: usize, columns: Option<&'c Cut>) -> Part<'c> {
        match self {
            MatrixCut::Output { output, .. } => Part::Axis { axis: ndim - 2, cut: output },
            MatrixCut::Input { input, .. } => {
                Part::Axis { axis: ndim - 1, cut: columns.unwrap_or(input) }
            }
            MatrixCut::Rows { rows, .. } => rows.part_of_axis(ndim - 2),
            MatrixCut::Stack { count, .. } => Part::Axis { axis: ndim - 3, cut: count },
        }
    }

    /// Returns the division of the input, in other units, if it is divided.
    fn columns(&self, columns: impl Fn(&Cut) -> Cut) -> Option<Cut> {
        match self {
            MatrixCut::Input { input, .. } => Some(columns(input)),
            MatrixCut::Output { .. } | MatrixCut::Rows { .. } | MatrixCut::Stack { .. } => None,
        }
    }
}

/// A part of each head's rows of a matrix, which has the rows of the first head, then those of the
/// second, and so on.
#[derive(Clone, Copy, Debug)]
pub struct HeadPart {
    /// Number of heads.
    pub num_heads: usize,
    /// Number of rows of a head.
    pub stored_rows: usize,
    /// First row of the part in a head's rows.
    pub first: usize,
    /// Number of rows of the part.
    pub rows: usize,
}

impl HeadPart {
    /// Returns the part of a tensor of the matrix, `[heads, rows, …]`.
    fn of(self, tensor: &Array) -> Array {
        let heads = tensor.reshape(&[dim(self.num_heads), dim(self.stored_rows), tensor.dim(-1)]);
        if self.rows == self.stored_rows {
            return heads;
        }
        heads.slice_axis(1, dim(self.first), dim(self.first + self.rows))
    }
}

impl WeightMatrix {
    /// Reads `weight`, and `scales` and `biases` if there are any. Several matrices become one, with
    /// the rows of the first, then those of the second, and so on.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn load(w: &Weights<'_>, cut: MatrixCut<'_>) -> Result<WeightMatrix, LoadError> {
        let count = match cut {
            MatrixCut::Stack { count, .. } => Some(count.full),
            _ => None,
        };
        WeightMatrix::load_stack(w, count, cut)
    }

    /// Reads the matrices of `num_experts` experts, which are divided in the same way. They become
    /// one matrix, with the rows of the first expert, then those of the second, and so on.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn load_experts(
        w: &Weights<'_>,
        num_experts: usize,
        cut: MatrixCut<'_>,
    ) -> Result<WeightMatrix, LoadError> {
        WeightMatrix::load_stack(w, Some(num_experts), cut)
    }

    fn load_stack(
        w: &Weights<'_>,
        num_experts: Option<usize>,
        cut: MatrixCut<'_>,
    ) -> Result<WeightMatrix, LoadError> {
        let (output, input) = cut.full();
        let format = w.format();
        let shape = |width: usize| Vec::from_iter(num_experts.into_iter().chain([output, width]));
        let stored = match format {
            None => {
                let shape = shape(input);
                let weight = w.floats("weight", &shape, cut.part(shape.len(), None))?;
                Stored::Plain(PlainMatrix::new(weight))
            }
            Some(format) => Stored::Quantized(load_quantized(w, shape, cut, format)?),
        };
        let (output, input) = cut.own();
        let output = match cut {
            MatrixCut::Stack { .. } => output,
            _ => num_experts.unwrap_or(1) * output,
        };
        Ok(WeightMatrix { stored, format, output, input, kernel: OnceCell::new() })
    }

    /// Whether both matrices have elements, in the same form, and as many columns.
    pub(crate) fn is_like(&self, other: &WeightMatrix) -> bool {
        let types = |it: &WeightMatrix| match &it.stored {
            Stored::Plain(plain) => [plain.weight.dtype(); 2],
            Stored::Quantized(matrix) => [matrix.words.dtype(), matrix.scales.dtype()],
        };
        !self.is_empty()
            && !other.is_empty()
            && (self.input, self.format) == (other.input, other.format)
            && types(self) == types(other)
    }

    /// Fuses matrices that are alike: the result has the rows of the first, then those of the second, and so on. The
    /// given matrices become views of it.
    ///
    /// # Errors
    /// Fails if MLX cannot copy the elements.
    pub(crate) fn fuse<const N: usize>(
        mut matrices: [&mut WeightMatrix; N],
    ) -> Result<WeightMatrix, jackalope_mlx::Error> {
        let tensors: Vec<Vec<Array>> = matrices.iter().map(|it| it.stored.tensors()).collect();
        let fused = (0..tensors[0].len()).map(|kind| {
            let rows: Vec<&Array> = tensors.iter().map(|it| &it[kind]).collect();
            let all = Array::concatenate(&rows, 0);
            all.eval().map(|()| all)
        });
        let fused = fused.collect::<Result<Vec<Array>, _>>()?;
        let mut end = 0;
        for matrix in &mut matrices {
            let (first, kernel) = (dim(end), OnceCell::new());
            end += matrix.output;
            let views = fused.iter().map(|tensor| {
                let view = tensor.slice_axis(0, first, dim(end));
                view.eval().map(|()| view)
            });
            let views = views.collect::<Result<Vec<Array>, _>>()?;
            let stored = matrix.stored.with(views);
            **matrix = WeightMatrix { stored, kernel, ..**matrix };
        }
        let WeightMatrix { ref stored, format, input, .. } = *matrices[0];
        let (stored, kernel) = (stored.with(fused), OnceCell::new());
        Ok(WeightMatrix { stored, format, output: end, input, kernel })
    }

    /// Returns the number of rows of this rank's part.
    pub fn output(&self) -> usize {
        self.output
    }

    /// Whether this rank holds nothing of the matrix.
    pub fn is_empty(&self) -> bool {
        self.output == 0 || self.input == 0
    }

    /// Returns the matrix for use inside a primitive.
    pub fn kernel(&self) -> Arc<MatrixKernel> {
        let kernel = || {
            let WeightMatrix { format, output, input, .. } = *self;
            let values = match &self.stored {
                Stored::Plain(PlainMatrix { weight, .. }) => Values::Plain(pinned(weight)),
                Stored::Quantized(weight) => Values::Quantized {
                    words: pinned(&weight.words),
                    scales: pinned(&weight.scales),
                    biases: weight.biases.as_ref().map(pinned),
                },
            };
            Arc::new(MatrixKernel { values, format, output, input })
        };
        Arc::clone(self.kernel.get_or_init(kernel))
    }

    /// Computes `x · selfᵀ` with MLX, for `x` `[tokens, input]`.
    pub fn stock_product(&self, x: &Array) -> Array {
        match &self.stored {
            Stored::Plain(plain) => x.matmul(plain.transposed()),
            Stored::Quantized(weight) => quant::quantized_matmul(x, weight, true),
        }
    }

    /// Computes the product of each row of `x` `[rows, 1, input]` with the matrix of its expert, with
    /// MLX. The result is `[rows, 1, output]`.
    pub fn stock_gathered(&self, x: &Array, gather: quant::Gather<'_>) -> Array {
        match &self.stored {
            Stored::Plain(PlainMatrix { weight, .. }) if mlx::device() == mlx::Device::Cpu => {
                // On the CPU, MLX has this operation for f32 only.
                let [wide_x, wide_weight] = [x, weight].map(|it| it.astype(Dtype::F32));
                quant::gather_matmul(&wide_x, &wide_weight, gather).astype(x.dtype())
            }
            Stored::Plain(PlainMatrix { weight, .. }) => quant::gather_matmul(x, weight, gather),
            Stored::Quantized(weight) => quant::gather_quantized_matmul(x, weight, gather),
        }
    }

    /// Returns a part of each head's rows as a matrix of its own.
    ///
    /// # Errors
    /// Fails if MLX cannot compute the rows.
    pub fn part_of_heads(&self, part: HeadPart) -> Result<WeightMatrix, jackalope_mlx::Error> {
        let rows = self.stored.tensors().into_iter().map(|tensor| {
            let heads = part.of(&tensor);
            let rows = heads.reshape(&[dim(part.num_heads * part.rows), heads.dim(2)]).contiguous();
            rows.eval().map(|()| rows)
        });
        let stored = self.stored.with(rows.collect::<Result<_, _>>()?);
        let (output, kernel) = (part.num_heads * part.rows, OnceCell::new());
        Ok(WeightMatrix { stored, format: self.format, output, input: self.input, kernel })
    }

    /// Computes the product of each head's rows of `x` `[heads, tokens, …]` with its part, or with the
    /// transpose of that, with MLX.
    pub fn stock_heads_product(&self, x: &Array, part: HeadPart, is_transposed: bool) -> Array {
        match &self.stored {
            Stored::Plain(PlainMatrix { weight, .. }) if is_transposed => {
                x.matmul(&part.of(weight).transpose(&[0, 2, 1]))
            }
            Stored::Plain(PlainMatrix { weight, .. }) => x.matmul(&part.of(weight)),
            Stored::Quantized(weight) => {
                let heads = quant::Quantized {
                    words: part.of(&weight.words),
                    scales: part.of(&weight.scales),
                    biases: weight.biases.as_ref().map(|biases| part.of(biases)),
                    format: weight.format,
                };
                quant::quantized_matmul(x, &heads, is_transposed)
            }
        }
    }

    /// Returns the elements in `dtype`, computed.
    ///
    /// # Errors
    /// Fails if MLX cannot compute them.
    pub fn plain(&self, dtype: Dtype) -> Result<Array, jackalope_mlx::Error> {
        let plain = match &self.stored {
            Stored::Plain(PlainMatrix { weight, .. }) if weight.dtype() == dtype => weight.clone(),
            Stored::Plain(PlainMatrix { weight, .. }) => weight.astype(dtype),
            Stored::Quantized(weight) => quant::dequantize(weight, dtype),
        };
        plain.eval()?;
        Ok(plain)
    }

    /// Returns the rows of `ids`, all of which must be on this rank, in `dtype`, with MLX.
    pub fn stock_rows(&self, ids: &Array, dtype: Dtype) -> Array {
        // Of several matrices the rows follow one another.
        let rows = |tensor: &Array| match tensor.ndim() {
            2 => tensor.take(ids, 0),
            _ => tensor.reshape(&[-1, tensor.dim(-1)]).take(ids, 0),
        };
        match &self.stored {
            Stored::Plain(PlainMatrix { weight, .. }) => rows(weight),
            Stored::Quantized(weight) => {
                let rows = quant::Quantized {
                    words: rows(&weight.words),
                    scales: rows(&weight.scales),
                    biases: weight.biases.as_ref().map(rows),
                    format: weight.format,
                };
                quant::dequantize(&rows, dtype)
            }
        }
    }
}

fn load_quantized(
    w: &Weights<'_>,
    shape: impl Fn(usize) -> Vec<usize>,
    cut: MatrixCut<'_>,
    format: QuantFormat,
) -> Result<quant::Quantized, LoadError> {
    let (_, input) = cut.full();
    let words_shape = shape(format.words_per_row(input));
    let scales_shape = shape(format.groups_per_row(input));
    let ndim = words_shape.len();
    let words_cut = cut.columns(|columns| columns.scaled(format.bits as usize).divided(32));
    let scales_cut = cut.columns(|columns| columns.divided(format.group_size as usize));
    let words_part = cut.part(ndim, words_cut.as_ref());
    let scales_part = cut.part(ndim, scales_cut.as_ref());
    let words = w.integers("weight", &words_shape, words_part, Dtype::U32)?;
    let (scales, biases) = if format.mode == QuantMode::Affine {
        let scales = w.floats("scales", &scales_shape, scales_part)?;
        (scales, Some(w.floats("biases", &scales_shape, scales_part)?))
    } else {
        (w.integers("scales", &scales_shape, scales_part, Dtype::U8)?, None)
    };
    Ok(quant::Quantized { words, scales, biases, format: stock_format(format) })
}

fn stock_format(format: QuantFormat) -> quant::Format {
    let mode = match format.mode {
        QuantMode::Affine => quant::Mode::Affine,
        QuantMode::Mxfp4 => quant::Mode::Mxfp4,
        QuantMode::Nvfp4 => quant::Mode::Nvfp4,
        QuantMode::Mxfp8 => quant::Mode::Mxfp8,
    };
    let small = |number: u32| i32::try_from(number).expect("a supported format is small");
    quant::Format { mode, bits: small(format.bits), group_size: small(format.group_size) }
}

/// Returns the memory of a weight.
pub fn pinned(weight: &Array) -> Pinned {
    weight.pin().expect("a loaded weight needs no computing")
}

/// Returns the floats of a weight.
///
/// # Panics
/// Panics if the weight is not of a float type.
#[track_caller]
pub fn elements(weight: &Pinned) -> Elements<'_> {
    match weight.dtype() {
        Dtype::F32 => Elements::F32(weight.values::<f32>()),
        Dtype::F16 => Elements::F16(weight.values::<f16>()),
        Dtype::Bf16 => Elements::Bf16(weight.values::<bf16>()),
        other => panic!("a kernel expects floats, found {other:?}"),
    }
}

/// A weight matrix for the kernels.
#[derive(Debug)]
pub struct MatrixKernel {
    values: Values,
    format: Option<QuantFormat>,
    /// Number of rows.
    pub output: usize,
    /// Number of columns.
    pub input: usize,
}

#[derive(Debug)]
enum Values {
    Plain(Pinned),
    Quantized { words: Pinned, scales: Pinned, biases: Option<Pinned> },
}

impl MatrixKernel {
    /// Computes `out = x · selfᵀ`.
    pub fn multiply(&self, x: Elements<'_>, out: ElementsMut<'_>, threads: &Threads) {
        kernels::matmul_each(x, vec![Product { matrix: self.view(), out }], threads);
    }

    /// Copies the rows of `ids` to `out`. Row 0 of the matrix belongs to `first_id`; rows held by
    /// other ranks become zeros.
    pub fn gather(&self, ids: &[u32], first_id: u32, out: ElementsMut<'_>, threads: &Threads) {
        match self.view() {
            kernels::Matrix::Dense(table) => {
                kernels::embedding(ids, &table, first_id, out, threads);
            }
            kernels::Matrix::Quantized(table) => {
                kernels::quantized_embedding(ids, &table, first_id, out, threads);
            }
        }
    }

    /// Returns the matrix in the form that the kernels take.
    pub fn view(&self) -> kernels::Matrix<'_> {
        let MatrixKernel { output: out, input, .. } = *self;
        match (&self.values, self.format) {
            (Values::Quantized { words, scales, biases }, Some(format)) => {
                let scales = match format.mode {
                    QuantMode::Affine => Scales::Elements(elements(scales)),
                    _ => Scales::Bytes(scales.values::<u8>()),
                };
                let (words, biases) = (words.values::<u32>(), biases.as_ref().map(elements));
                let matrix = kernels::QuantMatrix { format, out, input, words, scales, biases };
                kernels::Matrix::Quantized(matrix)
            }
            (Values::Plain(values), _) => {
                let values = elements(values);
                kernels::Matrix::Dense(kernels::DenseMatrix { out, input, values })
            }
            (Values::Quantized { .. }, None) => unreachable!("quantised matrices have a format"),
        }
    }
}

/// A rank's part of a product that is summed over the ranks.
#[derive(Debug)]
pub struct DivisibleKernel {
    /// This rank's columns.
    pub matrix: Arc<MatrixKernel>,
    /// Terms of the sum over the ranks.
    pub terms: TermColumns,
}

impl DivisibleKernel {
    /// Computes `x · matrixᵀ`. With exact sums, the sum over the ranks has the same bits as the result
    /// of a single rank.
    pub fn multiply(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        let MatrixKernel { input, output, .. } = *self.matrix;
        let mut sums = vec![0.0; x.len() / input * output];
        kernels::divisible_matmul(x, &self.matrix.view(), self.terms, &mut sums, threads);
        sums
    }
}

/// The inputs of a primitive, consumed one after the other.
#[derive(Debug)]
pub struct Inputs<'a> {
    buffers: &'a [Buffer<'a>],
    taken: Cell<usize>,
}

impl<'a> Inputs<'a> {
    /// Returns the next input.
    #[track_caller]
    pub fn next(&self) -> &'a Buffer<'a> {
        let idx = self.taken.replace(self.taken.get() + 1);
        &self.buffers[idx]
    }

    /// Returns the next input as floats.
    ///
    /// # Panics
    /// Panics if there is none left, or if its elements are not floats.
    #[track_caller]
    pub fn elements(&self) -> Elements<'a> {
        let buffer = self.next();
        match buffer.dtype() {
            Dtype::F32 => Elements::F32(buffer.values::<f32>()),
            Dtype::F16 => Elements::F16(buffer.values::<f16>()),
            Dtype::Bf16 => Elements::Bf16(buffer.values::<bf16>()),
            other => panic!("a kernel expects floats, found {other:?}"),
        }
    }
}

/// The outputs of a primitive, consumed one after the other.
#[derive(Debug)]
pub struct Outputs<'a, 'b> {
    buffers: std::slice::IterMut<'a, BufferMut<'b>>,
}

impl<'a, 'b> Outputs<'a, 'b> {
    /// Returns the next output.
    #[track_caller]
    pub fn next_elements(&mut self) -> ElementsMut<'a> {
        elements_mut(self.next_buffer())
    }

    /// Returns the next output as f64.
    #[track_caller]
    pub fn next_sums(&mut self) -> &'a mut [f64] {
        self.next_buffer().values_mut::<f64>()
    }

    /// Returns the next output as f32.
    #[track_caller]
    pub fn next_values(&mut self) -> &'a mut [f32] {
        self.next_buffer().values_mut::<f32>()
    }

    #[track_caller]
    fn next_buffer(&mut self) -> &'a mut BufferMut<'b> {
        self.buffers.next().expect("a primitive writes the outputs it declared")
    }
}

/// Creates a graph node that runs `work` on its inputs and its outputs of floats.
#[track_caller]
pub fn primitives(
    name: &'static str,
    inputs: &[&Array],
    outputs: &[ArrayType],
    threads: &Arc<Threads>,
    work: impl Fn(&Inputs<'_>, &mut Outputs<'_, '_>, &Threads) + Send + 'static,
) -> Vec<Array> {
    let threads = Arc::clone(threads);
    custom(inputs, outputs, name, move |inputs, outputs| {
        let _span = threads.span(KernelTimings::PRIMITIVES, 0);
        let inputs = Inputs { buffers: inputs, taken: Cell::new(0) };
        work(&inputs, &mut Outputs { buffers: outputs.iter_mut() }, &threads);
    })
}

/// Like [`primitives`], with one output.
#[track_caller]
pub fn primitive(
    name: &'static str,
    inputs: &[&Array],
    out: ArrayType,
    threads: &Arc<Threads>,
    work: impl Fn(&Inputs<'_>, ElementsMut<'_>, &Threads) + Send + 'static,
) -> Array {
    let work = move |inputs: &Inputs<'_>, outputs: &mut Outputs<'_, '_>, threads: &Threads| {
        work(inputs, outputs.next_elements(), threads);
    };
    primitives(name, inputs, &[out], threads, work).remove(0)
}

#[track_caller]
fn elements_mut<'a>(buffer: &'a mut BufferMut<'_>) -> ElementsMut<'a> {
    match buffer.dtype() {
        Dtype::F32 => ElementsMut::F32(buffer.values_mut::<f32>()),
        Dtype::F16 => ElementsMut::F16(buffer.values_mut::<f16>()),
        Dtype::Bf16 => ElementsMut::Bf16(buffer.values_mut::<bf16>()),
        other => panic!("a kernel writes floats, found {other:?}"),
    }
}

/// Returns zeros `[tokens, width]` that are computed after `x` `[tokens, …]`.
///
/// MLX orders a graph by its dependencies alone. So the input of a collective must depend on the
/// previous collective even on a rank that has no part of a layer; otherwise the two could be
/// swapped.
pub fn zeros_after(x: &Array, width: usize, dtype: Dtype) -> Array {
    let column = x.slice_axis(1, 0, 1);
    column.less(&column).astype(dtype).broadcast_to(&[x.dim(0), dim(width)])
}

#[cfg(test)]
mod tests {
    use jackalope_mlx::memory;

    use super::*;

    const INPUT: usize = 1024;

    /// A matrix of so many rows, all different.
    fn plain(rows: usize, dtype: Dtype) -> Array {
        let elements = Array::arange(dim(rows * INPUT), Dtype::F32) * 0.37;
        let weight = elements.sin().reshape(&[dim(rows), dim(INPUT)]).astype(dtype);
        weight.eval().unwrap();
        weight
    }

    fn matrix(rows: usize, format: Option<QuantFormat>) -> WeightMatrix {
        let weight = plain(rows, Dtype::F32);
        let stored = match format {
            None => Stored::Plain(PlainMatrix::new(weight)),
            Some(format) => Stored::Quantized(quant::quantize(&weight, stock_format(format))),
        };
        stored.tensors().iter().for_each(|it| it.eval().unwrap());
        WeightMatrix { stored, format, output: rows, input: INPUT, kernel: OnceCell::new() }
    }

    fn affine(bits: u32) -> QuantFormat {
        QuantFormat { mode: QuantMode::Affine, bits, group_size: 64 }
    }

    fn product(matrix: &WeightMatrix, x: &Array) -> Vec<f32> {
        matrix.stock_product(x).to_vec().unwrap()
    }

    #[test]
    fn a_fused_matrix_computes_all_products_and_the_parts_are_views_of_it() {
        let mxfp4 = QuantFormat { mode: QuantMode::Mxfp4, bits: 4, group_size: 32 };
        let x = &plain(1, Dtype::F32);
        for format in [None, Some(affine(4)), Some(affine(8)), Some(mxfp4)] {
            let mut parts = [512, 128, 256].map(|rows| matrix(rows, format));
            let expected = parts.each_ref().map(|part| product(part, x));
            let before = memory::active_bytes();
            let fused = WeightMatrix::fuse(parts.each_mut()).unwrap();
            let own: usize = fused.stored.tensors().iter().map(Array::nbytes).sum();
            let added = memory::active_bytes().saturating_sub(before);
            assert!(added < own / 4, "{added} bytes more for {own}");
            assert_eq!(product(&fused, x), expected.concat(), "{format:?}");
            assert_eq!(fused.output(), 896);
            assert_eq!(parts.each_ref().map(|part| product(part, x)), expected, "{format:?}");
        }
    }

    #[test]
    fn only_matrices_with_elements_in_the_same_form_are_alike() {
        let four = matrix(64, Some(affine(4)));
        let empty = WeightMatrix { output: 0, ..matrix(64, None) };
        let half = WeightMatrix {
            stored: Stored::Plain(PlainMatrix::new(plain(64, Dtype::F16))),
            ..matrix(64, None)
        };
        assert!(four.is_like(&matrix(32, Some(affine(4)))));
        assert!(matrix(64, None).is_like(&matrix(32, None)));
        for (one, other) in [
            (&four, &matrix(64, Some(affine(8)))),
            (&four, &matrix(64, None)),
            (&empty, &matrix(64, None)),
            (&half, &matrix(64, None)),
        ] {
            assert!(!one.is_like(other) && !other.is_like(one), "{one:?} {other:?}");
        }
    }
}
