//! Counts of values between fixed bounds, as Prometheus wants histograms.

/// How often values fell between bounds.
#[derive(Clone, Debug)]
pub(crate) struct Distribution {
    /// Upper ends of all buckets but the last, rising.
    bounds: &'static [f64],
    /// One more than bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Distribution {
    pub(crate) fn new(bounds: &'static [f64]) -> Distribution {
        Distribution { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub(crate) fn record(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Adds what another one with the same bounds has counted.
    pub(crate) fn absorb(&mut self, other: &Distribution) {
        debug_assert!(std::ptr::eq(self.bounds, other.bounds), "the bounds differ");
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn sum(&self) -> f64 {
        self.sum
    }

    /// `(bound, values up to it)` of every bucket but the last.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        self.bounds.iter().zip(&self.counts).scan(0, |seen, (&bound, count)| {
            *seen += count;
            Some((bound, *seen))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_up_to_the_first_bound_that_holds_it() {
        let mut found = Distribution::new(&[1.0, 2.0]);
        for value in [0.5, 1.0, 1.5, 3.0] {
            found.record(value);
        }
        let mut twice = found.clone();
        twice.absorb(&found);
        assert_eq!(found.cumulative().collect::<Vec<_>>(), [(1.0, 2), (2.0, 3)]);
        assert_eq!((found.count(), found.sum()), (4, 6.0));
        assert_eq!(twice.cumulative().collect::<Vec<_>>(), [(1.0, 4), (2.0, 6)]);
        assert_eq!((twice.count(), twice.sum()), (8, 12.0));
    }
}
