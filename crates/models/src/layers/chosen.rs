//! Attention of the rows of a step of which some attend to chosen positions only, for the kernels.
//!
//! A row with a choice attends to a copy of what the cache holds of the chosen positions, in ascending order.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use jackalope_kernels::{
    self as kernels, AttentionConfig, ChosenPositions, Elements, ElementsMut, Floats, KvPage,
    SequenceKv, Threads,
};

use super::indexer::{Chooser, IndexRows, IndexerKernel};
use crate::step::{Step, StepSpan};
use jackalope_cache::{Page, Runs};

/// What chooses the positions that queries attend to.
pub(super) struct ChooserKernel {
    /// `None` if the choice is an earlier layer's.
    pub(super) indexer: Option<IndexerKernel>,
    num_chosen: usize,
    /// See [`crate::step::Choice::rows`].
    chosen: Arc<OnceLock<Vec<Vec<usize>>>>,
}

impl ChooserKernel {
    pub(super) fn new(chooser: &Chooser, step: &mut Step<'_, '_>) -> ChooserKernel {
        ChooserKernel {
            indexer: chooser.indexer().map(|indexer| indexer.kernel(step)),
            num_chosen: chooser.num_chosen(),
            chosen: chooser.choice(step).rows,
        }
    }
}

/// The rows of a step, and what they attend to.
pub(super) struct ChosenAttention<'a> {
    pub(super) config: AttentionConfig<'a>,
    pub(super) spans: &'a [StepSpan],
    /// Pages of each sequence of the step.
    pub(super) held: &'a [Vec<Arc<Page>>],
    /// `None` if all rows attend to all positions that they see.
    pub(super) chooser: Option<&'a ChooserKernel>,
    /// What the layer's own indexer has computed.
    pub(super) index: Option<&'a IndexRows>,
}

/// Queries of some rows of a step.
struct QueryRows<'a> {
    q: &'a [f32],
    runs: &'a Runs,
}

impl ChosenAttention<'_> {
    /// Writes the results of `q` `[tokens, heads, head_dim]` to `out` `[tokens, heads, value_dim]`.
    pub(super) fn attend(&self, q: &[f32], out: ElementsMut<'_>, threads: &Threads) {
        let AttentionConfig { heads, head_dim, value_dim, .. } = self.config;
        let (query, result) = (heads * head_dim, heads * value_dim);
        let (mut q, mut rest) = (q, out);
        let all_runs = Runs::of_step(self.spans, self.chooser.map(|it| it.num_chosen));
        let mut chosen = self.chosen(&all_runs, threads);
        let sets_per_row = self.index.map_or(1, IndexRows::sets_per_row);
        for runs in &all_runs {
            let (own, others) = rest.split_at(runs.num_rows() * result);
            let (queries, later) = q.split_at(runs.num_rows() * query);
            (q, rest) = (later, others);
            let rows = QueryRows { q: queries, runs };
            if runs.is_chosen {
                let (sets, later) = chosen.split_at(runs.num_rows() * sets_per_row);
                chosen = later;
                self.attend_chosen(&rows, sets, own, threads);
            } else {
                self.attend_all(&rows, own, threads);
            }
        }
    }

    /// Returns the sets of positions that each row of the runs with a choice attends to, in the order of the
    /// rows. The layer's own indexer chooses them; without one, an earlier layer has chosen them.
    fn chosen(&self, runs: &[Runs], threads: &Threads) -> &[Vec<usize>] {
        let Some(chooser) = self.chooser else { return &[] };
        let Some(index) = self.index else {
            return chooser.chosen.get().expect("the earlier layer is computed before");
        };
        chooser.chosen.get_or_init(|| {
            let chosen = runs.iter().filter(|runs| runs.is_chosen);
            let sequences = chosen.flat_map(|runs| &runs.of_sequences);
            let held = |sequence: usize| &self.held[sequence];
            sequences.flat_map(|it| index.choose(&it.span, held(it.sequence), threads)).collect()
        })
    }

    /// Computes rows that attend to all positions that they see.
    fn attend_all(&self, rows: &QueryRows<'_>, out: ElementsMut<'_>, threads: &Threads) {
        let QueryRows { q, runs } = *rows;
        let views = runs.of_sequences.iter().map(|run| {
            self.held[run.sequence].iter().map(|page| page.view()).collect::<Vec<KvPage<'_>>>()
        });
        let views: Vec<Vec<KvPage<'_>>> = views.collect();
        let sequences = runs.of_sequences.iter().zip(&views).map(|(run, pages)| {
            let num_queries = run.span.rows.len();
            SequenceKv { pages, length: run.span.start + num_queries, num_queries }
        });
        let sequences: Vec<SequenceKv<'_>> = sequences.collect();
        kernels::attention(Elements::F32(q), &sequences, &self.config, out, threads);
    }

    /// Computes rows that attend to the `chosen` positions: a set for each row, or one for each key-value
    /// head of each row.
    fn attend_chosen(
        &self,
        rows: &QueryRows<'_>,
        chosen: &[Vec<usize>],
        out: ElementsMut<'_>,
        threads: &Threads,
    ) {
        let QueryRows { q, runs } = *rows;
        let AttentionConfig { heads, kv_heads, head_dim, value_dim, .. } = self.config;
        assert!(self.config.sinks.is_none() || kv_heads == 1, "sinks are of all heads");
        let sets_per_row = chosen.len() / runs.num_rows();
        let sequences = runs.of_sequences.iter();
        let sequences = sequences.flat_map(|run| run.span.rows.clone().map(|_| run.sequence));
        let of_heads = sequences.enumerate().flat_map(|(row, sequence)| {
            (0..kv_heads).map(move |head| ChosenPositions {
                pages: self.held[sequence]
                    .iter()
                    .map(|it| of_head(&it.view(), head, kv_heads))
                    .collect(),
                positions: chosen[row * sets_per_row + head % sets_per_row].clone(),
            })
        });
        let chosen: Vec<ChosenPositions<'_>> = of_heads.collect();
        let keys = kernels::gather_keys(&chosen, head_dim, threads);
        let values = gather_values(&chosen, value_dim, threads);
        let pages = keys.iter().zip(&values).map(|(keys, values)| {
            let values = values.as_ref().map(Floats::elements);
            [KvPage { keys: keys.elements(), values }]
        });
        let pages: Vec<[KvPage<'_>; 1]> = pages.collect();
        let sequences = pages.iter().zip(&chosen).map(|(pages, chosen)| SequenceKv {
            pages,
            length: chosen.positions.len(),
            num_queries: 1,
        });
        let sequences: Vec<SequenceKv<'_>> = sequences.collect();
        let config = AttentionConfig { heads: heads / kv_heads, kv_heads: 1, ..self.config };
        kernels::attention(Elements::F32(q), &sequences, &config, out, threads);
    }
}

/// Returns what a page holds of one key-value head.
fn of_head<'a>(page: &KvPage<'a>, head: usize, kv_heads: usize) -> KvPage<'a> {
    fn part<'a>(all: Elements<'a>, head: usize, kv_heads: usize) -> Elements<'a> {
        let len = all.len() / kv_heads;
        let range: Range<usize> = head * len..(head + 1) * len;
        match all {
            Elements::F32(values) => Elements::F32(&values[range]),
            Elements::F16(values) => Elements::F16(&values[range]),
            Elements::Bf16(values) => Elements::Bf16(&values[range]),
        }
    }
    KvPage {
        keys: part(page.keys, head, kv_heads),
        values: page.values.map(|values| part(values, head, kv_heads)),
    }
}

/// Returns the values at chosen positions, `[positions, value_dim]`; `None` if they are parts of keys.
fn gather_values(
    chosen: &[ChosenPositions<'_>],
    value_dim: usize,
    threads: &Threads,
) -> Vec<Option<Floats>> {
    let mut copies = vec![None; chosen.len()];
    threads.for_each(chosen.iter().zip(&mut copies).collect(), |(chosen, copy)| {
        let Some(first) = chosen.pages.first().and_then(|page| page.values) else { return };
        let page_tokens = first.len() / value_dim;
        let mut values = Floats::zeros(first.float(), chosen.positions.len() * value_dim);
        let mut row = vec![0.0; value_dim];
        for (idx, position) in chosen.positions.iter().enumerate() {
            let page = chosen.pages[position / page_tokens].values.expect("pages are alike");
            page.load(position % page_tokens * value_dim, &mut row);
            values.store(idx * value_dim, &row);
        }
        *copy = Some(values);
    });
    copies
}
