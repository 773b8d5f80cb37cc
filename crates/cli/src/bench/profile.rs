//! Breaks down the time of steps, on rank 0 and in the coordinator.

use std::fmt::Write as _;

use jackalope_engine::Status;
use jackalope_protocol::{KernelTimings, counted};
use serde_json::{Value, json};

/// Mean times of a step in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct StepBreakdown {
    pub(super) steps: u64,
    /// Whole step on the rank.
    total_us: f64,
    /// Arithmetic: the rank's time without the parts below.
    pub(super) compute_us: f64,
    pub(super) collectives_us: f64,
    pub(super) sampling_us: f64,
    pub(super) graph_us: f64,
    /// Planning, sending and committing in the coordinator; overlaps with the rank's work.
    pub(super) control_us: f64,
    /// Kernels of `compute_us`, if they were measured; the longest first.
    kernels: Vec<KernelTimings>,
    /// The host's work for the device per step, as text for people.
    host: String,
}

/// A line of a profile.
struct Part<'a> {
    name: &'a str,
    us: f64,
    kernel: Option<&'a KernelTimings>,
}

impl StepBreakdown {
    /// Computes the means of the steps between two snapshots.
    pub(super) fn between(before: &Status, after: &Status) -> StepBreakdown {
        let (Some(old), Some(new)) = (before.ranks.first(), after.ranks.first()) else {
            return StepBreakdown::default();
        };
        let steps = new.steps.saturating_sub(old.steps);
        if steps == 0 {
            return StepBreakdown::default();
        }
        let mean = |new: u64, old: u64| new.saturating_sub(old) as f64 / steps as f64;
        let collectives_us = mean(new.timings.collectives_us, old.timings.collectives_us);
        let sampling_us = mean(new.timings.sampling_us, old.timings.sampling_us);
        let graph_us = mean(new.timings.planning_us, old.timings.planning_us);
        let total_us = mean(new.timings.total_us, old.timings.total_us);
        let coordinator_ns =
            |status: &Status| status.steps.plan_ns + status.steps.send_ns + status.steps.commit_ns;
        StepBreakdown {
            steps,
            total_us,
            compute_us: (total_us - collectives_us - sampling_us - graph_us).max(0.0),
            collectives_us,
            sampling_us,
            graph_us,
            control_us: mean(coordinator_ns(after), coordinator_ns(before)) / 1e3,
            kernels: difference(&old.timings.kernels, &new.timings.kernels),
            host: new.timings.host.text_since(&old.timings.host, steps),
        }
    }

    fn kernel_us(&self, kernel: &KernelTimings) -> f64 {
        kernel.time_ns as f64 / 1e3 / self.steps as f64
    }

    /// Returns the parts of a step. Only if kernels were measured can dispatch be separated from
    /// arithmetic.
    fn parts(&self) -> Vec<Part<'_>> {
        let whole = |name: &str| self.kernels.iter().find(|it| it.name == name);
        let (primitives, sums) = (whole(KernelTimings::PRIMITIVES), whole(KernelTimings::SUMS));
        let kernels = self
            .kernels
            .iter()
            .filter(|it| ![KernelTimings::PRIMITIVES, KernelTimings::SUMS].contains(&&*it.name));
        let mut parts: Vec<Part<'_>> = kernels
            .map(|kernel| Part {
                name: &kernel.name,
                us: self.kernel_us(kernel),
                kernel: Some(kernel),
            })
            .collect();
        let own = |name, us| Part { name, us, kernel: None };
        match primitives {
            None => parts.push(own("compute", self.compute_us)),
            Some(primitives) => {
                let inside: f64 = parts.iter().map(|it| it.us).sum();
                // Sums inside primitives are collectives.
                let sums_us = sums.map_or(0.0, |sums| self.kernel_us(sums));
                let primitives_us = self.kernel_us(primitives) - sums_us;
                parts.push(own("between kernels", (primitives_us - inside).max(0.0)));
                let dispatch_us = (self.compute_us - primitives_us).max(0.0);
                parts.push(own("MLX: dispatch", dispatch_us));
            }
        }
        parts.push(own("MLX: graph", self.graph_us));
        parts.push(own("collectives", self.collectives_us));
        parts.push(own("sampling", self.sampling_us));
        parts
    }

    /// Formats a table for people.
    pub(super) fn text(&self, phase: &str) -> String {
        let mut text = format!(
            "  {phase}: {:.0} µs a step, mean of {} on rank 0",
            self.total_us,
            counted(self.steps, "step")
        );
        for part in self.parts() {
            let percent = 100.0 * part.us / self.total_us.max(1e-9);
            let _ = write!(text, "\n    {:<20} {:>10.1} µs {percent:>5.1} %", part.name, part.us);
            if let Some(kernel) = part.kernel {
                let calls = kernel.calls as f64 / self.steps as f64;
                let _ = write!(text, "  {calls:>6.1} calls");
                if 0 < kernel.bytes {
                    let gb_per_s = kernel.bytes as f64 / kernel.time_ns.max(1) as f64;
                    let _ = write!(text, "  {gb_per_s:>6.2} GB/s of weights");
                }
            }
        }
        text + "\n    " + &self.host
    }

    pub(super) fn json(&self) -> Value {
        let kernel = |it: &KernelTimings| {
            json!({
                "name": it.name,
                "calls": it.calls as f64 / self.steps as f64,
                "us": self.kernel_us(it),
                "weight_bytes": it.bytes as f64 / self.steps as f64,
            })
        };
        let kernels: Vec<Value> = self.kernels.iter().map(kernel).collect();
        json!({
            "steps": self.steps,
            "total": self.total_us,
            "compute": self.compute_us,
            "collectives": self.collectives_us,
            "sampling": self.sampling_us,
            "graph": self.graph_us,
            "control": self.control_us,
            "kernels": kernels,
            "host": self.host,
        })
    }
}

fn difference(old: &[KernelTimings], new: &[KernelTimings]) -> Vec<KernelTimings> {
    let since = |new: &KernelTimings| {
        let old = old.iter().find(|old| old.name == new.name);
        let (calls, time_ns, bytes) =
            old.map_or((0, 0, 0), |old| (old.calls, old.time_ns, old.bytes));
        KernelTimings {
            name: new.name.clone(),
            calls: new.calls.saturating_sub(calls),
            time_ns: new.time_ns.saturating_sub(time_ns),
            bytes: new.bytes.saturating_sub(bytes),
        }
    };
    let mut kernels: Vec<KernelTimings> = new.iter().map(since).collect();
    kernels.sort_by_key(|it| std::cmp::Reverse(it.time_ns));
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str, time_ns: u64) -> KernelTimings {
        KernelTimings { name: name.to_owned(), calls: 4, time_ns, bytes: 1000 }
    }

    #[test]
    fn the_parts_of_a_step_are_the_whole_step() {
        let step = StepBreakdown {
            steps: 2,
            total_us: 100.0,
            compute_us: 80.0,
            collectives_us: 10.0,
            sampling_us: 4.0,
            graph_us: 6.0,
            control_us: 1.0,
            kernels: vec![
                kernel(KernelTimings::PRIMITIVES, 160_000),
                kernel("matmul", 120_000),
                kernel(KernelTimings::SUMS, 20_000),
            ],
            host: String::new(),
        };
        let parts: Vec<(&str, f64)> = step.parts().iter().map(|it| (it.name, it.us)).collect();
        let expected = [
            ("matmul", 60.0),
            ("between kernels", 10.0),
            ("MLX: dispatch", 10.0),
            ("MLX: graph", 6.0),
            ("collectives", 10.0),
            ("sampling", 4.0),
        ];
        assert_eq!(parts, expected);
        let sum: f64 = parts.iter().map(|it| it.1).sum();
        assert!((sum - step.total_us).abs() < 1e-9);
    }

    #[test]
    fn kernels_count_from_the_first_snapshot_on() {
        let new = [kernel("a", 10), kernel("b", 50)];
        let found = difference(&[kernel("b", 20)], &new);
        assert_eq!((found[0].name.as_str(), found[0].time_ns, found[0].calls), ("b", 30, 0));
        assert_eq!((found[1].name.as_str(), found[1].time_ns, found[1].calls), ("a", 10, 4));
    }
}
