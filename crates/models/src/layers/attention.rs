//! Causal attention of a step's rows; each sequence attends to its own keys and values.

use std::rc::Rc;
use std::sync::Arc;

use jackalope_kernels::{
    self as kernels, AttentionConfig, Elements, Floats, KvPage, SequenceKv, Threads,
};
use jackalope_mlx::{Array, Dtype};

use super::kernel::{DivisibleKernel, dim, float};
use super::linear::{HasBias, Linear, LinearKernel, RowInput};
use super::norm::{NormKernel, RmsNorm};
use super::residual::Residual;
use super::rope::{Rope, RotationTable};
use super::stock_attention::{StockAttention, StockHeads};
use crate::cache::{KvShape, LayerCacheShape, LayerPages, Page};
use crate::error::LoadError;
use crate::parallel::{Compute, Parallel};
use crate::split::{Cut, HeadCounts, HeadCut, cut_heads};
use crate::step::{Step, StepSpan};
use crate::weights::Weights;

/// The attention heads of a model and this rank's part of them.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    pub(crate) head_dim: usize,
    pub(crate) cut: HeadCut,
    /// Number of query heads in an indivisible unit.
    unit: usize,
}

impl Heads {
    /// Divides heads of `head_dim` elements among the ranks.
    pub(crate) fn new(counts: HeadCounts, head_dim: usize, parallel: &Parallel) -> Heads {
        let cut = cut_heads(counts, parallel.shares()).swap_remove(parallel.rank());
        Heads { head_dim, cut, unit: counts.heads_unit }
    }

    /// Loads `o_proj`, whose input are the heads' results.
    pub(crate) fn o_proj(
        &self,
        w: &Weights<'_>,
        hidden: usize,
        bias: HasBias,
    ) -> Result<Linear, LoadError> {
        let input = RowInput { cut: &self.queries(), unit: self.unit * self.head_dim };
        Linear::row(w, input, hidden, bias)
    }

    /// Returns the division of `q_proj`'s output.
    pub(crate) fn queries(&self) -> Cut {
        self.cut.heads.scaled(self.head_dim)
    }

    /// Returns the division of the output of `k_proj` and of `v_proj`.
    pub(crate) fn keys(&self) -> Cut {
        self.cut.kv_heads.scaled(self.head_dim)
    }
}

/// The layers and settings of an attention block.
#[derive(Debug)]
pub(crate) struct AttentionParts {
    /// Projection `[hidden] -> [heads, head_dim]`.
    pub(crate) q_proj: Linear,
    /// Projection `[hidden] -> [kv_heads, head_dim]`.
    pub(crate) k_proj: Linear,
    /// Projection `[hidden] -> [kv_heads, head_dim]`.
    pub(crate) v_proj: Linear,
    /// Projection `[heads, head_dim] -> [hidden]`, summed over ranks.
    pub(crate) o_proj: Linear,
    /// Norms of each query and each key head.
    pub(crate) head_norms: Option<(RmsNorm, RmsNorm)>,
    pub(crate) rope: Rc<Rope>,
    pub(crate) heads: Heads,
    /// Number of positions that a query sees, including its own; `None` if all.
    pub(crate) window: Option<usize>,
}

/// Grouped-query attention with rotary positions.
#[derive(Debug)]
pub(crate) struct Attention {
    parts: AttentionParts,
    layer_idx: usize,
    scale: f32,
    dtype: Dtype,
    parallel: Parallel,
}

impl Attention {
    pub(crate) fn new(
        parts: AttentionParts,
        layer_idx: usize,
        dtype: Dtype,
        parallel: &Parallel,
    ) -> Attention {
        let scale = (parts.heads.head_dim as f64).powf(-0.5) as f32;
        Attention { parts, layer_idx, scale, dtype, parallel: parallel.clone() }
    }

    /// Returns this rank's heads.
    pub(crate) fn heads(&self) -> &Heads {
        &self.parts.heads
    }

    /// Returns what the layer keeps of a sequence on this rank.
    pub(crate) fn cache_shape(&self) -> LayerCacheShape {
        let Heads { head_dim, ref cut, .. } = self.parts.heads;
        let kv_heads = cut.kv_heads.len();
        LayerCacheShape::Positions(KvShape { kv_heads, key_dim: head_dim, value_dim: head_dim })
    }

    /// Returns `residual + attention(norm(residual))`.
    pub(crate) fn add_to(
        &self,
        residual: Residual,
        norm: &RmsNorm,
        step: &mut Step<'_, '_>,
    ) -> Residual {
        let parts = &self.parts;
        let output = parts.o_proj.block_output();
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let work = |x: &Array| parts.o_proj.stock(&self.stock_heads(x, step));
            return residual.stock_block(norm, output, work);
        };
        let kernel = self.kernel(step);
        residual.kernel_block(norm, output, threads, move |x, threads| kernel.product(x, threads))
    }

    /// Creates the part of the primitive's closure that computes the heads.
    fn kernel(&self, step: &mut Step<'_, '_>) -> AttentionKernel {
        let parts = &self.parts;
        let linears = [&parts.q_proj, &parts.k_proj, &parts.v_proj];
        AttentionKernel {
            qkv: linears.map(Linear::kernel),
            output: parts.o_proj.divisible_kernel(),
            norms: parts
                .head_norms
                .as_ref()
                .map(|(q_norm, k_norm)| [q_norm.kernel(), k_norm.kernel()]),
            rotations: step.rotations(&parts.rope),
            config: AttentionConfig {
                heads: parts.heads.cut.heads.len(),
                kv_heads: parts.heads.cut.kv_heads.len(),
                head_dim: parts.heads.head_dim,
                scale: self.scale,
                window: parts.window,
                soft_cap: None,
                sinks: None,
            },
            spans: step.spans.clone(),
            pages: step.caches.iter().map(|cache| cache.pages(self.layer_idx)).collect(),
            dtype: self.dtype,
        }
    }

    /// Computes the heads' results `[tokens, heads * head_dim]` with MLX.
    fn stock_heads(&self, x: &Array, step: &mut Step<'_, '_>) -> Array {
        let parts = &self.parts;
        let mut q = self.split(&parts.q_proj.stock(x)); // [tokens, heads, head_dim]
        let mut k = self.split(&parts.k_proj.stock(x)); // [tokens, kv_heads, head_dim]
        let v = self.split(&parts.v_proj.stock(x));
        if let Some((q_norm, k_norm)) = &parts.head_norms {
            (q, k) = (q_norm.stock(&q), k_norm.stock(&k));
        }
        let attention = StockAttention {
            layer_idx: self.layer_idx,
            rope: Some(&parts.rope),
            scale: self.scale,
            window: parts.window,
        };
        attention.forward(&StockHeads { q, k, v }, step)
    }

    fn split(&self, x: &Array) -> Array {
        x.reshape(&[x.dim(0), -1, dim(self.parts.heads.head_dim)])
    }
}

/// The state of the attention primitive's closure: everything except the weights' arrays.
struct AttentionKernel {
    qkv: [LinearKernel; 3],
    output: DivisibleKernel,
    norms: Option<[NormKernel; 2]>,
    rotations: Arc<RotationTable>,
    config: AttentionConfig<'static>,
    spans: Vec<StepSpan>,
    pages: Vec<LayerPages>,
    dtype: Dtype,
}

impl AttentionKernel {
    /// Computes this rank's part of the product `[tokens, hidden]`, without bias.
    fn product(&self, x: Elements<'_>, threads: &Threads) -> Vec<f64> {
        self.output.multiply(self.heads(x, threads).elements(), threads)
    }

    /// Computes the heads' results `[tokens, heads * head_dim]` for `x` `[tokens, hidden]`.
    fn heads(&self, x: Elements<'_>, threads: &Threads) -> Floats {
        let [mut q, mut k, v] = LinearKernel::products(&self.qkv, x, threads);
        let norms = self.norms.as_ref().map(|norms| norms.each_ref().map(NormKernel::of_heads));
        let rotation = self.rotations.rotation();
        kernels::place_heads(&mut q, norms.map(|norms| norms[0]), rotation, threads);
        kernels::place_heads(&mut k, norms.map(|norms| norms[1]), rotation, threads);
        let width = self.config.kv_heads * self.config.head_dim;
        let writing = threads.span("kv_cache", 0);
        let spans = self.spans.iter().zip(&self.pages);
        let held = spans.map(|(span, pages)| {
            let range = span.rows.start * width..span.rows.end * width;
            pages.write(span.start, &k[range.clone()], &v[range])
        });
        let held: Vec<Vec<Arc<Page>>> = held.collect();
        drop(writing);
        let views: Vec<Vec<KvPage<'_>>> =
            held.iter().map(|pages| pages.iter().map(|page| page.view()).collect()).collect();
        let spans = self.spans.iter().zip(&views);
        let sequences = spans.map(|(span, pages)| {
            let num_queries = span.rows.len();
            SequenceKv { pages, length: span.start + num_queries, num_queries }
        });
        let sequences: Vec<SequenceKv<'_>> = sequences.collect();
        let mut out = Floats::zeros(float(self.dtype), q.len());
        let q = Elements::F32(&q);
        kernels::attention(q, &sequences, &self.config, out.elements_mut(), threads);
        out
    }
}
