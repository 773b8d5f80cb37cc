//! Embeddings on a rank: which hidden states a row contributes, and how they are pooled.

use std::ops::Range;

use jackalope_models::Pool;
use jackalope_protocol::{Embedded, Pooling, Row, counted};

use crate::step_error::StepError;

/// Returns the input tokens of a row whose hidden states are needed; `None` for a row that
/// contributes nothing.
pub(crate) fn states(row: &Row) -> Option<Range<usize>> {
    let len = row.input.len();
    match row.embed?.pooling {
        Pooling::Mean => Some(0..len),
        Pooling::Last => ends(row).then_some(len - 1..len),
    }
}

fn ends(row: &Row) -> bool {
    row.embed.is_some_and(|embed| embed.ends_at(row.start as usize + row.input.len()))
}

/// Adds a row's [`states`] to `pool`. Returns the embedding if the row is the last one of its
/// prompt.
pub(crate) fn take_in<'a>(
    row: &Row,
    states: impl Iterator<Item = &'a [f32]>,
    pool: &mut Option<Pool>,
) -> Result<Option<Embedded>, StepError> {
    let Some(embed) = row.embed else { return Ok(None) };
    if embed.pooling == Pooling::Last || row.start == 0 {
        *pool = Some(Pool::new(embed.pooling));
    }
    let num_known = pool.as_ref().map_or(0, Pool::num_tokens);
    let Some(taking) =
        pool.as_mut().filter(|_| embed.pooling == Pooling::Last || num_known == row.start as usize)
    else {
        return Err(StepError::Plan(format!(
            "cache {} has {}, the row starts at {}",
            row.cache.0,
            counted(num_known, "hidden state"),
            row.start
        )));
    };
    states.for_each(|state| taking.add(state));
    if !ends(row) {
        return Ok(None);
    }
    let vector = taking.vector();
    *pool = None;
    Ok(Some(Embedded { cache: row.cache, vector }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jackalope_protocol::{CacheId, Embed, Input};

    fn row(start: u32, len: usize, pooling: Pooling) -> Row {
        Row {
            keeps: false,
            cache: CacheId(3),
            start,
            input: Input::Tokens(vec![1; len]),
            sample: None,
            score: None,
            embed: Some(Embed { pooling, num_tokens: 5 }),
        }
    }

    /// Feeds five states in chunks of the given lengths.
    fn embedding(chunks: &[usize], pooling: Pooling) -> Vec<u32> {
        let values = [1.0e8_f32, 0.123_456_7, -1.0e8, 3.7, 1.0e-9];
        let all: Vec<Vec<f32>> = values.iter().map(|value| vec![*value, value * 0.3]).collect();
        let (mut pool, mut start) = (None, 0);
        for (nth, &len) in chunks.iter().enumerate() {
            let row = row(start as u32, len, pooling);
            let wanted = states(&row).unwrap_or(0..0);
            let own = &all[start..start + len][wanted];
            let answer = take_in(&row, own.iter().map(Vec::as_slice), &mut pool).unwrap();
            start += len;
            assert_eq!(answer.is_some(), nth + 1 == chunks.len());
            if let Some(Embedded { cache, vector }) = answer {
                assert_eq!((cache, pool.is_none()), (CacheId(3), true));
                return vector.unwrap().iter().map(|value| value.to_bits()).collect();
            }
        }
        panic!("the last chunk is answered");
    }

    #[test]
    fn no_bit_depends_on_the_chunks() {
        let mean = |chunks: &[usize]| embedding(chunks, Pooling::Mean);
        let whole = mean(&[5]);
        assert_eq!(
            f32::from_bits(whole[0]),
            ((0.123_456_7_f32 as f64 + 3.7_f32 as f64) / 5.0) as f32
        );
        for chunks in [&[1, 1, 1, 1, 1][..], &[2, 3], &[3, 2], &[1, 4]] {
            assert_eq!(mean(chunks), whole, "{chunks:?}");
            assert_eq!(embedding(chunks, Pooling::Last), embedding(&[5], Pooling::Last));
        }
        assert_eq!(f32::from_bits(embedding(&[5], Pooling::Last)[0]), 1.0e-9);
    }

    #[test]
    fn a_mean_that_lacks_positions_is_refused() {
        let second = row(2, 3, Pooling::Mean);
        let states = [[1.0_f32], [2.0], [3.0]];
        let take = |pool: &mut Option<Pool>| {
            take_in(&second, states.iter().map(<[f32; 1]>::as_slice), pool)
        };
        let message = take(&mut None).unwrap_err().to_string();
        assert!(message.contains("has 0 hidden states, the row starts at 2"), "{message}");
        let mut one = Some(Pool::new(Pooling::Mean));
        one.as_mut().unwrap().add(&[1.0]);
        assert!(take(&mut one).is_err());
    }

    #[test]
    fn nan_and_infinity_give_no_embedding() {
        for value in [f32::NAN, f32::INFINITY] {
            let last = row(4, 1, Pooling::Last);
            let answer = take_in(&last, std::iter::once(&[value][..]), &mut None).unwrap();
            assert_eq!(answer, Some(Embedded { cache: CacheId(3), vector: None }));
        }
    }
}
