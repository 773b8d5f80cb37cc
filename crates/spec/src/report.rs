//! What is wrong with a checkpoint.

use std::fmt;

use jackalope_protocol::counted;

use crate::names::UnusedPart;

/// Maximum number of unexpected tensors named in a message; the others are counted.
const NAMES_SHOWN: usize = 8;

/// What is wrong with a checkpoint's tensors.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CheckReport {
    /// Every problem; empty if the checkpoint is complete.
    pub problems: Vec<TensorProblem>,
}

/// A difference between a checkpoint and its model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TensorProblem {
    /// The checkpoint lacks a tensor that the model needs.
    Missing {
        /// Name of the tensor.
        name: String,
        /// Expected shape.
        shape: Vec<usize>,
    },
    /// A tensor has an unexpected shape.
    Shape {
        /// Name of the tensor.
        name: String,
        /// Shape of the tensor.
        found: Vec<usize>,
        /// Shape that `config.json` implies.
        expected: Vec<usize>,
    },
    /// A tensor has an unexpected element type.
    ElementType {
        /// Name of the tensor.
        name: String,
        /// Element type of the tensor.
        found: String,
        /// Element types that can be loaded.
        expected: &'static str,
    },
    /// Quantised tensors fit no known format, or contradict `config.json`.
    Quantization {
        /// Name of the quantised module.
        module: String,
        /// Format of the tensors, or the numbers that match no format.
        found: String,
        /// Expected format.
        expected: String,
    },
    /// The checkpoint has tensors that the model does not use.
    Unexpected {
        /// `model_type` of the checkpoint.
        model_type: String,
        /// Names of the tensors.
        names: Vec<String>,
    },
}

/// Tensors of a checkpoint that the language model does not use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct UnusedTensors {
    /// Part of the checkpoint that they belong to.
    pub part: UnusedPart,
    /// Their number.
    pub count: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

impl UnusedTensors {
    /// Describes each of a list in a line of its own, which begins with a line break; `size` formats a
    /// number of bytes.
    pub fn describe_all(all: &[UnusedTensors], size: impl Fn(u64) -> String) -> String {
        all.iter().map(|it| format!("\n{}", it.describe(&size))).collect()
    }

    /// Describes them, for people; `size` formats a number of bytes.
    pub fn describe(&self, size: impl Fn(u64) -> String) -> String {
        let verb = if self.count == 1 { "is" } else { "are" };
        let (tensors, bytes) = (counted(self.count, "tensor"), size(self.bytes));
        format!("{tensors} of {} ({bytes}) {verb} not used", self.part)
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.problems.first() else { return f.write_str("complete") };
        write!(f, "{first}")?;
        match self.problems.len() - 1 {
            0 => Ok(()),
            more => write!(f, ", and {}", counted(more, "more problem")),
        }
    }
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorProblem::Missing { name, shape } => {
                write!(f, "tensor {name} {shape:?} is missing")
            }
            TensorProblem::Shape { name, found, expected } => {
                write!(f, "tensor {name} has shape {found:?}, expected {expected:?}")
            }
            TensorProblem::ElementType { name, found, expected } => {
                write!(f, "tensor {name} holds {found}, expected {expected}")
            }
            TensorProblem::Quantization { module, found, expected } => {
                write!(f, "{module} is quantised as {found}, expected {expected}")
            }
            TensorProblem::Unexpected { model_type, names } => {
                let shown = &names[..names.len().min(NAMES_SHOWN)];
                let count = names.len();
                let tensors = counted(count, "tensor");
                write!(f, "{tensors} that `{model_type}` does not use: ")?;
                f.write_str(&shown.join(", "))?;
                match count - shown.len() {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}
