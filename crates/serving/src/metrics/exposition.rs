//! Writes Prometheus' text format 0.0.4.
//!
//! Nearly every number comes from a snapshot and appears under the names of up to four other
//! programs, some of which break the rules of OpenMetrics (`vllm:…`, counters without `_total`). A
//! registry of counters does not fit that, so the text is written directly.

use std::fmt::Write;

use jackalope_engine::Buckets;

/// The type of a metric family.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Kind {
    /// The type of a metric of one number: names of counters end with `_total`.
    pub(super) fn of(name: &str) -> Kind {
        if name.ends_with("_total") { Kind::Counter } else { Kind::Gauge }
    }
}

/// Names and values of the labels.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

/// The text written so far.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a family. All of its samples must follow before the next family begins.
    pub(super) fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n").expect("text takes all");
    }

    pub(super) fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        self.text.push_str(name);
        self.push_labels(labels, None);
        self.push_value(value);
    }

    /// Writes all samples of a histogram.
    pub(super) fn histogram(&mut self, name: &str, labels: Labels<'_>, values: &Buckets) {
        for (bound, count) in values.cumulative() {
            write!(self.text, "{name}_bucket").expect("text takes all");
            self.push_labels(labels, Some(bound));
            self.push_value(count as f64);
        }
        for (part, value) in [("sum", values.sum()), ("count", values.count() as f64)] {
            write!(self.text, "{name}_{part}").expect("text takes all");
            self.push_labels(labels, None);
            self.push_value(value);
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    fn push_labels(&mut self, labels: Labels<'_>, bound: Option<f64>) {
        if labels.is_empty() && bound.is_none() {
            return;
        }
        self.text.push('{');
        for (idx, (name, value)) in labels.iter().enumerate() {
            let comma = if idx == 0 { "" } else { "," };
            write!(self.text, "{comma}{name}=\"").expect("text takes all");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if let Some(bound) = bound {
            let comma = if labels.is_empty() { "" } else { "," };
            write!(self.text, "{comma}le=\"{}\"", number(bound)).expect("text takes all");
        }
        self.text.push('}');
    }

    fn push_value(&mut self, value: f64) {
        writeln!(self.text, " {}", number(value)).expect("text takes all");
    }
}

/// Formats a number as Prometheus does.
fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        format!("{value:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let mut text = Exposition::default();
        text.family("a", Kind::Gauge, "Some.");
        text.sample("a", &[("name", "x\"y\\z\n")], f64::NAN);
        text.family("b_seconds", Kind::Histogram, "Times.");
        let mut times = Buckets::new(&[0.5, 1.0]);
        [0.25, 0.75, 3.0].into_iter().for_each(|it| times.record(it));
        text.histogram("b_seconds", &[], &times);
        insta::assert_snapshot!(text.finish(), @r#"
        # HELP a Some.
        # TYPE a gauge
        a{name="x\"y\\z\n"} NaN
        # HELP b_seconds Times.
        # TYPE b_seconds histogram
        b_seconds_bucket{le="0.5"} 1.0
        b_seconds_bucket{le="1.0"} 2.0
        b_seconds_bucket{le="+Inf"} 3.0
        b_seconds_sum 4.0
        b_seconds_count 3.0
        "#);
    }
}
