//! The sizes of tables of n-grams.

use super::TableConfig;
use crate::decoder::Sizes;
use crate::ngrams::TableSizes;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, dimension};
use jackalope_spec::NgramHash;

impl TableConfig {
    /// Returns the sizes of the table of a layer with this hash.
    pub(super) fn sizes(&self, hash: &NgramHash, sizes: Sizes) -> Result<TableSizes, SpecError> {
        let (field, heads) = ("ple_embed_dim", hash.moduli.len());
        let all = self.ple_embed_dim.map_or(Ok(sizes.hidden), |all| dimension(field, all))?;
        if !all.is_multiple_of(heads) {
            return Err(bad_value(field, all, format!("a multiple of {heads} heads")));
        }
        let field = "make_ngram_vocab_size_divisible_by";
        let unit = count(field, self.make_ngram_vocab_size_divisible_by.unwrap_or(128))?;
        let rows: i64 = hash.moduli.iter().sum();
        let rows = i32::try_from(rows).ok().and_then(|rows| usize::try_from(rows).ok());
        let rows = rows.map(|rows| rows.next_multiple_of(unit)).filter(|rows| *rows < 1 << 31);
        let rows = rows.ok_or_else(|| {
            let base = self.ngram_vocab_size_base.unwrap_or_default();
            bad_value("ngram_vocab_size_base", base, "tables of less than 2^31 rows")
        })?;
        let num_parts = dimension("split_ngram_parts", self.split_ngram_parts.unwrap_or(128))?;
        if !rows.is_multiple_of(num_parts) {
            let expected = format!("a divisor of {rows} rows");
            return Err(bad_value("split_ngram_parts", num_parts, expected));
        }
        let conv_width = self.ple_conv_kernel_size.unwrap_or(4);
        Ok(TableSizes {
            num_parts,
            part_rows: rows / num_parts,
            width: all / heads,
            conv_width: count("ple_conv_kernel_size", conv_width)?,
        })
    }
}
