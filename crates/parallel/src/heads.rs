//! The division of attention heads among the ranks.

use jackalope_kernels::TermColumns;

use super::linear::{HasBias, Linear, RowInput};
use crate::parallel::Parallel;
use jackalope_protocol::split::{Cut, HeadCounts, HeadCut, cut_heads};
use jackalope_weights::LoadError;
use jackalope_weights::Weights;

/// The attention heads of a model and this rank's part of them.
#[derive(Clone, Debug)]
pub struct Heads {
    /// Width of a query and of a key.
    pub head_dim: usize,
    /// Width of a value, and of a head's result.
    pub value_dim: usize,
    /// Heads of the model and of this rank.
    pub cut: HeadCut,
    /// Whether no earlier rank holds this rank's key and value heads.
    pub counts_keys: bool,
    /// Terms of the sums over the ranks of products with the heads' results.
    terms: TermColumns,
    /// Number of query heads in an indivisible unit.
    unit: usize,
}

impl Heads {
    /// Divides heads of `head_dim` elements among the ranks.
    pub fn new(counts: HeadCounts, head_dim: usize, parallel: &Parallel) -> Heads {
        let mut cuts = cut_heads(counts, parallel.shares());
        let cut = cuts.swap_remove(parallel.rank());
        cuts.truncate(parallel.rank());
        let counts_keys = cuts.iter().all(|it| it.kv_heads.own != cut.kv_heads.own);
        let unit = counts.heads_unit;
        let terms = parallel.terms(unit * head_dim);
        Heads { head_dim, value_dim: head_dim, cut, counts_keys, unit, terms }
    }

    /// Returns the same heads with values of another width.
    pub fn with_values(self, value_dim: usize, parallel: &Parallel) -> Heads {
        Heads { value_dim, terms: parallel.terms(self.unit * value_dim), ..self }
    }

    /// Creates the heads of a model without any.
    pub fn none(parallel: &Parallel) -> Heads {
        let none = Cut::new(0, 0..0);
        let cut = HeadCut { heads: none.clone(), kv_heads: none };
        let terms = parallel.terms(1);
        Heads { head_dim: 0, value_dim: 0, cut, counts_keys: false, terms, unit: 1 }
    }

    /// Loads `o_proj`, whose input is the heads' results: this rank's columns of `weight`
    /// `[hidden, heads * value_dim]` and, if there is one, the whole `bias` `[hidden]`.
    ///
    /// # Errors
    /// Fails if a tensor is missing, has another shape or cannot be read.
    pub fn o_proj(
        &self,
        w: &Weights<'_>,
        hidden: usize,
        bias: HasBias,
    ) -> Result<Linear, LoadError> {
        let results = self.cut.heads.scaled(self.value_dim);
        let input = RowInput { cut: &results, terms: self.terms };
        Linear::row(w, input, hidden, bias)
    }

    /// Returns the division of `q_proj`'s output.
    pub fn queries(&self) -> Cut {
        self.cut.heads.scaled(self.head_dim)
    }

    /// Returns the division of `k_proj`'s output.
    pub fn keys(&self) -> Cut {
        self.cut.kv_heads.scaled(self.head_dim)
    }

    /// Returns the division of `v_proj`'s output.
    pub fn values(&self) -> Cut {
        self.cut.kv_heads.scaled(self.value_dim)
    }
}
