//! The residual stream, and the blocks that read it after a norm and add to it.
//!
//! A block adds a product in f64, of which each rank computes a part. The parts add up to the same
//! bits for every split. The next reader of the stream adds this sum to the residual and rounds
//! once. With our kernels, consecutive blocks are one node of MLX's graph, with the sums over the
//! ranks inside it; with a group that sums only arrays, each block is a node.
//!
//! ```text
//!            ┌────────────── block ──────────────┐
//!   stream ──┤ finish ─ norm ─ … ─ row product ├── sum over ranks ──▶ stream
//!            └───── h ────────────────────────────────────────────▶
//! ```

use jackalope_cache::float;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use jackalope_kernels::{self as kernels, Elements, ElementsMut, Floats, Terms, Threads};
use jackalope_mlx::{Array, ArrayType, Dtype, KernelSums, Pinned, dim};
use jackalope_protocol::KernelTimings;

use super::frame::{BlockFrame, StockInput};
use super::stream_mix::{StreamMix, StreamMixKernel, beside};
use jackalope_parallel::kernel::{Outputs, elements, primitive, primitives, zeros_after};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::output::{Bias, BlockOutput};
use jackalope_parallel::{Compute, Parallel};

/// The residual stream between two blocks, `[tokens, hidden]`.
#[derive(Debug)]
pub(crate) struct Residual {
    h: Array,
    /// Streams at the ends of earlier blocks of layers, `[tokens, streams * hidden]`, if layers read
    /// them.
    earlier: Option<Array>,
    /// Weights with which the next block reads several streams, f32 `[tokens, streams]`, if the block before
    /// it has computed them.
    weights: Option<Array>,
    /// Whether what a block returns takes the place of what it reads, instead of being added to it.
    is_replaced: bool,
    /// Terms of the previous blocks that are not yet added.
    pending: Option<Pending>,
    /// Blocks that are not yet in the graph.
    blocks: Vec<BlockKernel>,
    parallel: Parallel,
}

/// Terms that are not yet added to the stream.
#[derive(Debug)]
struct Pending {
    /// Product summed over the ranks, f64 `[tokens, hidden]`.
    product: Array,
    closing: Closing,
}

/// Bias, norm and factor that are applied to a product before it is added to the stream.
#[derive(Clone, Debug)]
struct Closing {
    bias: Option<Pinned>, // [hidden]
    /// Norms of both halves of the product, whose sum takes its place.
    halves: Option<[NormKernel; 2]>,
    norm: Option<NormKernel>,
    factor: f32,
    scale: f32,
}

impl Closing {
    fn new(frame: &BlockFrame, output: &BlockOutput<'_>) -> Closing {
        Closing {
            bias: output.bias.map(Bias::pinned),
            halves: output.halves.map(|norms| norms.each_ref().map(Norm::kernel)),
            norm: frame.output.as_ref().map(Norm::kernel),
            factor: frame.factor,
            scale: frame.scale,
        }
    }

    /// Returns the type of the product that is added to a stream `[tokens, hidden]`.
    fn product_type(&self, stream: &ArrayType) -> ArrayType {
        let mut shape = stream.shape.clone();
        if self.halves.is_some() {
            shape[1] *= 2;
        }
        ArrayType { shape, dtype: Dtype::F64 }
    }

    /// Returns what is added to the stream of `hidden` elements, before bias, norm and factor.
    fn sum_of_halves<'p>(
        &self,
        product: &'p [f64],
        hidden: usize,
        threads: &Threads,
    ) -> Cow<'p, [f64]> {
        let Some(norms) = &self.halves else { return product.into() };
        let mut sums = vec![0.0; product.len() / 2];
        for (half, norm) in norms.iter().enumerate() {
            let rows = product.chunks_exact(2 * hidden).map(|row| &row[half * hidden..][..hidden]);
            let part: Vec<f32> = rows.flatten().map(|value| *value as f32).collect();
            let mut normed = vec![0.0; part.len()];
            norm.norm(Elements::F32(&part), ElementsMut::F32(&mut normed), threads);
            sums.iter_mut().zip(normed).for_each(|(sum, value)| *sum += f64::from(value));
        }
        sums.into()
    }
}

/// A block for the kernels.
struct BlockKernel {
    input: BlockInput,
    work: Work,
    /// Sums of the product over the ranks, unless a node of the graph adds the parts up.
    sums: Option<KernelSums>,
    closing: Closing,
}

/// What a block reads of the stream.
#[derive(Debug)]
struct BlockInput {
    /// See [`BlockFrame::mix`].
    mix: Option<StreamMixKernel>,
    /// Norm of what it reads; `None` if it reads that itself.
    norm: Option<NormKernel>,
}

impl BlockInput {
    fn new(frame: &BlockFrame) -> BlockInput {
        BlockInput {
            mix: frame.mix.as_ref().map(StreamMix::kernel),
            norm: frame.input.as_ref().map(Norm::kernel),
        }
    }
}

/// The computation of a block with sums over the ranks in its middle. The second part gets what the
/// first one returned, with the sums over the ranks.
pub(super) struct TwoParts<F, S> {
    /// Number of values of each row that the second part gets as they are, one for each vector of
    /// them.
    pub(super) widths: Vec<usize>,
    pub(super) first: F,
    pub(super) second: S,
}

/// Results that the first part of a block passes to the second.
pub(super) struct Middle {
    /// `[tokens, width]` each.
    pub(super) values: Vec<Vec<f32>>,
    /// `[tokens, num_sums]`; exact, so that they have the same bits for every split.
    pub(super) sums: Vec<f64>,
}

/// The computation of a block: from normalised rows `[tokens, hidden]`, in the model's type, to this
/// rank's part of the product that is added to the stream, `[tokens, hidden]`.
type Work = Box<dyn Fn(Elements<'_>, &Threads) -> Vec<f64> + Send>;

impl fmt::Debug for BlockKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockKernel").field("input", &self.input).finish_non_exhaustive()
    }
}

impl Residual {
    /// Creates the stream from the embedded tokens.
    pub(crate) fn new(h: Array, parallel: &Parallel) -> Residual {
        let (pending, blocks) = (None, Vec::new());
        Residual {
            h,
            is_replaced: false,
            earlier: None,
            weights: None,
            pending,
            blocks,
            parallel: parallel.clone(),
        }
    }

    /// Creates the stream of a single block, which reads `x`; the result of the block replaces `x`.
    pub(crate) fn alone(x: Array, parallel: &Parallel) -> Residual {
        Residual { is_replaced: true, ..Residual::new(x, parallel) }
    }

    /// Sets the earlier streams, `[tokens, streams * hidden]`, which later blocks read beside this one.
    pub(super) fn after(self, earlier: Option<Array>) -> Residual {
        Residual { earlier, ..self }
    }

    /// Sets the weights with which the next block reads several streams, f32 `[tokens, streams]`.
    pub(super) fn with_weights(self, weights: Option<Array>) -> Residual {
        Residual { weights, ..self }
    }

    /// Returns the weights with which the next block reads several streams, if the block before it has
    /// computed them.
    pub(crate) fn weights(&self) -> Option<Array> {
        self.weights.clone()
    }

    /// Begins a block of layers: the stream joins the earlier ones, and a new one begins at zero.
    pub(crate) fn begin_block(self) -> Residual {
        let (parallel, earlier) = (self.parallel.clone(), self.earlier.clone());
        let h = self.finish();
        let zeros = Array::zeros(&h.shape(), h.dtype());
        Residual::new(zeros, &parallel).after(Some(beside(earlier.as_ref(), &h)))
    }

    /// Returns the mean of all streams.
    pub(crate) fn mixed(self, mix: &StreamMix) -> Array {
        let parallel = self.parallel.clone();
        let earlier = self.earlier.clone().expect("earlier streams");
        let h = self.finish();
        let Compute::Kernels(threads) = parallel.compute() else { return mix.stock(&earlier, &h) };
        let kernel = mix.kernel();
        let out = h.array_type();
        primitive("stream_mix", &[&earlier, &h], out, threads, move |inputs, mut out, threads| {
            let [earlier, h] = [(); 2].map(|()| inputs.elements());
            out.copy_from(kernel.mean(earlier, h, threads).elements());
        })
    }

    /// Returns the earlier streams and this one, `[tokens, streams * hidden]`, and then the bytes of the weights
    /// with which the next block reads them, if there are any.
    pub(super) fn finish_all(self) -> Array {
        let (earlier, weights) = (self.earlier.clone(), self.weights.clone());
        let all = beside(earlier.as_ref(), &self.finish());
        let Some(weights) = weights else { return all };
        let bytes = weights.view(Dtype::U8).astype(all.dtype());
        Array::concatenate(&[&all, &bytes], 1)
    }

    /// Creates streams from what another stage has sent: `width` elements, and then the bytes of weights.
    pub(super) fn of_sent(sent: &Array, width: usize, parallel: &Parallel) -> Residual {
        if sent.dim(1) == dim(width) {
            return Residual::new(sent.clone(), parallel);
        }
        let streams = sent.slice_axis(1, 0, dim(width)).contiguous();
        let bytes = sent.slice_axis(1, dim(width), sent.dim(1)).astype(Dtype::U8).contiguous();
        Residual::new(streams, parallel).with_weights(Some(bytes.view(Dtype::F32)))
    }

    /// Returns another stream in the place of this one.
    pub(crate) fn replaced(self, work: impl FnOnce(Array) -> Array) -> Residual {
        let (parallel, weights) = (self.parallel.clone(), self.weights.clone());
        Residual::new(work(self.finish()), &parallel).with_weights(weights)
    }

    /// As [`Residual::replaced`], for streams that are read with weights. `work` returns the streams, and
    /// the weights for the block that follows.
    pub(crate) fn replaced_with_weights(
        self,
        work: impl FnOnce(Array, Array) -> [Array; 2],
    ) -> Residual {
        let weights = self.weights.clone().expect("the block before has computed weights");
        let parallel = self.parallel.clone();
        let [streams, weights] = work(self.finish(), weights);
        Residual::new(streams, &parallel).with_weights(Some(weights))
    }

    /// Returns some rows of the stream.
    pub(crate) fn rows(self, take: impl Fn(&Array) -> Array) -> Residual {
        let (parallel, earlier) = (self.parallel.clone(), self.earlier.as_ref().map(&take));
        Residual::new(take(&self.finish()), &parallel).after(earlier)
    }

    /// Returns the stream as an array.
    pub(crate) fn finish(self) -> Array {
        match self.parallel.compute().clone() {
            Compute::Kernels(threads) if self.pending.is_some() || !self.blocks.is_empty() => {
                let out = [self.h.array_type()];
                self.node(&out, &threads, |chain, outputs, threads| chain.finish(outputs, threads))
                    .remove(0)
            }
            _ => self.h,
        }
    }

    /// Adds a block, computed with MLX; `work` maps `[tokens, hidden]` to this rank's part of the
    /// product.
    pub(super) fn stock_block(
        self,
        frame: &BlockFrame,
        output: BlockOutput<'_>,
        work: impl FnOnce(&Array) -> Array,
    ) -> Residual {
        self.stock_block_of(frame, output, |input| work(&input.normed()))
    }

    /// As [`Residual::stock_block`], for a block that computes each row from that row alone. `work` must read
    /// nothing else that changes, and take part in no sums.
    pub(super) fn stock_row_block(
        self,
        frame: &BlockFrame,
        output: BlockOutput<'_>,
        work: impl Fn(&Array) -> Array,
    ) -> Residual {
        assert_eq!(output.num_sums, 0, "sums over the ranks depend on other ranks");
        let work = |inputs: &[Array]| vec![work(&inputs[0])];
        self.stock_block_of(frame, output, |input| input.compiled(&[], work).remove(0))
    }

    /// As [`Residual::stock_block`]; `work` gets the stream before its norm.
    pub(super) fn stock_block_of(
        self,
        frame: &BlockFrame,
        output: BlockOutput<'_>,
        work: impl FnOnce(&StockInput<'_>) -> Array,
    ) -> Residual {
        let x = frame.mix.as_ref().map_or_else(
            || self.h.clone(),
            |mix| mix.stock(self.earlier.as_ref().expect("earlier streams"), &self.h),
        );
        let input = StockInput::new(x, frame);
        let part = if output.is_empty {
            let after = without_sums(&self.parallel, input.normed(), output.num_sums, Dtype::F32);
            zeros_after(&after, output.hidden, output.dtype)
        } else {
            work(&input)
        };
        let sum = self.parallel.all_sum(&part);
        let sum = output.bias.map_or(sum.clone(), |bias| sum.add(bias.array()));
        let sum = match output.halves {
            Some(norms) => {
                let hidden = self.h.dim(-1);
                let halves = [0, 1].map(|idx| sum.slice_axis(1, idx * hidden, (idx + 1) * hidden));
                norms[0].stock(&halves[0]).add(&norms[1].stock(&halves[1]))
            }
            None => sum,
        };
        let sum = frame.output.as_ref().map_or(sum.clone(), |norm| norm.stock(&sum));
        let sum = if frame.factor == 1.0 { sum } else { &sum * frame.factor };
        let h = if self.is_replaced { sum } else { sum.add(&self.h) };
        Residual { h: if frame.scale == 1.0 { h } else { &h * frame.scale }, ..self }
    }

    /// Like [`Residual::stock_block`], with our kernels.
    pub(super) fn kernel_block(
        mut self,
        frame: &BlockFrame,
        output: BlockOutput<'_>,
        threads: &Arc<Threads>,
        work: impl Fn(Elements<'_>, &Threads) -> Vec<f64> + Send + 'static,
    ) -> Residual {
        let closing = Closing::new(frame, &output);
        let sums = self.parallel.kernel_sums();
        if output.is_empty {
            return match sums {
                Some(sums) => self.empty_block(&output, sums, closing),
                None => self.empty_block_of_nodes(&output, closing),
            };
        }
        let (input, is_whole) = (BlockInput::new(frame), sums.is_some());
        self.blocks.push(BlockKernel { input, work: Box::new(work), sums, closing });
        if is_whole { self } else { self.sum_over_ranks(threads) }
    }

    /// Takes part in the sums of a block of which this rank holds nothing.
    fn empty_block(
        mut self,
        output: &BlockOutput<'_>,
        sums: KernelSums,
        closing: Closing,
    ) -> Residual {
        let tokens = self.h.dim(0) as usize;
        let (in_the_middle, product) = (tokens * output.num_sums, tokens * output.hidden);
        let middle_sums = sums.clone();
        let work = move |_: Elements<'_>, threads: &Threads| {
            if 0 < in_the_middle {
                add_up(&middle_sums, &mut vec![0.0; in_the_middle], threads);
            }
            vec![0.0; product]
        };
        let input = BlockInput { mix: None, norm: None };
        self.blocks.push(BlockKernel { input, work: Box::new(work), sums: Some(sums), closing });
        self
    }

    /// Like [`Residual::empty_block`], with sums that are nodes of the graph.
    fn empty_block_of_nodes(self, output: &BlockOutput<'_>, closing: Closing) -> Residual {
        let (parallel, is_replaced) = (self.parallel.clone(), self.is_replaced);
        let earlier = self.earlier.clone();
        let h = self.finish();
        let after = without_sums(&parallel, h.clone(), output.num_sums, Dtype::F64);
        let product = parallel.all_sum(&zeros_after(&after, output.hidden, Dtype::F64));
        let pending = Some(Pending { product, closing });
        Residual { h, is_replaced, earlier, weights: None, pending, blocks: Vec::new(), parallel }
    }

    /// Like [`Residual::kernel_block`], for a block with sums over the ranks in its middle.
    pub(super) fn kernel_block_of_two<F, S>(
        self,
        frame: &BlockFrame,
        output: BlockOutput<'_>,
        threads: &Arc<Threads>,
        parts: TwoParts<F, S>,
    ) -> Residual
    where
        F: Fn(Elements<'_>, &Threads) -> Middle + Send + 'static,
        S: Fn(Middle, &Threads) -> Vec<f64> + Send + 'static,
    {
        let TwoParts { widths, first, second } = parts;
        let sums = self.parallel.kernel_sums();
        if sums.is_some() || output.is_empty || output.num_sums == 0 {
            let has_sums = 0 < output.num_sums;
            let work = move |x: Elements<'_>, threads: &Threads| {
                let mut middle = first(x, threads);
                if let Some(sums) = sums.as_ref().filter(|_| has_sums) {
                    add_up(sums, &mut middle.sums, threads);
                }
                second(middle, threads)
            };
            return self.kernel_block(frame, output, threads, work);
        }
        let (parallel, is_replaced) = (self.parallel.clone(), self.is_replaced);
        let earlier = self.earlier.clone();
        let closing = Closing::new(frame, &output);
        let input = BlockInput::new(frame);
        let stream = self.h.array_type();
        let rows = |width, dtype| ArrayType { shape: vec![self.h.dim(0), dim(width)], dtype };
        let values = rows(widths.iter().sum(), Dtype::F32);
        let out = [values, rows(output.num_sums, Dtype::F64), stream.clone()];
        let mut results = self.node(&out, threads, move |mut chain, outputs, threads| {
            let middle = chain.read(&input, &first, threads);
            outputs.next_values().copy_from_slice(&middle.values.concat());
            outputs.next_sums().copy_from_slice(&middle.sums);
            outputs.next_elements().copy_from(chain.h.elements());
        });
        let h = results.remove(2);
        let inputs = [&results[0], &parallel.all_sum(&results[1])];
        let out = [ArrayType { dtype: Dtype::F64, ..stream }];
        let mut product =
            primitives("blocks", &inputs, &out, threads, move |inputs, out, threads| {
                let mut rest = inputs.next().values::<f32>();
                let sums = inputs.next().values::<f64>().to_vec();
                let tokens = rest.len() / widths.iter().sum::<usize>();
                let values = widths.iter().map(|width| {
                    let (own, others) = rest.split_at(tokens * width);
                    rest = others;
                    own.to_vec()
                });
                let values = values.collect();
                out.next_sums().copy_from_slice(&second(Middle { values, sums }, threads));
            });
        let product = parallel.all_sum(&product.remove(0));
        let pending = Some(Pending { product, closing });
        Residual { h, is_replaced, earlier, weights: None, pending, blocks: Vec::new(), parallel }
    }

    /// Adds the pending blocks and the sum of their products over the ranks to the graph.
    fn sum_over_ranks(self, threads: &Arc<Threads>) -> Residual {
        let (parallel, is_replaced) = (self.parallel.clone(), self.is_replaced);
        let earlier = self.earlier.clone();
        let last = self.blocks.last().expect("a block was added");
        let closing = last.closing.clone();
        let stream = self.h.array_type();
        let out = [closing.product_type(&stream), stream];
        let mut results =
            self.node(&out, threads, |chain, outputs, threads| chain.split(outputs, threads));
        let h = results.remove(1);
        let product = parallel.all_sum(&results.remove(0));
        let pending = Some(Pending { product, closing });
        Residual { h, is_replaced, earlier, weights: None, pending, blocks: Vec::new(), parallel }
    }

    /// Creates a node that computes the blocks and passes the stream to `end`.
    fn node(
        self,
        outputs: &[ArrayType],
        threads: &Arc<Threads>,
        end: impl Fn(Chain<'_>, &mut Outputs<'_, '_>, &Threads) + Send + 'static,
    ) -> Vec<Array> {
        let Residual { h, is_replaced, earlier, pending, blocks, .. } = self;
        let mut inputs = vec![&h];
        inputs.extend(pending.as_ref().map(|pending| &pending.product));
        inputs.extend(earlier.as_ref());
        let has_earlier = earlier.is_some();
        let (dtype, hidden) = (h.dtype(), h.dim(-1) as usize);
        let closing = pending.as_ref().map(|pending| pending.closing.clone());
        primitives("blocks", &inputs, outputs, threads, move |inputs, outputs, threads| {
            let h = Stream::Found(inputs.elements());
            let added = closing.as_ref().map(|closing| {
                let product = inputs.next().values::<f64>().into();
                Added { product, closing }
            });
            let earlier = has_earlier.then(|| inputs.elements());
            let mut chain = Chain { h, is_replaced, earlier, added, hidden, dtype };
            for block in &blocks {
                chain.run(block, threads);
            }
            end(chain, outputs, threads);
        })
    }
}

/// Replaces values by their sums over the ranks, inside a node.
fn add_up(sums: &KernelSums, values: &mut [f64], threads: &Threads) {
    let _span = threads.span(KernelTimings::SUMS, 0);
    sums.add_up(values);
}

/// Takes part in the sums in the middle of a block of which this rank holds nothing. Returns `x`, or
/// an array that is computed after the sums.
fn without_sums(parallel: &Parallel, x: Array, num_sums: usize, dtype: Dtype) -> Array {
    if num_sums == 0 { x } else { parallel.all_sum(&zeros_after(&x, num_sums, dtype)) }
}

/// The stream while a node computes it.
struct Chain<'a> {
    h: Stream<'a>,
    is_replaced: bool,
    /// See [`Residual::earlier`].
    earlier: Option<Elements<'a>>,
    /// Terms still to be added.
    added: Option<Added<'a>>,
    /// Width of the stream.
    hidden: usize,
    dtype: Dtype,
}

struct Added<'a> {
    product: Cow<'a, [f64]>,
    closing: &'a Closing,
}

/// The stream: the node's input, or the output of one of its blocks.
enum Stream<'a> {
    Found(Elements<'a>),
    Made(Floats),
}

impl Stream<'_> {
    fn elements(&self) -> Elements<'_> {
        match self {
            Stream::Found(elements) => *elements,
            Stream::Made(floats) => floats.elements(),
        }
    }
}

impl<'a> Chain<'a> {
    /// Computes `out = scale * (h + factor * norm(product + bias))`, rounded once.
    fn add(&self, added: &Added<'_>, out: ElementsMut<'_>, threads: &Threads) {
        let Closing { bias, norm, factor, scale, .. } = added.closing;
        let product = added.closing.sum_of_halves(&added.product, self.hidden, threads);
        let nothing = self.is_replaced.then(|| Floats::zeros(float(self.dtype), out.len()));
        let residual = nothing.as_ref().map_or(self.h.elements(), Floats::elements);
        let terms = Terms {
            residual,
            bias: bias.as_ref().map(elements),
            norm: norm.as_ref().map(NormKernel::view),
            factor: *factor,
            scale: *scale,
            width: self.hidden,
        };
        kernels::add_terms(&product, terms, out, threads);
    }

    /// Adds the terms that are still to be added, and returns what `work` makes of the stream, which
    /// is mixed with earlier streams and normalised as `input` says.
    fn read<R>(
        &mut self,
        input: &BlockInput,
        work: impl Fn(Elements<'_>, &Threads) -> R,
        threads: &Threads,
    ) -> R {
        if let Some(added) = self.added.take() {
            let mut h = Floats::zeros(float(self.dtype), self.h.elements().len());
            self.add(&added, h.elements_mut(), threads);
            self.h = Stream::Made(h);
        }
        let mixed = input.mix.as_ref().map(|mix| {
            mix.mean(self.earlier.expect("earlier streams"), self.h.elements(), threads)
        });
        let h = mixed.as_ref().map_or_else(|| self.h.elements(), Floats::elements);
        match &input.norm {
            Some(norm) => {
                let mut normed = Floats::zeros(float(self.dtype), h.len());
                norm.norm(h, normed.elements_mut(), threads);
                work(normed.elements(), threads)
            }
            None => work(h, threads),
        }
    }

    fn run(&mut self, block: &'a BlockKernel, threads: &Threads) {
        let mut product = self.read(&block.input, &block.work, threads);
        if let Some(sums) = &block.sums {
            add_up(sums, &mut product, threads);
        }
        self.added = Some(Added { product: product.into(), closing: &block.closing });
    }

    /// Writes the finished stream to the only output.
    fn finish(self, outputs: &mut Outputs<'_, '_>, threads: &Threads) {
        let added = self.added.as_ref().expect("only unfinished streams are finished");
        self.add(added, outputs.next_elements(), threads);
    }

    /// Writes this rank's part of the product that is to be added, and the stream to which it is to
    /// be added.
    fn split(self, outputs: &mut Outputs<'_, '_>, _threads: &Threads) {
        let added = self.added.as_ref().expect("a block adds something");
        outputs.next_sums().copy_from_slice(&added.product);
        outputs.next_elements().copy_from(self.h.elements());
    }
}
