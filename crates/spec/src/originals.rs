//! How the numbers in checkpoints as their makers publish them differ from those in conversions.

use std::collections::BTreeMap;

use crate::names::TensorNames;
use crate::tensor::TensorHeaders;

/// How the numbers in original checkpoints differ from those in conversions.
#[derive(Clone, Debug, PartialEq)]
pub struct OriginalNumbers {
    /// How to recognise an original.
    pub sign: OriginalSign,
    /// Suffixes of tensor names, and how conversions change these tensors. The first suffix that matches
    /// applies.
    pub edits: Vec<(&'static str, NumberEdit)>,
}

/// How to recognise that a checkpoint is an original.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OriginalSign {
    /// A convolution's kernel: `[channels, 1, width]` there, and `[channels, width, 1]` in conversions.
    Kernel(String),
    /// Names that conversions change.
    Names,
}

/// Change that a conversion makes to the numbers of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum NumberEdit {
    /// Adds one.
    AddOne,
    /// Multiplies ranges of rows, in ascending order, by factors.
    Multiply(Vec<RowFactors>),
}

/// Factors of neighbouring rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFactors {
    /// The row after the last one.
    pub end_row: usize,
    /// Factors, whose product is rounded to the type of the tensor.
    pub factors: Vec<f32>,
}

impl NumberEdit {
    /// Multiplies all rows by a factor.
    pub fn multiply(factor: f32) -> NumberEdit {
        NumberEdit::Multiply(vec![RowFactors { end_row: usize::MAX, factors: vec![factor] }])
    }

    /// Returns the factors of a row; none if numbers are not multiplied.
    pub fn factors(&self, row: usize) -> &[f32] {
        let NumberEdit::Multiply(rows) = self else { return &[] };
        rows.iter().find(|it| row < it.end_row).map_or(&[], |it| &it.factors)
    }
}

impl OriginalNumbers {
    /// Returns the changes that conversions make to the tensors of a checkpoint, by name. `stored` has
    /// the names in the checkpoint, `headers` those in the language model. The result is empty if the
    /// checkpoint is a conversion.
    pub(crate) fn edits(
        &self,
        names: &TensorNames,
        stored: &TensorHeaders,
        headers: &TensorHeaders,
    ) -> BTreeMap<String, NumberEdit> {
        let is_original = match &self.sign {
            OriginalSign::Kernel(kernel) => {
                let kernel = headers.get(kernel);
                kernel.is_some_and(|it| it.shape.last().is_some_and(|last| *last != 1))
            }
            OriginalSign::Names => stored.keys().any(|name| names.is_renamed(name)),
        };
        let names = headers.keys().filter(|_| is_original);
        let edits = names.filter_map(|name| {
            let (_, edit) = self.edits.iter().find(|(ending, _)| name.ends_with(ending))?;
            Some((name.clone(), edit.clone()))
        });
        edits.collect()
    }
}
