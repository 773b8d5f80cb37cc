//! One step as the layers see it: rows of several sequences next to each other.

mod choice;

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use jackalope_mlx::{Array, dim};
use jackalope_protocol::TokenId;

use crate::layers::Rope;
use jackalope_cache::{BlockRows, SequenceCache, written_rows};
use jackalope_kernels::RotationTable;

pub(crate) use self::choice::Choice;
pub(crate) use jackalope_cache::{
    DecodeGroup, EndedPools, PoolKind, Reach, SeenPositions, StepSpan, StockPlan, VisibleKeys,
    WindowGroup, WindowPlan, WindowPrompt,
};

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span {
    /// Index of its first token in [`crate::Batch::tokens`].
    pub start_idx: usize,
    /// Number of tokens; never zero.
    pub len: usize,
}

/// The tokens of a step's rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepTokens<'a> {
    /// Tokens that the host knows; the others are arbitrary.
    pub(crate) host: &'a [TokenId],
    /// All tokens, u32 `[tokens]`, for MLX's operations; `None` if the host knows all of them.
    pub(crate) device: Option<&'a Array>,
}

/// The rows of a step and the caches that they belong to, one cache for each span.
pub(crate) struct Step<'a, 'b> {
    pub(crate) spans: Vec<StepSpan>,
    pub(crate) caches: &'a mut [&'b mut SequenceCache],
    tables: Vec<(Rc<Rope>, Arc<RotationTable>)>,
    stock_plan: Option<Rc<StockPlan>>,
    window_plans: Vec<(Reach, Rc<WindowPlan>)>,
    slot_windows: Vec<(Reach, Rc<[SeenPositions]>)>,
    ended_pools: Vec<(PoolKind, Option<Rc<EndedPools>>)>,
    written_rows: OnceCell<Rc<BlockRows>>,
    /// Position of each row in its sequence, `[tokens]` i32.
    positions: OnceCell<Array>,
    /// Rows whose output is needed after the last layer; `None` if all are.
    needed: Option<Vec<usize>>,
    /// The positions that the last indexer has chosen.
    choice: Choice,
}

impl<'a, 'b> Step<'a, 'b> {
    /// Creates the step and counts its rows as held by their caches.
    pub(crate) fn new(spans: &[Span], caches: &'a mut [&'b mut SequenceCache]) -> Step<'a, 'b> {
        assert_eq!(spans.len(), caches.len(), "one cache for each span");
        let mut next_idx = 0;
        let mut step_spans = Vec::with_capacity(spans.len());
        for (span, cache) in spans.iter().zip(caches.iter_mut()) {
            assert!(
                span.start_idx == next_idx && 0 < span.len,
                "spans follow one another: {spans:?}"
            );
            next_idx += span.len;
            step_spans.push(StepSpan { rows: span.start_idx..next_idx, start: cache.len() });
            cache.extend(span.len);
        }
        if let Some(cache) = caches.first() {
            cache.slots().borrow_mut().blocks.prepare();
        }
        Step {
            spans: step_spans,
            caches,
            tables: Vec::new(),
            stock_plan: None,
            window_plans: Vec::new(),
            slot_windows: Vec::new(),
            ended_pools: Vec::new(),
            written_rows: OnceCell::new(),
            positions: OnceCell::new(),
            needed: None,
            choice: Choice::default(),
        }
    }

    /// Says which rows' output is needed after the last layer; at least one.
    pub(crate) fn need(&mut self, rows: &[usize]) {
        let num_rows = self.spans.last().map_or(0, |span| span.rows.end);
        self.needed = (!rows.iter().copied().eq(0..num_rows)).then(|| rows.to_vec());
    }

    /// Returns the rows of `x` `[tokens, width]` whose output is needed after the last layer.
    pub(crate) fn needed_rows(&self, x: &Array) -> Array {
        let Some(rows) = &self.needed else { return x.clone() };
        let (first, len) = (rows[0], rows.len());
        if rows.iter().copied().eq(first..first + len) {
            return x.slice_axis(0, dim(first), dim(first + len));
        }
        let rows: Vec<i32> = rows.iter().map(|&row| dim(row)).collect();
        x.take(&Array::from_slice(&rows, &[dim(len)]), 0)
    }

    /// Returns the position of each row in its sequence, `[tokens]` i32, for MLX's operations.
    pub(crate) fn positions(&self) -> Array {
        let positions = || {
            let positions: Vec<i32> =
                self.spans.iter().flat_map(StepSpan::positions).map(dim).collect();
            Array::from_slice(&positions, &[dim(positions.len())])
        };
        self.positions.get_or_init(positions).clone()
    }

    /// Returns the rotations of all rows; computed once per step, not once per layer.
    pub(crate) fn rotations(&mut self, rope: &Rc<Rope>) -> Arc<RotationTable> {
        if let Some((_, table)) = self.tables.iter().find(|(known, _)| Rc::ptr_eq(known, rope)) {
            return Arc::clone(table);
        }
        let positions = self.spans.iter().flat_map(StepSpan::positions);
        let table = Arc::new(rope.table(positions));
        self.tables.push((Rc::clone(rope), Arc::clone(&table)));
        table
    }

    /// Begins the choice of an indexer, which the layers that follow may share.
    pub(crate) fn begin_choice(&mut self) -> Choice {
        self.choice = Choice::default();
        self.choice.clone()
    }

    /// As [`Step::begin_choice`], among the candidates of the last indexer that leaves some.
    pub(crate) fn begin_choice_of_candidates(&mut self) -> Choice {
        let candidates = self.choice.candidates.clone();
        self.choice = Choice { candidates, ..Choice::default() };
        self.choice.clone()
    }

    /// Returns the choice of the last indexer.
    pub(crate) fn last_choice(&self) -> Choice {
        self.choice.clone()
    }

    /// Returns how the rows are computed with MLX's operations; decided once per step, which gives
    /// the sequences that decode their slots.
    pub(crate) fn stock_plan(&mut self) -> Rc<StockPlan> {
        let plan = self
            .stock_plan
            .take()
            .unwrap_or_else(|| Rc::new(StockPlan::new(&self.spans, self.caches)));
        Rc::clone(self.stock_plan.insert(plan))
    }

    /// Returns where the rows' positions are in the blocks of layers with windows; computed once per step.
    pub(crate) fn written_rows(&self) -> Rc<BlockRows> {
        let rows = || Rc::new(written_rows(&self.spans, self.caches));
        Rc::clone(self.written_rows.get_or_init(rows))
    }

    /// Returns how layers whose queries see only some last positions are computed with MLX's operations;
    /// decided once per step for all layers with this reach.
    pub(crate) fn window_plan(&mut self, reach: Reach) -> Rc<WindowPlan> {
        if let Some((_, plan)) = self.window_plans.iter().find(|(known, _)| *known == reach) {
            return Rc::clone(plan);
        }
        let plan = Rc::new(WindowPlan::new(&self.spans, self.caches, reach));
        self.window_plans.push((reach, Rc::clone(&plan)));
        plan
    }

    /// Returns what the slots of each group of [`Step::stock_plan`] see of a window.
    pub(crate) fn slot_windows(&mut self, reach: Reach) -> Rc<[SeenPositions]> {
        if let Some((_, windows)) = self.slot_windows.iter().find(|(known, _)| *known == reach) {
            return Rc::clone(windows);
        }
        let plan = self.stock_plan();
        let of_group = |group| SeenPositions::of_slots(&self.spans, self.caches, group, reach);
        let windows: Rc<[SeenPositions]> = plan.groups.iter().map(of_group).collect();
        self.slot_windows.push((reach, Rc::clone(&windows)));
        windows
    }

    /// Returns the pools that end in the step; `None` if none does.
    pub(crate) fn ended_pools(&mut self, kind: PoolKind) -> Option<Rc<EndedPools>> {
        if let Some((_, pools)) = self.ended_pools.iter().find(|(known, _)| *known == kind) {
            return pools.clone();
        }
        let plan = self.stock_plan();
        let pools = EndedPools::new(&self.spans, self.caches, &plan, kind).map(Rc::new);
        self.ended_pools.push((kind, pools.clone()));
        pools
    }
}
